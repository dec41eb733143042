"""Trajectories that are less than a trace (one of its conversations) or more than one (traces joined by links), through
the store: what the pure reconstruction says is what is listed, shown, rewarded, consumed and pruned."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import msgspec
import pytest
from click.testing import CliRunner
from simulated_agent import Run, message, research_run
from stored_runs import SAYS_LESS
from units import agree, caller, linked, sessions

from arttrace.commands import cli
from arttrace.records import semconv
from arttrace.records.group import Grouping
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.store import Store
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

HOUR = 3_600_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


# --- conversations ----------------------------------------------------------------------------------------------


def test_conversations_of_one_trace_are_listed_and_shown_one_by_one(data: DataDir) -> None:
    spans = sessions("one", "two")
    trace = spans[0].trace_id
    with Store.open(data, create=True) as store:
        store.append(spans + research_run("other"))
        assert store.trajectories() == build_trajectories(spans + research_run("other"))
        assert [one.id for one in store.summaries()] == [f"{trace}:two", f"{trace}:one", "other"]
        assert [one.id for one in store.summaries()] == [f"{trace}:two", f"{trace}:one", "other"], "as kept"
        assert [one.id for one in store.summaries(limit=1)] == [f"{trace}:two"]
        agree(store)
        assert store.trajectory(f"{trace}:one").id == store.trajectory(f"{trace}:o").id == f"{trace}:one"
        with pytest.raises(StoreError, match="2 trajectories begin with"):
            store.trajectory(trace)
        with pytest.raises(StoreError, match="no trajectory"):
            store.trajectory(f"{trace}:three")
        assert [t.id for t in store.trajectories(ids=[f"{trace}:two"])] == [f"{trace}:two"]
        assert [t.id for t in store.trajectories(group=f"{trace}:two")] == [f"{trace}:two"]
        assert [one.id for one in store.summaries(group=f"{trace}:two")] == [f"{trace}:two"]
        assert sorted(span.span_id for span in store.spans(f"{trace}:two")) == sorted(s.span_id for s in spans)
    shown = CliRunner().invoke(cli, ["show", f"{trace}:two", "--dir", str(data.root)])
    assert shown.exit_code == 0, shown.output
    listed = CliRunner().invoke(cli, ["ls", "--dir", str(data.root)])
    assert "two" in listed.output


def test_a_second_conversation_that_comes_late_splits_the_trace(data: DataDir) -> None:
    spans = sessions("one", "two")
    trace = spans[0].trace_id
    with Store.open(data, create=True) as store:
        store.append(spans[:2])
        assert [one.id for one in store.summaries()] == [trace]
        agree(store)
        store.append(spans[2:])
        assert {one.id for one in store.summaries()} == {f"{trace}:one", f"{trace}:two"}
        agree(store)


def test_a_reward_of_what_is_no_conversation_of_its_own_is_the_traces(data: DataDir) -> None:
    """Given while the trace held two, or by somebody who did not know that it holds one."""
    spans = sessions("one")
    trace = spans[0].trace_id
    with Store.open(data, create=True) as store:
        store.append([*spans, Reward(id="r", trajectory_id=f"{trace}:two", value=0.5)])
        assert [(one.id, len(one.rewards)) for one in store.summaries()] == [(trace, 1)]
        agree(store)
        store.append(sessions("one", "two"))
        assert {one.id: len(one.rewards) for one in store.summaries()} == {f"{trace}:one": 0, f"{trace}:two": 1}
        agree(store)


def test_explicit_ids_with_a_colon_are_their_own(data: DataDir) -> None:
    """`run:sub` is no conversation of `run`, though they share a trace."""
    run = Run("run")
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1)
    run.chat("b", [message("user", "v")], message("assistant", "y"), at=2, TRAJECTORY_ID="run:sub")
    spans = run.end()
    with Store.open(data, create=True) as store:
        store.append(spans)
        assert sorted(one.id for one in store.summaries()) == ["run", "run:sub"]
        agree(store)
        assert (store.trajectory("run").id, store.trajectory("run:sub").id) == ("run", "run:sub")
        assert store.trajectories() == build_trajectories(spans)


def test_conversations_are_rewarded_and_consumed_one_by_one(data: DataDir) -> None:
    spans = sessions("one", "two")
    trace = spans[0].trace_id
    judged = SpanEvent("gen_ai.evaluation.result", 5, {"gen_ai.evaluation.score.value": 0.5})
    spans[3] = msgspec.structs.replace(spans[3], events=[judged])  # a call of the second conversation
    with Store.open(data, create=True) as store:
        store.append(spans)
        assert [len(one.rewards) for one in store.summaries()] == [1, 0]
        store.append([Reward(id="r", trajectory_id=f"{trace}:one", value=1.0)])
        assert [[r.value for r in one.rewards] for one in store.summaries()] == [[0.5], [1.0]]
        agree(store)
        assert [r.value for r in store.trajectory(f"{trace}:two").rewards] == [0.5]
        revision = store.trajectory(f"{trace}:one").revision
        store.append([PolicyStep("p", 1, "adapter", consumed=(Consumed(f"{trace}:one", revision),))])
        assert [t.id for t in store.trajectories(unconsumed_by="p")] == [f"{trace}:two"]
        assert [one.id for one in store.summaries(unconsumed_by="p")] == [f"{trace}:two"]
        assert [one.id for one in store.summaries(unconsumed_by="p", limit=1)] == [f"{trace}:two"]
        assert len(store.summaries(unconsumed_by="other")) == 2


@pytest.mark.parametrize("listed", [True, False])
def test_what_a_trace_has_besides_conversations_is_consumed_alone(data: DataDir, listed: bool) -> None:
    """It has the trace's id, which is no word about the conversations."""
    spans = sessions("one", "two", "three")
    alone = msgspec.structs.replace(spans[4], attributes={semconv.OPERATION_NAME: "invoke_agent"})
    spans = [*spans[:4], alone, *spans[5:]]
    trace = spans[0].trace_id
    with Store.open(data, create=True) as store:
        store.append(spans)
        if listed:
            assert {one.id for one in store.summaries()} == {trace, f"{trace}:one", f"{trace}:two"}
        store.append([PolicyStep("p", 1, "x", consumed=(Consumed(trace, "r"),))])
        left = {f"{trace}:one", f"{trace}:two"}
        for _ in range(2):
            assert {one.id for one in store.trajectories(unconsumed_by="p")} == left
            assert {one.id for one in store.summaries(unconsumed_by="p")} == left


