"""OpenInference's annotations and evaluations on spans: whose reward each is, however it came."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from arttrace.commands import cli
from arttrace.formats.imported_files import read_file
from arttrace.formats.otlp.encode_json import encode_json
from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.records.record import Record
from arttrace.records.span import SpanEvent, SpanLink, SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir

KIND = "openinference.span.kind"
NANO = 1_000_000_000


def said(scope: str = "", form: str = "annotation", at: int = 0, **fields: Any) -> dict[str, Any]:
    """One object, as attributes."""
    prefix = f"{scope}{form}s.{at}.{form}."
    return {f"{prefix}{name}": value for name, value in ({"name": "right"} | fields).items() if value is not None}


def span(id: int, kind: str | None, parent: int | None = None, *, trace: str = "a", **more: Any) -> SpanRow:
    attributes = {**({KIND: kind} if kind else {}), **more.pop("attributes", {})}
    return SpanRow(
        trace * 32, f"{id:016x}", f"{kind} {id}", id * NANO, (id + 1) * NANO, parent and f"{parent:016x}",
        attributes=attributes, **more,
    )  # fmt: skip


def to(*ids: int, trace: str = "a") -> list[SpanLink]:
    return [SpanLink(trace * 32, f"{id:016x}") for id in ids]


def call(id: int, parent: int | None, **attributes: Any) -> SpanRow:
    messages = {
        "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "q",
        "llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "a",
    }  # fmt: skip
    return span(id, "LLM", parent, attributes={**messages, **attributes})


def run(*, root: Any = None, model: Any = None, sub: Any = None, of_sub: Any = None) -> list[SpanRow]:
    """An agent with a call and a sub-agent with one, and what is said of each."""
    return [
        span(1, "AGENT", attributes={"agent.name": "main", **(root or {})}),
        call(2, 1, **(model or {})),
        span(3, "AGENT", 1, attributes={"agent.name": "helper", **(sub or {})}),
        call(4, 3, **(of_sub or {})),
    ]


def evaluator(id: int = 9, links: Any = None, kind: str | None = "EVALUATOR", **attributes: Any) -> SpanRow:
    """A span in a trace of its own."""
    return span(id, kind, trace="e", links=to(1) if links is None else links, attributes=attributes)


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


def stored(data: DataDir, *records: Record) -> tuple[list[Any], list[Any]]:
    """The rewards and notes of the one run: name, value, source, whose, explanation. SQL and `ls` say the same."""
    with Store.open(data, create=True) as store:
        store.append(records)
        [trajectory] = store.trajectories()
        [summary] = store.summaries()
        assert summary.rewards == trajectory.rewards
        of_run = sum(one.value for one in trajectory.rewards if one.agent_id is None and one.source != "judge")
        judged = [one.value for one in trajectory.rewards if one.agent_id is None and one.source == "judge"]
        sum_by_sql = "SELECT coalesce(sum(value), 0) FROM rewards WHERE agent_id IS NULL AND trajectory_id = ?"
        assert store.sql(sum_by_sql.replace("?", f"'{trajectory.id}'"))[1] == [(of_run + sum(judged),)]
        assert store.sql("SELECT count(*) FROM rewards")[1] == [(len(trajectory.rewards),)]
    names = {agent.id: agent.name for agent in trajectory.agents} | {None: ""}
    return tuple(
        sorted((one.name, one.value, one.source, names.get(one.agent_id, "?"), one.explanation) for one in found)
        for found in (trajectory.rewards, trajectory.notes)
    )


@pytest.mark.parametrize("form", ["annotation", "evaluation"])
def test_what_is_said_of_a_span_is_its_agents_and_of_the_uppermost_the_runs(form: str, data: DataDir) -> None:
    spans = run(
        root=said(form=form, score=1, annotator_kind="CODE"),
        model=said(form=form, name="short", score=0.5, annotator_kind="LLM", label="ok", explanation="so"),
        sub=said(form=form, name="found", score=0.25, annotator_kind="HUMAN"),
        of_sub=said(form=form, name="kind", score=-1.0, annotator_kind="guard"),
    )
    assert stored(data, *spans) == (
        [
            ("found", 0.25, "person", "helper", ""),
            ("kind", -1.0, "guard", "helper", ""),
            ("right", 1.0, "code", "", ""),
            ("short", 0.5, "judge", "main", "ok: so"),
        ],
        [],
    )


def test_what_is_said_of_a_trace_is_the_runs_whatever_span_carries_it(data: DataDir) -> None:
    spans = run(of_sub=said("trace.", score=0.5), model=said("trace.", "evaluation", name="whole", score=1.0))
    assert stored(data, *spans)[0] == [("right", 0.5, "code", "", ""), ("whole", 1.0, "code", "", "")]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_what_is_said_afterwards_is_of_the_span_that_is_linked_to(order: tuple[int, ...], data: DataDir) -> None:
    carriers = [
        evaluator(7, **said(form="evaluation", score=0.25, annotator_kind="HUMAN")),
        evaluator(8, to(4), **said(name="kind", score=0.5)),
        evaluator(9, to(3), None, **said("trace.", name="whole", score=0.75)),
    ]
    parts = [run(), carriers[:2], carriers[2:]]
    found = stored(data, *(one for at in order for one in parts[at]))
    assert found == (
        [("kind", 0.5, "code", "helper", ""), ("right", 0.25, "person", "", ""), ("whole", 0.75, "code", "", "")],
        [],
    )


def test_a_reward_comes_to_a_run_that_was_read_before(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        store.append(run())
        assert [one.rewards for one in store.summaries()] == [()]
    assert stored(data, evaluator(**said(score=0.5)))[0] == [("right", 0.5, "code", "", "")]


def test_an_event_on_an_evaluators_span_is_about_the_span_that_it_links_to(data: DataDir) -> None:
    event = SpanEvent(
        "gen_ai.evaluation.result", 5, {"gen_ai.evaluation.name": "right", "gen_ai.evaluation.score.value": 0.5}
    )
    of_root, of_sub = (
        span(id, "EVALUATOR", trace="e", links=to(about), events=[event]) for id, about in ((8, 1), (9, 4))
    )
    assert stored(data, *run(), of_root, of_sub)[0] == [
        ("right", 0.5, "code", "", ""), ("right", 0.5, "code", "helper", ""),
    ]  # fmt: skip


def test_a_result_counts_once(data: DataDir) -> None:
    """Under both names, delivered twice, or found again under its identifier; but two that say the same are two."""
    same = {"score": 0.5, "annotator_kind": "CODE"}
    spans = run(root={**said(**same), **said(form="evaluation", **same), **said(at=1, **same)})
    again = [evaluator(at, **said(name="judged", score=at / 10, identifier="j-1")) for at in (8, 9)]
    assert stored(data, *spans, *spans, *again)[0] == [
        ("judged", 0.9, "code", "", ""), ("right", 0.5, "code", "", ""), ("right", 0.5, "code", "", ""),
    ]  # fmt: skip


def test_what_is_no_score_of_one_run_is_a_note_and_counted(data: DataDir) -> None:
    spans = [
        *run(
            root={**said(label="good", explanation="short"), **said("session.", score=1.0), "session.id": "s-1"},
            sub=said(score="high"),
        ),
        evaluator(8, to(1, 3), **said(score=0.5)),
        evaluator(9, to(1, 3), **said("trace.", name="whole", score=0.5)),
    ]
    rewards, notes = stored(data, *spans)
    assert rewards == [("whole", 0.5, "code", "", "")]
    assert notes == [
        ("right", 0.0, "code", "", "of session s-1: right: 1.0"), ("right", 0.0, "code", "", "right: good: short"),
        ("right", 0.0, "code", "helper", "right: high"),
    ]  # fmt: skip
    for file in (encode_json(spans), encode_protobuf(spans)):
        found = read_file(file, "file")
        assert (found.rewards, found.left_out) == (
            1,
            {
                "feedback without a score, kept as notes": 2,
                "feedback on sessions, kept as notes": 1,
                "feedback that names no single span or trace, kept as notes": 1,
            },
        )


def test_import_says_what_it_kept_as_notes(data: DataDir, tmp_path: Path) -> None:
    file = tmp_path / "spans.json"
    file.write_bytes(encode_json(run(root=said(label="good"))))
    done = CliRunner().invoke(cli, ["import", str(file), "--dir", str(data.root)], catch_exceptions=False)
    assert "left out: feedback without a score, kept as notes (1)" in done.stderr


def by_run(data: DataDir, *records: Record) -> dict[str, list[tuple[float, str | None]]]:
    """The value of every reward and the id of its agent, by run; as built and by SQL."""
    with Store.open(data, create=True) as store:
        store.append(records)
        built = {one.id: sorted((r.value, r.agent_id) for r in one.rewards) for one in store.trajectories()}
        found: dict[str, list[tuple[float, str | None]]] = {id: [] for id in built}
        for id, value, agent in store.sql("SELECT trajectory_id, value, agent_id FROM rewards ORDER BY value")[1]:
            found[id].append((value, agent))
    assert found == built
    return built


def with_said(spans: Sequence[SpanRow], **attributes: Any) -> list[SpanRow]:
    said_by_all = {name.replace("__", "."): value for name, value in attributes.items()}
    return [replace(one, attributes=one.attributes | said_by_all) for one in spans]


def agent(id: int) -> str:
    return f"{id:016x}"


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_runs_in_a_trace_that_of_the_linked_span_is_rewarded(turned: bool, data: DataDir) -> None:
    second = [span(11, "AGENT", attributes={"agent.name": "second"}), call(12, 11)]
    spans = [
        *with_said(run(), arttrace__trajectory__id="run-1"),
        *with_said(second, arttrace__trajectory__id="run-2"),
        evaluator(8, to(12), **said(score=0.5)),
    ]
    assert by_run(data, *(spans[::-1] if turned else spans)) == {"run-1": [], "run-2": [(0.5, agent(11))]}


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_sessions_in_a_trace_that_of_the_linked_span_is_rewarded(turned: bool, data: DataDir) -> None:
    spans = [
        span(1, None),
        *with_said([span(2, "AGENT", 1), call(3, 2)], session__id="s1"),
        *with_said([span(4, "AGENT", 1), call(5, 4)], session__id="s2"),
        evaluator(9, to(5), **said(score=0.5)),
    ]
    trace = "a" * 32
    assert by_run(data, *(spans[::-1] if turned else spans)) == {f"{trace}:s1": [], f"{trace}:s2": [(0.5, agent(4))]}


def test_what_an_evaluators_span_says_is_of_the_judged_run_also_where_it_names_its_own(data: DataDir) -> None:
    event = SpanEvent("gen_ai.evaluation.result", 5, {"gen_ai.evaluation.score.value": 0.25})
    judge = replace(evaluator(8, to(4), **said(score=0.5)), events=[event])
    [judge] = with_said([judge], arttrace__trajectory__id="run-of-the-judge")
    assert by_run(data, *run(), judge) == {
        "a" * 32: [(0.25, agent(3)), (0.5, agent(3))],
        "run-of-the-judge": [],
    }


def test_the_agent_that_sql_says_is_one_of_the_view_of_agents(data: DataDir) -> None:
    spans = run(model=said(score=0.5), sub=said(name="found", score=0.25), of_sub=said(name="kind", score=1.0))
    assert by_run(data, *spans) == {"a" * 32: [(0.25, agent(3)), (0.5, agent(1)), (1.0, agent(3))]}
    with Store.open(data) as store:
        joined = "SELECT r.value, a.name FROM rewards r JOIN agents a ON a.span_id = r.agent_id ORDER BY r.value"
        assert store.sql(joined)[1] == [(0.25, "helper"), (0.5, "main"), (1.0, "helper")]


def test_of_the_uppermost_agent_it_is_the_runs_whatever_span_of_other_code_stands_above(data: DataDir) -> None:
    server = [span(1, None), span(2, None, 1)]
    spans = [*server, span(3, "AGENT", 2, attributes=said(score=1.0)), call(4, 3, **said(score=0.5))]
    assert by_run(data, *spans) == {"a" * 32: [(0.5, agent(3)), (1.0, None)]}


@pytest.mark.parametrize(("about", "whose"), [(1, None), (2, "chain"), (3, "chain"), (5, agent(4)), (6, agent(4))])
def test_of_a_step_that_is_no_agent_it_is_that_of_the_agent_around_it(
    about: int, whose: str | None, data: DataDir
) -> None:
    spans = [
        *(span(1, "CHAIN"), span(2, "CHAIN", 1), call(3, 2)),
        *(span(4, "AGENT", 2), span(5, "RETRIEVER", 4), call(6, 5)),
    ]
    with Store.open(data, create=True) as store:
        store.append([*spans, evaluator(9, to(about), **said(score=0.5))])
        [run], [(by_sql,)] = store.trajectories(), store.sql("SELECT agent_id FROM rewards")[1]
    [built] = run.rewards
    # The agent around steps of a chain is inferred: no span has its id.
    assert (built.agent_id, by_sql) == ((run.agents[0].id, agent(about)) if whose == "chain" else (whose, whose))


def test_of_an_agent_whose_parent_did_not_come_it_is_that_agents(data: DataDir) -> None:
    spans = [span(3, "AGENT", 2, attributes=said(score=1.0)), call(4, 3)]
    assert by_run(data, *spans) == {"a" * 32: [(1.0, agent(3))]}


@pytest.mark.parametrize("first", [{}, {"annotations.0.annotation.score": 1.0}])
def test_the_first_of_a_list_need_not_be_there_or_have_a_name(first: dict[str, Any], data: DataDir) -> None:
    assert stored(data, *run(root={**first, **said(at=1, score=0.5)}))[0] == [("right", 0.5, "code", "", "")]


def test_a_file_imported_again_brings_what_an_earlier_version_did_not_read(data: DataDir, tmp_path: Path) -> None:
    file = tmp_path / "spans.json"
    file.write_bytes(encode_json(run(root=said(score=0.5), of_sub=said(score=0.25))))

    def imported() -> dict[str, list[tuple[float, str | None]]]:
        CliRunner().invoke(cli, ["import", str(file), "--dir", str(data.root)], catch_exceptions=False)
        return by_run(data)

    assert (first := imported()) == {"a" * 32: [(0.25, agent(3)), (0.5, None)]}
    with duckdb.connect(data.store) as connection:
        connection.execute("DELETE FROM reward_records; DELETE FROM summaries")
    assert by_run(data) == {"a" * 32: []}
    assert [imported(), imported()] == [first, first]


def phoenix(id: int, kind: str, parent: int | None, *annotations: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    return {
        "name": kind, "span_kind": kind, "context": {"trace_id": "a" * 32, "span_id": agent(id)},
        "parent_id": parent and agent(parent), "start_time": f"2026-01-01T00:00:0{id}Z",
        "end_time": "2026-01-01T00:00:09Z", "status_code": "OK", "attributes": attributes,
        "annotations": list(annotations),
    }  # fmt: skip


def test_annotations_of_phoenix_are_of_the_same_agents_and_people_as_those_in_attributes(data: DataDir) -> None:
    def annotation(name: str, kind: str, score: float) -> dict[str, Any]:
        return {"id": f"of-{name}", "name": name, "annotator_kind": kind, "result": {"score": score}}

    both = said(score=1.0, annotator_kind="HUMAN")
    spans = [
        phoenix(1, "AGENT", None, annotation("right", "HUMAN", 1.0), **{"agent.name": "main"}, **both),
        phoenix(2, "LLM", 1, annotation("short", "LLM", 0.5), **call(2, 1).attributes),
        phoenix(3, "AGENT", 1, annotation("found", "CODE", 0.25), **{"agent.name": "helper"}),
        phoenix(4, "LLM", 3, annotation("kind", "HUMAN", -1.0), **call(4, 3).attributes),
    ]
    found = read_file("\n".join(map(json.dumps, spans)).encode(), "file")
    assert found.rewards == 4
    assert stored(data, *found.records)[0] == [
        ("found", 0.25, "code", "helper", ""), ("kind", -1.0, "person", "helper", ""),
        ("right", 1.0, "person", "", ""), ("short", 0.5, "judge", "main", ""),
    ]  # fmt: skip
