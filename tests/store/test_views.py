"""The views of the store: every column has its meaning in one table, and whatever a span holds, they answer."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from simulated_agent import T0, Run, message, research_run, result

from arttrace.commands import cli
from arttrace.records import semconv
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.store import Store, open_store
from arttrace.store.file import reading
from arttrace.store.rows.view_parts.definition import as_markdown
from arttrace.store.rows.views import DESCRIBED
from arttrace.store.server.owner import hold_store
from arttrace.system.paths import DataDir

LATEST_NS = (1 << 63) - 1
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "schema.md"


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


@pytest.fixture
def store(data: DataDir) -> Iterator[Store]:
    with Store.open(data, create=True) as store:
        yield store


def agent(trace: str, **attributes: object) -> SpanRow:
    named = {semconv.OPERATION_NAME: "invoke_agent", semconv.ENTRY: "agent:main", **attributes}
    now = time.time_ns()
    return SpanRow(trace * 32, trace * 16, "invoke_agent main", now, now + 5, attributes=named)


def chat(trace: str, messages: str) -> SpanRow:
    attributes = {semconv.OPERATION_NAME: "chat", semconv.INPUT_MESSAGES: messages}
    return SpanRow(trace * 32, "c" * 16, "chat m", T0, T0 + 5, trace * 16, attributes=attributes)


def test_one_span_makes_no_view_fail(store: Store, data: DataDir) -> None:
    latest = [msgspec.structs.replace(span, start_ns=LATEST_NS, end_ns=LATEST_NS) for span in research_run("latest")]
    counted = Run("counted")
    for at in (1, 2, 3):
        huge = {"USAGE_INPUT_TOKENS": (1 << 62) - 1, "USAGE_OUTPUT_TOKENS": (1 << 62) - 1}
        counted.chat("c", [message("user", "a")], message("assistant", "b"), at=at, **huge)
    odd_request = {
        semconv.HTTP_METHOD: ["GET"],
        semconv.HTTP_STATUS_CODE: 1 << 62,
        semconv.HTTP_RESPONSE_SIZE: "many",
        semconv.URL_FULL: {"no": "text"},
    }
    store.append(
        [
            *research_run("usual", "s"),
            *latest,
            *counted.end(),
            chat("6", '[{"role":"user","parts":[{"type":"text","content":"\\ud800"}]}]'),
            agent("7", **{semconv.TAGS: "no list", semconv.METADATA: "{no object"}),
            agent("8", **{semconv.TAGS: {"a": 1}, semconv.METADATA: 5}),
            SpanRow("7" * 32, "9" * 16, "tool", T0, T0, "7" * 16, attributes={semconv.OPERATION_NAME: "execute_tool"}),
            SpanRow("7" * 32, "a" * 16, "GET", T0, LATEST_NS, "9" * 16, kind=3, attributes=odd_request),
            Reward(id="r", trajectory_id="usual", value=1e308, time_ns=LATEST_NS),
            Reward(id="s", trajectory_id="counted", value=1e308, time_ns=-LATEST_NS - 1),
            Reward(id="t", trajectory_id="latest", value=-1e308),
            PolicyStep("p", 1, "x", time_ns=LATEST_NS),
        ]
    )
    for view in DESCRIBED:
        columns, rows = store.sql(f"FROM {view.name}")
        assert columns == [column.name for column in view.columns]
        assert rows or view.name in ("consumption", "trained_on"), view.name
    [(started, seconds)] = store.sql("SELECT started, seconds FROM trajectories WHERE id = 'latest'")[1]
    assert (started.year, started.tzinfo, seconds) == (2262, UTC, 0.0)
    store.close()
    for command in (["ls"], ["show", "latest"]):
        shown = CliRunner().invoke(cli, [*command, "--dir", str(data.root)], catch_exceptions=False)
        assert (shown.exit_code, "latest" in shown.output) == (0, True), shown.output


def test_a_run_of_calls_whose_root_is_lost_has_no_entry(store: Store) -> None:
    """What stood above them may have had any name."""
    calls = [one for one in research_run("r") if one.attributes.get("gen_ai.operation.name") == "chat"]
    assert all(one.parent_span_id for one in calls)
    store.append(calls)
    assert store.sql("SELECT DISTINCT entry FROM trajectories")[1] == [(None,)]


def test_what_a_step_set_aside_is_no_run_that_it_was_trained_on(store: Store) -> None:
    taken = (Consumed("a", "r"), Consumed("equal", "r", set_aside=True), Consumed("b", "s"))
    store.append([PolicyStep("p", 1, "x", consumed=taken), PolicyStep("p", 2, "x")])
    assert store.sql("SELECT version, trajectories FROM policy_steps ORDER BY 1")[1] == [("p@1", 2), ("p@2", 0)]
    assert store.sql("FROM trained_on ORDER BY ALL")[1] == [("p", 1, "a", "r"), ("p", 1, "b", "s")]
    assert store.sql("SELECT count(*) FROM consumption")[1] == [(3,)], "none is taken again"


def test_times_compare_with_now(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.store.ingest.writer._now_ns", time.time_ns)
    store.append([agent("1"), *research_run("long ago")])
    recent = "SELECT trajectory_id FROM {} WHERE started > now() - interval 1 hour"
    for view in ("agents", "spans", "calls", "tool_calls"):
        assert store.sql(recent.format(view))[1] == ([("1" * 32,)] if view in ("agents", "spans") else [])
    assert store.sql("SELECT id FROM trajectories WHERE started > now() - interval 1 hour")[1] == [("1" * 32,)]
    assert store.sql("SELECT id FROM trajectories WHERE started < TIMESTAMPTZ '2020-01-01'")[1] == []
    assert store.sql("SELECT count(*) FROM trajectories WHERE arrived > now() - interval 1 hour")[1] == [(2,)]


def test_a_time_is_the_same_whoever_reads_it_in_whatever_form(data: DataDir) -> None:
    began = datetime.fromtimestamp(T0 // 10**9, UTC)
    query = """SELECT min(started) AS a, min(started) AS a, list(DISTINCT date_trunc('day', started)) AS days,
        {'at': min(started)} AS held, map(['at'], [min(started)]) AS named FROM trajectories"""
    day = began.replace(hour=0, minute=0, second=0)
    with hold_store(data, create=True) as own, open_store(data) as asked:
        own.append(research_run("a"))
        for store in (own, asked):
            columns, [row] = store.sql(query)
            assert columns == ["a", "a", "days", "held", "named"]
            assert row == (began, began, [day], {"at": began}, {"at": began})


def test_tags_and_metadata(store: Store) -> None:
    tagged = agent("1", **{semconv.TAGS: ["beta", "eu"], semconv.METADATA: '{"user": {"id": "u1"}}'})
    store.append([tagged, agent("2")])
    for view, id in (("trajectories", "id"), ("agents", "trajectory_id")):
        query = f"SELECT {id}, tags, metadata->'user'->>'id' FROM {view} WHERE list_contains(tags, 'eu')"
        assert store.sql(query)[1] == [("1" * 32, ["beta", "eu"], "u1")]


def test_a_run_of_calls_alone_has_the_metadata_of_the_first_that_says_something_of_the_run(store: Store) -> None:
    """As such runs are read: what stands beside imported requests and answers is said by their calls."""
    said: dict[str, tuple[dict[str, Any], ...]] = {
        "one": ({}, {"METADATA": '{"a": 1}'}, {"METADATA": '{"b": 2}'}),
        "other": ({"SCENARIO": "task"}, {"METADATA": '{"b": 2}'}),
        "both": ({"GROUP": "g", "METADATA": '{"a": 1}'}, {"METADATA": '{"b": 2}'}),
        "no map": ({"METADATA": "[1]"}, {"METADATA": '{"b": 2}'}),
        "tags": ({}, {"TAGS": []}, {"TAGS": ["x", "y", "x"]}, {"TAGS": ["z"], "METADATA": '{"b": 2}'}),
    }
    for id, calls in said.items():
        run = Run(id)
        for number, more in enumerate(calls):
            run.chat(f"c{number}", [message("user", "u")], message("assistant", "a"), at=10 * number, **more)
        store.append(run.spans)
    rows = {id: (tags, meta) for id, tags, meta in store.sql("SELECT id, tags, metadata FROM trajectories")[1]}
    shown = {id: metadata for id, (_, metadata) in rows.items()}
    assert shown == {"one": '{"a":1}', "both": '{"a":1}', "other": None, "no map": None, "tags": '{"b":2}'}
    assert rows["tags"][0] == ["x", "y"]
    for one in store.summaries():
        tags, metadata = rows[one.id]
        assert (list(one.tags), one.metadata) == (tags or [], json.loads(metadata or "{}")), one.id


def joined_runs() -> dict[str, list[SpanRow]]:
    """Runs of which several processes say tags and metadata, one of them without a root."""
    runs: dict[str, list[SpanRow]] = {}
    for id, own in (("both", {"TAGS": ["z", "b"], "METADATA": '{"root": 1.50, "é\\"": []}'}), ("others", {}), ("", {})):
        run = Run(id or "no root")
        run.update("later", at=30, TAGS=["b", "d"], METADATA='{"k": 3, "two": {"x": null}, "root": 0}')
        run.agent(
            "service", at=20, until=25, TAGS=["c", "b"], METADATA='{"k": 2, "one": null, "é\\"": 12345678901234567}'
        )
        run.tool("served", "look", at=40, until=50, TRAJECTORY_SPAN_COUNT=0, TAGS="no list", METADATA="[1]")
        run.update("empty", at=50, TAGS=[], METADATA="{}")
        of_a_call = {"TAGS": ["no"], "METADATA": '{"no": 1}'} if id else {}
        run.chat("c", [message("user", "u")], message("assistant", "a"), at=60, **of_a_call)
        runs[run.id] = run.end(**own) if id else run.spans
    runs["nothing"] = [*research_run("nothing"), *Run("nothing").spans]
    return runs


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in (2, 3))])
def test_what_several_processes_say_of_a_run_reads_the_same_everywhere(store: Store, data: DataDir, seed: int) -> None:
    runs = joined_runs()
    spans = [span for spans in runs.values() for span in spans]
    random.Random(seed).shuffle(spans)
    for start in range(0, len(spans), 5):
        store.append(spans[start : start + 5])
    rows = {id: (tags, meta) for id, tags, meta in store.sql("SELECT id, tags, metadata FROM trajectories")[1]}
    assert rows.keys() == runs.keys()
    assert store.sql("SELECT sum(recorded_agents), sum(calls) FROM trajectories")[1] == [(3 + 2 + 1, 3 + 7)]
    store.close()

    def asked(*command: str) -> Any:
        return json.loads(CliRunner().invoke(cli, [*command, "--json", "--dir", str(data.root)]).output)

    listed = {one["id"]: one for one in asked("ls")}
    for id, (tags, metadata) in rows.items():
        said = (tags or [], json.loads(metadata or "{}"))
        shown = {"tags": [], "metadata": {}, **asked("show", id)["trajectory"]}
        assert said == (listed[id]["tags"], listed[id]["metadata"]) == (shown["tags"], shown["metadata"]), id
    assert listed["both"]["tags"] == ["z", "b", "c", "d"]
    assert listed["both"]["metadata"] == {"root": 1.5, 'é"': [], "k": 3, "one": None, "two": {"x": None}}
    assert listed["others"]["incomplete"] == ""
    assert listed["no root"]["tags"] == ["c", "b", "d"]
    assert (rows["nothing"], listed["nothing"]["tags"]) == ((None, None), [])


def test_what_several_entries_of_one_run_say_does_not_depend_on_their_order(tmp_path: Path) -> None:
    """An id that was used again: what they agree on is said, as in the listing, and every error."""
    entries = []
    for number, (group, scenario) in enumerate([("g", "s"), (None, "s"), ("h", "s")]):
        run = Run("again", scenario=scenario)
        [root] = run.end(GROUP=group, PROJECT=f"p{number // 2}", ENTRY=f"agent:{number}")
        failed = {"status_code": 2, "status_message": f"failed {number}"}
        entries.append(msgspec.structs.replace(root, trace_id=f"{number + 1}" * 32, **failed))
    said = set()
    for at, order in enumerate(itertools.permutations(entries)):
        with Store.open(DataDir(tmp_path / str(at)), create=True) as store:
            for entry in order:
                store.append([entry])
            [row] = store.sql('SELECT "group", scenario, project, entry, error FROM trajectories')[1]
            [listed] = store.summaries()
            said.add((*row, listed.error))
            assert [len(store.trajectories(entry=f"agent:{number}")) for number in range(4)] == [1, 1, 1, 0]
    errors = "failed 0; failed 1; failed 2"
    assert said == {(None, "s", None, "agent:0", errors, errors)}


def test_of_two_rewards_with_one_id_and_time_one_counts_whatever_their_order(tmp_path: Path) -> None:
    first = Reward(id="r", trajectory_id="a", value=1.0, time_ns=5)
    for changed in ({"counts": False}, {"source": "judge"}, {"agent_id": "x"}):
        given = [first, msgspec.structs.replace(first, **changed)]
        found = set()
        for at, order in enumerate([given, given[::-1]]):
            with Store.open(DataDir(tmp_path / f"{at}{changed}"), create=True) as store:
                store.append(research_run("a"))
                for reward in order:
                    store.append([reward])
                rows = store.sql("SELECT source, agent_id, value FROM rewards")[1]
                [listed] = store.summaries()
                assert rows == [(one.source, one.agent_id, one.value) for one in listed.rewards]
                found.add(tuple(rows))
        assert len(found) == 1, changed


def test_help_and_docs_tell_every_column() -> None:
    heard = CliRunner().invoke(cli, ["sql", "--help"], terminal_width=100).output
    assert max(map(len, heard.splitlines())) <= 100
    for view in DESCRIBED:
        assert f"  {view.name}: {view.rows}" in heard
        for column in view.columns:
            assert f"    {column.name} " in heard
            assert column.meaning.split()[0] in heard
    assert as_markdown(DESCRIBED) in DOCS.read_text(encoding="utf-8")


def test_tool_calls_that_no_span_recorded_are_there_and_marked(store: Store) -> None:
    run = Run("run")
    start = [message("user", "u")]
    asked = message("assistant", calls=(("one", "look", '{"q": 1}'), ("two", "look", '{"q": 2}')))
    run.chat("a", start, asked, at=1)
    run.tool("t", "look", at=7, until=9, TOOL_CALL_ID="one", TOOL_CALL_RESULT="page 1")
    *spans, end = run.end(at=90)
    store.append([*spans, end])
    query = "SELECT trajectory_id, id, name, arguments, result, inferred, span_id IS NULL FROM tool_calls ORDER BY id"
    recorded = ("run", "one", "look", None, "page 1", False, False)
    assert store.sql(query)[1] == [recorded, ("run", "two", "look", '{"q": 2}', None, True, True)]
    again = Run("run")
    again.chat("b", [*start, asked, result("one", "page 1"), result("two", "page 2")], message("assistant", "x"), at=20)
    store.append(again.spans)
    assert store.sql(query)[1] == [recorded, ("run", "two", "look", '{"q": 2}', "page 2", True, True)]
    assert store.sql(query.replace("tool_calls", '"Tool_Calls"'))[1] == store.sql(query)[1]
    assert len(store.trajectory("run").tool_calls) == 2


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_reward_given_again_for_another_run_counts_there_alone(store: Store, is_listed: bool) -> None:
    """A reward id names one reward, in `ls` and to training as in SQL."""
    given = [Reward("score", run, at / 4, time_ns=at) for at, run in enumerate(("a", "c", "b"))]
    store.append([*research_run("a"), *research_run("b"), *research_run("c")])
    for now, last in ((given[0], given[0]), (given[2], given[2]), (given[1], given[2])):
        store.append([now])
        expected = [(last.trajectory_id, last.value)]
        if is_listed:
            assert [(one.id, r.value) for one in store.summaries() for r in one.rewards] == expected
        assert [(one.id, r.value) for one in store.trajectories() for r in one.rewards] == expected
        assert store.sql("SELECT trajectory_id, value FROM rewards")[1] == expected
    assert [(one.id, r.value) for one in store.summaries() for r in one.rewards] == expected


def rewarded_by_traces(count: int) -> list[SpanRow | Reward]:
    """Runs that name themselves, each rewarded under the id of its trace, every third under one of a conversation."""
    records: list[SpanRow | Reward] = []
    for number in range(count):
        id = f"run-{number}"
        spans = research_run(id)
        [trace] = {span.trace_id for span in spans}
        given_to = f"{trace}:conversation" if number % 3 == 0 else trace
        records += [*spans, Reward(f"reward-{number}", given_to, number / count, time_ns=T0)]
    return records


def test_rewards_given_to_traces_of_one_run_are_found_without_reading_its_spans(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 of them took 20 seconds, once, and said nothing."""
    store.append(rewarded_by_traces(9))
    expected = sorted((f"reward-{number}", f"run-{number}") for number in range(9))
    monkeypatch.setattr("arttrace.store.rows.span_membership._place", None)
    assert sorted(store.sql("SELECT id, trajectory_id FROM rewards")[1]) == expected