def test_rewards_of_conversations_go_with_them(data: DataDir) -> None:
    spans = sessions("one", "two")
    later = [
        msgspec.structs.replace(span, start_ns=span.start_ns + HOUR, end_ns=span.end_ns + HOUR)
        for span in sessions("one", "two", trace="later")
    ]
    kept = f"{later[0].trace_id}:one"
    with Store.open(data, create=True) as store:
        store.append(spans + later)
        store.append([Reward(id=id, trajectory_id=id, value=1.0) for id in (f"{spans[0].trace_id}:one", kept)])
        store.prune(before_ns=later[0].start_ns)
        assert {one.id for one in store.summaries()} == {kept, f"{later[0].trace_id}:two"}
        assert store.sql("SELECT id FROM reward_records")[1] == [(kept,)]


def test_conversations_keep_their_groups_when_others_are_pruned(data: DataDir) -> None:
    spans = sessions("one", "two")
    ids = [f"{spans[0].trace_id}:{name}" for name in ("one", "two")]
    later = [
        msgspec.structs.replace(span, start_ns=span.start_ns + 9 * HOUR, end_ns=span.end_ns + 9 * HOUR)
        for span in spans
    ]
    old = research_run("old")
    with Store.open(data, create=True) as store:
        store.append(old + later)
        store.append([Grouping("g", "by hand", dict.fromkeys(ids, "mine"), time_ns=1)])
        assert [one.id for one in store.trajectories(group="mine")] == ids
        assert store.prune(before_ns=max(span.end_ns for span in old) + HOUR).trajectories == 1
        assert [one.id for one in store.trajectories()] == ids
        assert [one.id for one in store.trajectories(group="mine")] == ids
        assert {one.group for one in store.summaries()} == {"mine"}


def test_a_reward_of_a_trace_that_is_split_later_goes_to_its_root(data: DataDir) -> None:
    spans = sessions("one", "two")
    trace = spans[0].trace_id
    with Store.open(data, create=True) as store:
        store.append(spans[:2])
        store.append([Reward(id="r", trajectory_id=trace, value=0.5)])
        assert [(one.id, len(one.rewards)) for one in store.summaries()] == [(trace, 1)]
        agree(store)
        store.append(spans[2:])
        expected = {f"{trace}:one": [0.5], f"{trace}:two": []}
        assert {one.id: [r.value for r in one.rewards] for one in store.summaries()} == expected
        assert [r.value for r in store.trajectory(f"{trace}:one").rewards] == [0.5]
        store.append([Reward(id="late", trajectory_id=trace, value=0.25)])
        expected[f"{trace}:one"].insert(0, 0.25)
        assert {one.id: sorted(r.value for r in one.rewards) for one in store.summaries()} == expected
        agree(store)
        assert {t.id: sorted(r.value for r in t.rewards) for t in store.trajectories()} == expected


