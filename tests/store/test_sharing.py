"""What spans share is stored once, and every span comes out exactly as it went in."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from simulated_agent import Run, message, prompt_tokens, research_run, result

from arttrace.commands import cli
from arttrace.commands.data import export
from arttrace.formats.imported_files import read_file
from arttrace.records import semconv
from arttrace.records.record import encode_record
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.store import Store
from arttrace.store.access import run_spans
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories, sequences
from arttrace.views.run_filter import RunFilter
from arttrace.views.web.store_reader import StoreReader


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


TOOLS = json.dumps(
    [{"type": "function", "function": {"name": f"tool_{i}", "description": "d" * 200}} for i in range(9)]
)


def long_run(turns: int, id: str = "long") -> list[SpanRow]:
    """One agent whose history grows by an answer and a tool's result per call, as capture writes it."""
    run, history = Run(id), [message("system", "You are thorough."), message("user", "start")]
    for turn in range(turns):
        asked = message("assistant", f"step {turn} " + "x" * 40, calls=((f"c{turn}", "look", "{}"),))
        run.chat(
            f"m{turn}",
            history,
            asked,
            at=10 * turn,
            INPUT_MESSAGES=msgspec.json.encode(history).decode(),
            PROMPT_TOKEN_IDS=encode_token_ids(prompt_tokens(history)),
            TOOL_DEFINITIONS=TOOLS,
        )
        history += [asked, result(f"c{turn}", f"page {turn}")]
    spans = run.end(at=10 * turns)
    return [msgspec.structs.replace(s, resource={"service.name": "svc", "host": "h" * 80}) for s in spans]


def table(store: Store, query: str) -> list[tuple[Any, ...]]:
    return store.sql(query)[1]


def by_key(spans: list[SpanRow]) -> list[bytes]:
    return sorted(msgspec.json.encode(span, order="sorted") for span in spans)


def test_a_turn_is_stored_as_what_it_adds(data: DataDir) -> None:
    def stored(turns: int) -> tuple[int, int]:
        spans = long_run(turns, f"run of {turns}")
        with Store.open(DataDir(data.root / str(turns)), create=True) as store:
            store.append(spans)
            assert by_key(store.spans(f"run of {turns}")) == by_key(spans)
            assert store.trajectories() == build_trajectories(spans)
            [(messages,)] = table(store, "SELECT sum(len(messages)) FROM prompts")
            assert messages == 2 * turns  # two at the start, two more at each further call
            [(texts, kept)] = table(store, "SELECT sum(length(text)), count(*) FROM texts")
            assert kept == 2 * turns + 2  # and the tools, and the origin
            [(tails,)] = table(store, "SELECT sum(length(tail)) FROM token_prompts")
            [(rest,)] = table(store, "SELECT sum(length(document)) FROM span_records")
        return int(texts + tails + rest), sum(len(encode_record(span)) for span in spans)

    (short, raw_short), (long, raw_long) = stored(20), stored(80)
    assert long < 4.1 * short  # linear in turns
    assert raw_long > 8 * raw_short  # where what came in is quadratic
    assert long < raw_long / 5


def test_a_run_is_read_without_any_prompt_written_out(data: DataDir) -> None:
    """Each call of a long run had its prompt's token ids in memory as a text of its own, and again as bytes."""
    turns, added = 60, 1000
    run, history, ids = Run("long"), [message("user", "start")], [0]
    for turn in range(turns):
        answer = message("assistant", f"said {turn}")
        given = {"PROMPT_TOKEN_IDS": encode_token_ids(ids), "TOKEN_IDS": encode_token_ids([turn, 7])}
        run.chat(f"m{turn}", history, answer, at=10 * turn, **given, LOGPROBS=encode_logprobs([-0.5, -0.5]))
        history += [answer, message("user", f"on {turn}")]
        ids += [turn, 7, *(turn + place for place in range(added))]
    spans = run.end(at=10 * turns)
    written_out = sum(len(span.attributes.get(semconv.PROMPT_TOKEN_IDS, "")) for span in spans)
    with Store.open(data, create=True) as store:
        store.append(spans)
        expected = build_trajectories(spans)
        store.trajectories()  # what is imported and kept
        tracemalloc.start()
        try:
            [trajectory] = found = store.trajectories()
            made, _ = sequences(trajectory)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert found == expected
    assert made == sequences(expected[0])[0]
    assert len(made) == 1
    assert most < written_out


