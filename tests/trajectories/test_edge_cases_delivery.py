"""What delivery does to spans: twice, late, torn, reordered, or never. Each test states its outcome and the rule of
docs/architecture.md or decision of the reconstruction that forces it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest
from simulated_agent import Run, message, research_run, result

from arttrace.records import semconv
from arttrace.records.message import MessageTexts
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanLink, SpanRow
from arttrace.records.trajectory import Relation, Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories, sequences
from arttrace.trajectories.decoding import operation
from arttrace.trajectories.identity import links, membership


def built(spans: list[SpanRow]) -> Trajectory:
    [trajectory] = build_trajectories(spans)
    return trajectory


def test_an_exact_duplicate_span() -> None:
    """Nothing changes, nothing is a conflict: every stage is idempotent by (trace, span) (rule 2)."""
    spans = research_run()
    assert built(spans + spans) == built(spans)
    assert built(spans + spans).conflicts == 0


def test_the_same_id_with_different_content() -> None:
    """The complete, then the longer, then the one of larger hash wins, in any order, and the conflict is counted."""
    spans = research_run()
    longer = msgspec.structs.replace(spans[0], attributes={**spans[0].attributes, "note": "x"})
    twins = [msgspec.structs.replace(spans[0], attributes={**spans[0].attributes, "note": n}) for n in "xy"]
    assert built([*spans, longer]) == built([longer, *spans])
    assert built([*spans, longer]).revision == built([longer, *spans[1:]]).revision
    assert built([*spans, *twins]) == built([*twins[::-1], *spans])
    assert (built([*spans, longer]).conflicts, built([*spans, *twins]).conflicts) == (1, 2)


def test_a_call_in_progress_gives_way_to_the_complete_one() -> None:
    """The complete of two spans with one id wins; until it comes the trajectory is incomplete, with the reason (3)."""
    spans = research_run()
    begun = msgspec.structs.replace(spans[0], end_ns=0, attributes={**spans[0].attributes, "padding": "x" * 99999})
    waiting = built([begun, *spans[1:]])
    assert waiting.incomplete == "call in progress"
    assert built([begun, *spans]) == built([*spans, begun]) == built(spans)
    assert (built(spans).incomplete, built(spans).conflicts) == ("", 0)


def test_a_run_in_progress_shows_what_it_has_done() -> None:
    """A root of which only the beginning is known makes an incomplete trajectory with its entry (rule 3)."""
    spans = research_run()
    root = msgspec.structs.replace(spans[-1], end_ns=0)
    running = built([*spans[:-1], root])
    assert (running.incomplete, running.entry, len(running.calls)) == ("run in progress", "agent:run", 7)
    assert running.end_ns == max(span.end_ns for span in spans[:-1])


def test_a_child_before_its_parent() -> None:
    """The same trajectory: order never matters (rule 4)."""
    spans = research_run()
    assert built(spans[::-1]) == built(spans)


def test_a_parent_that_never_arrives() -> None:
    """A placeholder agent takes its place and the trajectory is incomplete; nothing below it is lost (rule 3)."""
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1, parent="feedfeedfeedfeed")
    trajectory = built(run.end())
    assert trajectory.incomplete == "parent missing"
    assert [agent.placeholder for agent in trajectory.agents] == [False, True]
    assert trajectory.calls[0].agent_id == trajectory.agents[1].id


def test_a_span_after_completion_makes_a_new_revision() -> None:
    """The same id at another revision: late spans give a new revision, so that a trained one is not trained again
    unseen (rule 3)."""
    spans = research_run()
    before = built([*spans[:3], *spans[4:]])
    after = built(spans)
    assert (before.id, before.incomplete, after.incomplete) == (after.id, "1 of 8 spans missing", "")
    assert before.revision != after.revision


def joined_process(run: Run, name: str, calls: int) -> None:
    """What a child process or a server did that joined the run: its local root stands under the run's and has a count
    of its own, which the run's count knows nothing of."""
    head = run.agent(name, at=100, until=200, TRAJECTORY_SPAN_COUNT=calls)
    for number in range(calls):
        said = message("assistant", "x")
        run.chat(f"{name}{number}", [message("user", name)], said, at=110 + 10 * number, parent=head)


def test_a_gap_in_a_process_that_joined_is_missed() -> None:
    """Every local root counts its own process only: the counts add up, wherever the roots stand (rule 3)."""
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "y"), at=1)
    run.end()
    joined_process(run, "child", 2)
    joined_process(run, "server", 1)
    assert built(run.spans).incomplete == ""
    for lost in ("a", "child1", "server0"):
        rest = [span for span in run.spans if span.span_id != run.span_id(lost)]
        assert built(rest).incomplete == "1 of 7 spans missing"


def test_a_missing_root() -> None:
    """Its children hang on a placeholder root, incomplete (rule 3)."""
    trajectory = built(research_run()[:-1])
    assert (trajectory.incomplete, trajectory.agents[0].placeholder, len(trajectory.calls)) == ("root missing", True, 7)


def test_a_call_outside_any_trajectory() -> None:
    """It is recorded under its trace and says that it has no root; nothing is dropped without a word (rule 8)."""
    run = Run()
    run.chat("a", [message("user", "u")], message("assistant", "x"), at=1, TRAJECTORY_ID=None)
    trajectory = built([msgspec.structs.replace(run.spans[0], parent_span_id=None)])
    assert (trajectory.id, trajectory.incomplete) == (run.trace_id, "no root: called outside any trajectory")