def test_a_reward_given_to_a_trace_follows_what_comes_later_into_the_trace(store: Store) -> None:
    """Another run of the trace that holds its root takes the reward over."""
    late, *early = sorted(research_run("one"), key=lambda span: span.parent_span_id is not None)
    store.append([*early, Reward("given", late.trace_id, 1.0, time_ns=T0)])
    assert store.sql("SELECT trajectory_id FROM rewards")[1] == [("one",)]
    above = agent("9", **{semconv.TRAJECTORY_ID: "two"})
    store.append([msgspec.structs.replace(above, trace_id=late.trace_id, start_ns=1, end_ns=2)])
    assert store.sql("SELECT trajectory_id FROM rewards")[1] == [("two",)]
    assert [one.id for one in store.trajectory("two").rewards] == ["given"]


def test_a_reward_given_to_a_trace_of_nobodys_run_leaves_those_of_others_to_their_runs(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    [run, *_] = research_run("one")
    event = SpanEvent(semconv.EVALUATION_EVENT, T0, {semconv.EVALUATION_SCORE: 0.5, semconv.REWARD_ID: "on a request"})
    request = SpanRow("9" * 32, "9" * 16, "GET /", T0, end_ns=T0 + 1, events=[event])
    store.append([request, *research_run("one"), Reward("given", run.trace_id, 1.0, time_ns=T0)])
    rewards = dict(store.sql("SELECT id, trajectory_id FROM rewards")[1])
    assert rewards == {"given": "one", "on a request": request.trace_id}
    run_span = agent("8", **{semconv.TRAJECTORY_ID: "two"})
    store.append([msgspec.structs.replace(run_span, trace_id=request.trace_id)])
    rewards = dict(store.sql("SELECT id, trajectory_id FROM rewards")[1])
    assert rewards == {"given": "one", "on a request": "two"}
    assert not caplog.records


def test_the_first_look_at_traces_is_reported(store: Store) -> None:
    heard: list[tuple[int, int]] = []
    spans = [span for number in range(3) for span in research_run(f"run-{number}")]
    other = {semconv.TRAJECTORY_ID}
    store.append(
        msgspec.structs.replace(span, attributes={k: v for k, v in span.attributes.items() if k not in other})
        for span in spans
    )
    with reading.reading_reported(lambda total: lambda done: heard.append((done, total))):
        store.sql("SELECT count(*) FROM spans")
    assert heard == [(3, 3)]
