"""SQL, `arttrace tail` and reconstruction read the same calls, tools and agents in what other SDKs sent, whatever names
it goes by; also in stores whose rows were made by a version that understood fewer of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from arttrace.formats.imported_files import read_file
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.span import Attributes, SpanRow
from arttrace.store import Store
from arttrace.store.rows import encode
from arttrace.store.rows.summary import summarise
from arttrace.system.paths import DataDir
from arttrace.trajectories.decoding.attribute_values import as_text, from_json
from arttrace.views.console.events import Events
from arttrace.views.run_filter import RunFilter

DATA = Path(__file__).parent / "data"
SENDERS = [
    "openinference",
    "openllmetry",
    "openllmetry_old",
    "langfuse",
    "openai_v2",
    "strands_older",
    "strands_newest",
    "vercel",
    "braintrust",
    "arttrace",
]


def load(name: str) -> list[Record]:
    [path] = DATA.glob(f"{name}.json*")
    return read_file(path.read_bytes(), name).records


def equal_json(text: Any) -> str:
    """JSON that says the same is the same, and a text is what its JSON says."""
    found = from_json(text) if isinstance(text, str) else text
    return found if isinstance(found, str) else json.dumps(found, sort_keys=True)


def agree(store: Store) -> None:
    """The views say what reconstruction found."""
    [trajectory] = store.trajectories()
    calls = {placed.call.span_id: placed.call for placed in trajectory.calls}
    assert len(calls) == 2
    answers = {}
    for span_id, input_tokens, output, reasons in store.sql(
        "SELECT span_id, input_tokens, output_messages, finish_reasons FROM calls"
    )[1]:
        call = calls[span_id]
        assert input_tokens == call.input_tokens
        said = [part for message in json.loads(output or "[]") for part in message["parts"]]
        answers[span_id] = ["".join(as_text(p.get("content", p.get("text", ""))) or "" for p in said)]
        shown = [choice.finish_reason for choice in call.choices if choice.finish_reason]
        assert not shown or json.loads(reasons) == shown
    assert answers == {id: ["".join(c.message.text for c in call.choices)] for id, call in calls.items()}
    rows = store.sql("SELECT span_id, role FROM messages ORDER BY span_id, position")[1]
    assert rows == [(id, message.role) for id in sorted(calls) for message in calls[id].messages]
    rows = store.sql("SELECT name, arguments, inferred FROM tool_calls")[1]
    assert sorted((name, equal_json(given), inferred) for name, given, inferred in rows) == sorted(
        (one.name, equal_json(one.arguments), one.inferred) for one in trajectory.tool_calls
    )
    assert all(result for (result,) in store.sql("SELECT result FROM tool_calls WHERE NOT inferred")[1])
    assert store.sql("SELECT name FROM agents")[1] == [(one.name,) for one in trajectory.agents]
    [(entry, calls_there, tags, metadata)] = store.sql("SELECT entry, calls, tags, metadata FROM trajectories")[1]
    assert entry == summarise(trajectory).entry
    assert (calls_there, tags or []) == (2, [*trajectory.tags])
    assert json.loads(metadata or "{}") == trajectory.metadata


@pytest.mark.parametrize("name", SENDERS)
def test_views_say_what_reconstruction_found(name: str, tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(load(name))
        agree(store)


@pytest.mark.parametrize(
    "name", ["openinference", "openllmetry_old", "strands_older", "strands_newest", "vercel", "arttrace"]
)
def test_a_store_whose_rows_were_read_by_fewer_names_is_read_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older version is a stand-in: this one, which knows no names of other SDKs while it writes."""
    data, records = DataDir(tmp_path), load(name)

    def nothing(_span: SpanRow) -> Attributes:
        return {}

    with monkeypatch.context() as older:
        older.setattr(encode, "added_by_conventions", nothing)
        with Store.open(data, create=True) as store:
            store.append(records)
            store.summaries()
            store.sql("SELECT count(*) FROM calls")
            stored = store.sql("SELECT trace_id, span_id, content_hash, bytes FROM span_records ORDER BY ALL")[1]
    with duckdb.connect(str(data.store)) as connection:
        connection.execute("UPDATE arttrace_schema SET reading = NULL")
    for _ in range(2):
        with Store.open(data) as store:
            agree(store)
            assert (
                store.sql("SELECT trace_id, span_id, content_hash, bytes FROM span_records ORDER BY ALL")[1] == stored
            )
            [trajectory] = store.trajectories()
            spans = [record for record in records if isinstance(record, SpanRow)]
            assert sorted(store.spans(trajectory.id), key=lambda s: s.span_id) == sorted(spans, key=lambda s: s.span_id)
    with Store.open(data) as store:
        again = rows_of(store)
    fresh = DataDir(tmp_path / "fresh")
    with Store.open(fresh, create=True) as store:
        store.append(records)
        assert rows_of(store) == again


def rows_of(store: Store) -> Sequence[tuple[Any, ...]]:
    return store.sql(
        "SELECT * EXCLUDE (arrived_ns, prompt, tools, instructions, origin) FROM span_records ORDER BY ALL"
    )[1]


def test_a_run_without_an_agents_span_is_named_after_the_span_above_it(tmp_path: Path) -> None:
    chat = {semconv.OPERATION_NAME: "chat"}
    records = [
        SpanRow("a" * 32, "1" * 16, "POST /ask", 1, 9),
        SpanRow("a" * 32, "2" * 16, "chat m", 2, 3, parent_span_id="1" * 16, attributes=chat),
    ]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(records)
        assert store.sql("SELECT entry FROM trajectories")[1] == [("POST /ask",)]
        assert [one.entry for one in store.summaries()] == ["POST /ask"]


@pytest.mark.parametrize("name", ["openinference", "openllmetry", "langfuse", "vercel"])
def test_what_happens_in_runs_of_other_sdks_says_what_was_passed_and_answered(name: str, tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        events = Events(store, 0)
        store.append(load(name))
        found = events.new()
    tools = {event.name: event.text for event in found if event.kind == "tool"}
    assert tools.keys() in ({"look", "add"}, {"weather"})
    assert all("->" in text and "{" in text for text in tools.values())
    assert all(event.text for event in found if event.kind == "call")
    assert [event.name for event in found if event.kind == "agent"] in (["researcher"], ["helper"])


def test_events_of_runs_without_an_entry_are_chosen_too(tmp_path: Path) -> None:
    """By the name that `ls` shows; they wait only while what they began with has not come."""
    spans = sorted(
        (one for one in load("openinference") if isinstance(one, SpanRow)), key=lambda s: s.parent_span_id or ""
    )
    with Store.open(DataDir(tmp_path), create=True) as store:
        events = Events(store, 0, wanted=RunFilter(entry="researcher"))
        others = Events(store, 0, wanted=RunFilter(entry="another"))
        store.append(spans[1:])
        assert events.new() == []
        store.append(spans[:1])
        assert sorted(event.kind for event in events.new()) == ["agent", "call", "call", "tool", "tool"]
        assert others.new() == []


def test_a_span_whose_sdk_uses_the_names_of_the_conventions_is_stored_as_it_is(tmp_path: Path) -> None:
    attributes = {semconv.OPERATION_NAME: "chat", semconv.INPUT_MESSAGES: "[]", semconv.OUTPUT_MESSAGES: "[]"}
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([SpanRow("1" * 32, "2" * 16, "chat", 1, 2, attributes=attributes)])
        assert store.sql("SELECT document->'conventions' FROM spans")[1] == [(None,)]