def test_an_agent_above_two_conversations_joins_them(data: DataDir) -> None:
    """Also one whose clock is late."""
    spans = sessions("one", "two")
    trace = spans[0].trace_id
    root = msgspec.structs.replace(
        spans[-1], attributes={"gen_ai.operation.name": "invoke_agent"}, start_ns=spans[-1].end_ns
    )
    with Store.open(data, create=True) as store:
        store.append([*spans[:-1], root, *research_run("other")])
        store.append([Reward(id="r", trajectory_id=trace, value=0.5)])
        rewarded = {one.id: len(one.rewards) for one in store.summaries()}
        assert rewarded == {trace: 1, "other": 0}
        agree(store)


def test_a_span_without_an_id_is_of_the_run_that_it_stands_in(data: DataDir) -> None:
    """A foreign SDK's call below our agent, in any order of arrival."""
    run = Run("run")
    run.chat("ours", [message("user", "u")], message("assistant", "x"), at=1)
    run.chat("theirs", [message("user", "v")], message("assistant", "y"), at=2, TRAJECTORY_ID=None)
    *calls, root = run.end()
    with Store.open(data, create=True) as store:
        for piece in (calls[1:], calls[:1], [root]):
            store.append(piece)
            agree(store)
        assert [(one.id, one.calls) for one in store.summaries()] == [("run", 2)]


# --- links ------------------------------------------------------------------------------------------------------


def test_a_linked_trace_is_part_of_the_run_that_it_links_to(data: DataDir) -> None:
    main, tool = caller()
    other = linked("other", tool)
    deep = linked("deep", (other[-1].trace_id, other[-1].span_id))
    spans = main + other + deep + research_run("beside")
    with Store.open(data, create=True) as store:
        store.append(spans)
        assert store.trajectories() == build_trajectories(spans)
        assert len(store.trajectory("main").agents) == 3
        assert sorted(one.id for one in store.summaries()) == ["beside", "main"]
        agree(store)
        assert [one.id for one in store.summaries(limit=2)] == [one.id for one in store.summaries()]
        with pytest.raises(StoreError, match="no trajectory"):
            store.trajectory(other[0].trace_id)
        assert len(store.spans("main")) == len(main + other + deep)
    found = CliRunner().invoke(cli, ["export", "--dir", str(data.root)])
    exported = re.findall(r'"traceId":"(\w+)","spanId":"(\w+)"', found.stdout)
    links = 2
    assert len(exported) == len(spans) + links
    assert set(exported) == {(span.trace_id, span.span_id) for span in spans}


@pytest.mark.parametrize("has_parent", [True, False])
def test_a_run_that_links_to_a_span_of_nobodys_run_is_listed(data: DataDir, has_parent: bool) -> None:
    """An agent that works off a queue links to what put its task there, in the trace of a program without agents."""
    above = "e" * 16
    other = linked("other", ("b" * 32, "1" * 16))
    sent = SpanRow("b" * 32, "1" * 16, "queue send", 5, 6, parent_span_id=above if has_parent else None)
    queue = SpanRow("b" * 32, above, "program", 4, 9)
    so_far: list[SpanRow] = []
    with Store.open(data, create=True) as store:
        for piece in [other[:-1], [sent], other[-1:], [queue]]:
            store.append(piece)
            so_far += piece
            assert store.trajectories() == build_trajectories(so_far)
            assert [(one.id, one.calls) for one in store.summaries()] == [(other[0].trace_id, 1)]
            agree(store)
        assert store.trajectory(other[0].trace_id).incomplete == ""


@pytest.mark.parametrize("main_first", [True, False])
def test_what_comes_in_a_linked_trace_is_never_missed(data: DataDir, main_first: bool) -> None:
    """Kept summaries of a joined trajectory go when a span comes in any of its traces, in any order."""
    main, tool = caller()
    other = linked("other", tool)
    late = msgspec.structs.replace(other[0], span_id="f" * 16)
    so_far: list[SpanRow] = []
    with Store.open(data, create=True) as store:
        for piece in [main, other[-1:], other[:-1], [late]] if main_first else [other, main, [late]]:
            store.append(piece)
            so_far += piece
            expected = {t.id: t.revision for t in build_trajectories(so_far)}
            assert {one.id: one.revision for one in store.summaries()} == expected
            agree(store)
        assert store.trajectory("main").revision == expected["main"]