def test_clock_skew() -> None:
    """A sub-agent whose clock is an hour behind keeps its place: the tree is never built by time."""
    spans = research_run()
    run = Run()
    inner = run.agent("expert", at=20, until=30)
    run.chat("c", [message("user", "u")], message("assistant", "x"), at=25, parent=inner)
    spans = run.end()
    hour = 3600 * 10**9
    skewed = [
        msgspec.structs.replace(span, start_ns=span.start_ns - hour, end_ns=span.end_ns - hour)
        if span.span_id in (inner, run.span_id("c"))
        else span
        for span in spans
    ]
    for trajectory in (built(spans), built(skewed)):
        assert [(agent.name, agent.parent_id) for agent in trajectory.agents] == [
            ("planner", None),
            ("expert", run.root_id),
        ]
        assert trajectory.calls[0].agent_id == inner


def test_equal_timestamps() -> None:
    """Ties are broken by span id, so any order gives one and the same trajectory and training targets (rule 4)."""
    spans = [msgspec.structs.replace(span, start_ns=5, end_ns=5) for span in research_run()]
    expected = built(spans)
    for seed in range(5):
        shuffled = random.Random(seed).sample(spans, len(spans))
        assert built(shuffled) == expected
        assert sequences(built(shuffled)) == sequences(expected)


def test_shuffled_delivery_in_any_batches(tmp_path: Path) -> None:
    """The store holds the same trajectories whatever the batches (rule 4)."""
    spans = research_run("a") + research_run("b")
    shuffled = random.Random(1).sample(spans, len(spans))
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        for start in range(0, len(shuffled), 3):
            store.append(shuffled[start : start + 3])
        assert store.trajectories() == build_trajectories(spans)


def test_a_batch_retried_after_a_lost_ack(tmp_path: Path) -> None:
    """Delivered again whole, counted once (rule 2)."""
    spans = research_run("a")
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append(spans)
        store.append(spans)
        assert store.trajectories() == build_trajectories(spans)
        assert store.sql("SELECT count(*) FROM spans")[1] == [(len(spans),)]


def test_the_form_in_which_the_input_was_written_down(tmp_path: Path) -> None:
    """(id, revision) is the same for JSON text with any spacing between the messages, for a list of their texts, and
    for what the store gives back: only what was said counts (rule 4)."""
    spans = research_run("a")
    forms: list[list[SpanRow]] = [spans, [], []]
    for span in spans:
        text = span.attributes.get(semconv.INPUT_MESSAGES)
        texts = [json.dumps(item) for item in json.loads(text)] if text else None
        spaced = " ,\n".join(texts or ())
        for form, value in ((1, f"[ {spaced} ]"), (2, MessageTexts(texts or ()))):
            attributes = {**span.attributes, semconv.INPUT_MESSAGES: value} if texts else span.attributes
            forms[form].append(msgspec.structs.replace(span, attributes=attributes))
    assert built(forms[1]) == built(forms[2]) == built(spans)
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append(spans)
        assert store.trajectories() == [built(spans)]


def test_rewards_that_arrive_late_or_twice(tmp_path: Path) -> None:
    """A reward after the run is on it; the same id twice is one reward, the later wins; the revision stays, since it is
    that of the spans (rules 2, 3)."""
    spans = research_run("a")
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append(spans)
        before = store.trajectory("a")
        first: list[Record] = [Reward(id="r", trajectory_id="a", value=0.25, time_ns=1)]
        store.append(first)
        store.append(first)
        assert [reward.value for reward in store.trajectory("a").rewards] == [0.25]
        store.append([Reward(id="r", trajectory_id="a", value=1.0, time_ns=2)])
        store.append(first)
        after = store.trajectory("a")
        assert ([reward.value for reward in after.rewards], after.revision) == ([1.0], before.revision)


@pytest.mark.parametrize("agents", [2_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_a_trace_of_many_thousand_spans(agents: int) -> None:
    """Built whole: twins with one and the same prompt stay apart by flow, and no step looks at all pairs."""
    run = Run()
    start = [message("system", "the same for all"), message("user", "begin")]
    for number in range(agents):
        history = list(start)
        flow = f"E{number + 1}"
        asked = message("assistant", calls=((f"c{number}", "look", "{}"),))
        history.append(run.chat(f"a{number}", history, asked, at=3 * number, flow=flow, above="E0"))
        run.tool(
            f"t{number}", "look", at=3 * number + 1, until=3 * number + 2, TOOL_CALL_ID=f"c{number}", EXECUTION_ID=flow
        )
        history.append(result(f"c{number}", "found"))
        run.chat(f"b{number}", history, message("assistant", "done"), at=3 * number + 2, flow=flow, above="E0")
    trajectory = built(run.end(at=10**6))
    assert (len(trajectory.calls), len(trajectory.tool_calls), len(trajectory.agents)) == (
        2 * agents,
        agents,
        agents + 1,
    )
    assert trajectory.incomplete == ""
    assert {call.relation for call in trajectory.calls} == {Relation.SUB_AGENT, Relation.EXTENDS}


def test_of_many_agents_that_lost_their_parents_each_span_is_asked_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them in a trace of 10,000 spans took 8 seconds: each looked at all the spans."""
    asked = 0
    of_a_run = operation.is_of_a_run

    def counted(span: SpanRow) -> bool:
        nonlocal asked
        asked += 1
        return of_a_run(span)

    for module in (links, membership):
        monkeypatch.setattr(module, "is_of_a_run", counted)
    agent = {semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT}
    asker = SpanRow("a" * 32, "a" * 16, "asker", 1, 2, attributes=agent)
    to_it = [SpanLink(asker.trace_id, asker.span_id)]
    spans = [asker]
    spans += [SpanRow("b" * 32, f"{n:016x}", "", 1, 2, f"c{n:015x}", attributes=agent, links=to_it) for n in range(200)]
    whole = built(spans)
    assert (len(whole.agents), whole.incomplete) == (201, "parent missing")
    assert asked < 10 * len(spans)