def test_a_long_run_is_exported_and_its_spans_are_listed_some_at_a_time(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its prompts were in memory at once, the viewer's for as long as it ran."""
    monkeypatch.setattr(run_spans, "BYTES_AT_ONCE", 60_000)
    spans, given = long_run(60), []
    with Store.open(data, create=True) as store:
        store.append(spans)
        read = store.spans_of_traces

        def counted(*given_to: Any, **more: Any) -> list[SpanRow]:
            found = read(*given_to, **more)
            given.append(sum(len(msgspec.json.encode(span)) for span in found))
            return found

        monkeypatch.setattr(store, "spans_of_traces", counted)
        monkeypatch.setattr(store, "spans", None)
        file = io.BytesIO()
        export._write(store, export._named(store, ("long",), RunFilter()), export._FORMS["otlp-json"], file)
        reader = StoreReader(store)
        listed = reader.spans("long")
        assert by_key(reader.versions("long", spans[30].span_id)) == by_key([spans[30]])
        assert [one for one in listed if one.attributes] == []
        assert sorted((one.start_ns, one.name) for one in listed) == sorted((one.start_ns, one.name) for one in spans)
    assert sum(given) > 2 * 300_000
    assert max(given) < 100_000
    again = [one for one in read_file(file.getvalue(), "file").records if isinstance(one, SpanRow)]
    assert len(again) == len(spans)
    assert build_trajectories(again) == build_trajectories(spans)


def test_the_spans_of_a_long_run_are_printed_some_at_a_time(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_spans, "BYTES_AT_ONCE", 60_000)
    monkeypatch.setattr(Store, "spans", None)
    spans = long_run(20)
    with Store.open(data, create=True) as store:
        store.append(spans)
    done = CliRunner().invoke(cli, ["show", "--raw", "long", "--dir", str(data.root)], catch_exceptions=False)
    read = [msgspec.json.decode(line, type=SpanRow) for line in done.output.splitlines()]
    assert by_key(read) == by_key(spans)


def test_order_and_restarts_change_nothing(data: DataDir) -> None:
    spans = long_run(12) + long_run(12, "other") + research_run("a", "s")
    random.Random(3).shuffle(spans)
    for start in range(0, len(spans), 9):
        with Store.open(data, create=True) as store:
            store.append(spans[start : start + 9])
            store.append(spans[max(0, start - 3) : start + 2])  # delivered again
    with Store.open(data) as store:
        assert by_key([s for id in ("long", "other", "a") for s in store.spans(id)]) == by_key(spans)
        assert store.trajectories() == build_trajectories(spans)


@pytest.mark.parametrize(
    "value",
    [
        '[{"role":"user","parts":[]},{"role":"user","parts":[]}]',
        '[{"role": "user", "parts": []}, {"role": "user", "parts": []}]',
        '[ {"role":"user","parts":[]} ,{"role":"tool","parts":[]}]',
        '[\n{"role":"user"}\n]',
        '[{"role":"user","parts":[{"type":"text","content":"a\\u0000b ünï \\ud83d\\ude00 ], ["}]}]',
        "[1,2,[3,4],null]",
        "[]",
        "",
        "no json",
        '[{"role":"user"}',
        [{"role": "user", "parts": [{"type": "text", "content": "a"}]}, {"role": "x", "n": 1.5}],
        ["text", 1, None],
        [],
        {"role": "user"},
        7,
    ],
)
def test_input_messages_of_any_form_come_out_as_they_were(data: DataDir, value: Any) -> None:
    longer = f'{value[:-1]},{{"role":"more"}}]' if isinstance(value, str) and value.endswith("]") else value
    spans = [
        SpanRow("1" * 32, f"{n:016x}", "chat", n, n + 1, attributes={"gen_ai.operation.name": "chat", **given})
        for n, given in enumerate(
            ({semconv.INPUT_MESSAGES: value}, {semconv.INPUT_MESSAGES: longer}, {semconv.INPUT_MESSAGES: value}, {}), 1
        )
    ]
    with Store.open(data, create=True) as store:
        for span in spans:
            store.append([span])
        assert store.spans("1" * 32) == spans


def test_messages_are_rows_for_sql(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        store.append(long_run(3))
        rows = table(
            store, "SELECT position, role, message->'parts'->0->>'content' FROM messages ORDER BY span_id, position"
        )
        assert len(rows) == 2 + 4 + 6
        assert sorted({(position, role) for position, role, _ in rows})[:3] == [
            (1, "system"),
            (2, "user"),
            (3, "assistant"),
        ]
        assert table(store, "SELECT count(DISTINCT id) FROM messages") == [(6,)]
        assert table(store, "SELECT count(*), any_value(name) FROM agents") == [(1, "planner")]
        assert table(store, "SELECT trajectories, calls FROM groups") == [(1, 3)]


def test_summaries_are_kept_and_never_stale(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run, late = research_run("a", "s"), research_run("b", "s")
    with Store.open(data, create=True) as store:
        store.append(run + late[:-1])
        first = store.summaries()
        monkeypatch.setattr(
            "arttrace.store.access.queries.build_trajectories", lambda *_, **__: pytest.fail("built again")
        )
        assert store.summaries() == first
        assert store.summaries(limit=1) == first[:1]
        monkeypatch.undo()
        store.append(late[-1:])
        assert [(s.id, s.incomplete) for s in store.summaries(complete_only=True)] == [("b", ""), ("a", "")]
        unnamed = msgspec.structs.replace(run[0], span_id="f" * 16, attributes={"gen_ai.operation.name": "chat"})
        before = {s.id: s.revision for s in store.summaries()}
        store.append([unnamed])  # it names no trajectory, but stands under one
        after = {s.id: s.revision for s in store.summaries()}
        assert before["b"] == after["b"]
        assert before["a"] != after["a"]
    with Store.open(data) as store:
        assert (
            {s.id: s.revision for s in store.summaries()} == after == {t.id: t.revision for t in store.trajectories()}
        )