def test_a_reward_on_a_span_of_a_linked_trace_is_the_runs(data: DataDir) -> None:
    main, tool = caller()
    other = linked("other", tool)
    judged = SpanEvent("gen_ai.evaluation.result", 5, {"gen_ai.evaluation.score.value": 0.5})
    other[0] = msgspec.structs.replace(other[0], events=[judged])
    with Store.open(data, create=True) as store:
        store.append(main + other)
        assert [[r.value for r in one.rewards] for one in store.summaries()] == [[0.5]]
        agree(store)


def test_a_reward_on_a_span_below_one_of_several_runs_is_that_runs(data: DataDir) -> None:
    """A request, say, which is no part of a run itself."""
    event = SpanEvent(semconv.EVALUATION_EVENT, 3, {semconv.EVALUATION_SCORE: 0.5, semconv.REWARD_ID: "given"})
    spans = [
        SpanRow("a" * 32, id * 16, "agent", start, 9, attributes={semconv.TRAJECTORY_ID: run})
        for id, start, run in (("1", 1, "x"), ("2", 2, "y"))
    ]
    spans.append(SpanRow("a" * 32, "3" * 16, "POST", 3, 9, "2" * 16, events=[event]))
    with Store.open(data, create=True) as store:
        store.append(spans)
        assert [(run.id, [one.id for one in run.rewards]) for run in store.trajectories()] == [
            ("x", []),
            ("y", ["given"]),
        ]
        assert store.sql("SELECT id, trajectory_id FROM rewards")[1] == [("given", "y")]


@pytest.mark.parametrize("reward_first", [True, False])
@pytest.mark.parametrize("rewarded", ["", ":one"])
def test_a_reward_of_the_trace_of_a_run_that_names_itself_is_the_runs(
    data: DataDir, rewarded: str, reward_first: bool
) -> None:
    """As feedback is given, or a score imported, by somebody who knows the trace alone."""
    main, _ = caller()
    reward = Reward(id="r", trajectory_id=main[0].trace_id + rewarded, value=0.5)
    with Store.open(data, create=True) as store:
        store.append(research_run("beside"))
        for given in ([reward], main[:1], main[1:]) if reward_first else (main[:1], main[1:], [reward]):
            store.append(given)
            if len(store.summaries()) == 2:
                agree(store)
        assert store.sql("SELECT trajectory_id FROM rewards")[1] == [("main",)]
        query = "SELECT id, rewards['reward'], reward FROM trajectories ORDER BY id"
        assert store.sql(query)[1] == [("beside", None, None), ("main", 0.5, 0.5)]


@pytest.mark.parametrize("rewarded", ["", ":one"])
def test_a_reward_of_a_trace_that_is_linked_later_is_the_runs(data: DataDir, rewarded: str) -> None:
    main, tool = caller()
    other = linked("other", tool)
    trace = other[0].trace_id
    with Store.open(data, create=True) as store:
        store.append(other)
        store.append([Reward(id="r", trajectory_id=trace + rewarded, value=0.5)])
        assert [len(one.rewards) for one in store.summaries()] == [1]
        store.append(main)
        agree(store)
        assert [(one.id, len(one.rewards)) for one in store.summaries()] == [("main", 1)]
        store.append([Reward(id="late", trajectory_id=trace + rewarded, value=0.25)])
        assert [len(one.rewards) for one in store.summaries()] == [2]
        assert [len(one.rewards) for one in store.trajectories()] == [2]
        store.prune(before_ns=main[0].start_ns)
        assert [len(one.rewards) for one in store.summaries()] == [2]
        agree(store)


def test_linked_traces_go_together(data: DataDir) -> None:
    main, tool = caller()
    other = [
        msgspec.structs.replace(span, start_ns=span.start_ns + HOUR, end_ns=span.end_ns + HOUR)
        for span in linked("other", tool)
    ]
    with Store.open(data, create=True) as store:
        store.append(main + other + research_run("gone"))
        whole = store.trajectory("main")
        store.prune(before_ns=other[0].start_ns)
        assert store.trajectories() == [whole]


def test_links_of_a_store_that_did_not_keep_them_are_found(data: DataDir) -> None:
    main, tool = caller()
    with Store.open(data, create=True) as store:
        store.append(main + linked("other", tool))
    with duckdb.connect(str(data.store)) as connection:
        connection.execute(f"DROP TABLE links; {SAYS_LESS}")
    with Store.open(data) as store:
        assert [len(t.agents) for t in store.trajectories()] == [2]
