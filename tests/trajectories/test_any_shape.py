"""Spans whose parents, links, tools and flows of control make any graph at all, cycles included: every reader ends,
nothing is lost, and every agent stands below the root."""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path
from types import FrameType

import pytest
from bounded_lines import bounded_lines
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from simulated_agent import T0, Run, message

from arttrace.records import semconv
from arttrace.records.span import SpanLink, SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.rewards.transcript import transcript
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories, sequences
from arttrace.trajectories.conversations import conversations
from arttrace.trajectories.identity.ancestors import nearest, tops, without_cycles
from arttrace.trajectories.identity.stand_ins import stand_in
from arttrace.views.terminal import trajectory_view
from trainer.rollouts.replay import plan_replay

TRACES, SPANS = ("a" * 32, "b" * 32), 6
LINES = 5_000
"""Several times what building runs run for a span, or all readers of them together."""
numbers = st.integers(0, SPANS - 1)
places = st.tuples(st.sampled_from(TRACES), numbers)


def span_id(number: int) -> str:
    return f"{number + 1:016x}"


@st.composite
def span(draw: st.DrawFn, trace: str, number: int) -> SpanRow:
    operation = draw(st.sampled_from(["invoke_agent", "execute_tool", "chat", "chat", None]))
    attributes = {
        semconv.OPERATION_NAME: operation,
        semconv.TRAJECTORY_ID: draw(st.sampled_from([None, None, "run", "other"])),
        semconv.CONVERSATION_ID: draw(st.sampled_from([None, None, "one", "two"])),
        semconv.EXECUTION_ID: draw(st.sampled_from([None, "E0", "E1", "E2"])),
        semconv.EXECUTION_PARENT_ID: draw(st.sampled_from([None, "E0", "E1", "E2"])),
        semconv.TOOL_CALL_ID: draw(st.sampled_from([None, "c0", "c1"])),
        semconv.ENTRY: draw(st.sampled_from([None, None, "agent:run"])) if operation == "invoke_agent" else None,
    }
    if operation == "chat":
        said = draw(st.sampled_from(["yes", "no"]))
        asked = ((draw(st.sampled_from(["c0", "c1"])), "ask", "{}"),) if draw(st.booleans()) else ()
        run = Run("template")
        run.chat("c", [message("user", draw(st.sampled_from("uv")))], message("assistant", said, calls=asked), at=1)
        attributes = {**run.spans[0].attributes, **attributes}
    parent = draw(st.one_of(st.none(), numbers))
    return SpanRow(
        trace_id=trace,
        span_id=span_id(number),
        parent_span_id=None if parent is None else span_id(parent),
        name=operation or "work",
        start_ns=T0 + draw(st.integers(0, 3)),
        end_ns=T0 + 10,
        attributes={name: value for name, value in attributes.items() if value is not None},
        links=[SpanLink(trace, span_id(number)) for trace, number in draw(st.lists(places, max_size=2))],
    )


@st.composite
def graphs(draw: st.DrawFn) -> list[SpanRow]:
    """Up to twelve spans, of which any may name any, itself too, as parent or link; some that are named are not
    there."""
    kept = draw(st.lists(places, unique=True, min_size=1, max_size=10))
    return [draw(span(trace, number)) for trace, number in kept]


def read_whole(trajectory: Trajectory, spans: list[SpanRow]) -> None:
    """Every walk that a reader makes."""
    with bounded_lines(shape(spans), LINES * len(spans)):
        _read_whole(trajectory, spans)


def built(spans: list[SpanRow]) -> list[Trajectory]:
    with bounded_lines(shape(spans), LINES * len(spans)):
        return build_trajectories(spans)


def shape(spans: list[SpanRow]) -> str:
    """Who names whom, for the first spans."""
    return "; ".join(
        f"{one.name} {one.span_id} under {one.parent_span_id}"
        + "".join(f" linked to {link.span_id}" for link in one.links)
        for one in spans[:12]
    )


def _read_whole(trajectory: Trajectory, spans: list[SpanRow]) -> None:
    made, report = sequences(trajectory)
    Console(file=io.StringIO(), width=100).print(trajectory_view(trajectory, made, report, None))
    transcript(trajectory)
    conversations(trajectory)
    plan_replay([(trajectory, spans)], tools="live")


@settings(max_examples=150, deadline=None)
@given(spans=graphs(), seed=st.integers(0, 2**32))
def test_every_shape_is_read_whole_in_any_order(spans: list[SpanRow], seed: int) -> None:
    found = built(spans)
    shuffled = random.Random(seed).sample(spans, len(spans))
    assert built([*shuffled, *spans[:3]]) == found
    called = sorted((c.call.trace_id, c.call.span_id[-16:]) for trajectory in found for c in trajectory.calls)
    assert called == sorted(
        (s.trace_id, s.span_id) for s in spans if s.attributes.get(semconv.OPERATION_NAME) == "chat"
    )
    for trajectory in found:
        above = {agent.id: agent.parent_id for agent in trajectory.agents}
        assert set(tops(without_cycles(above)[0]).values()) == {trajectory.agents[0].id}
        assert not without_cycles(above)[1]
        read_whole(trajectory, spans)


@pytest.mark.parametrize("rings", [1, 2, 300])
def test_tools_in_a_ring_hang_no_reader_of_the_store(rings: int, tmp_path: Path) -> None:
    """`execute_tool` spans that are their own ancestors, with calls in them, in flows of control of their own."""
    run = Run()
    for number in range(rings):
        above = run.span_id(f"t{(number + 1) % rings}")
        tool = run.tool(f"t{number}", "ask", at=number, until=90, parent=above, EXECUTION_ID=f"E{number}")
        said = message("assistant", "x")
        run.chat(f"c{number}", [message("user", "u")], said, at=20, parent=tool, flow=f"F{number}", above=f"E{number}")
    spans = run.end()
    built(spans)
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append(spans)
        [summary] = store.summaries()
        trajectory = store.trajectory("run")
        assert store.sql("SELECT calls, recorded_tool_calls FROM trajectories")[1] == [(rings, rings)]
    assert summary.incomplete == trajectory.incomplete == "parents in a cycle"
    assert (len(trajectory.calls), len(trajectory.tool_calls)) == (rings, rings)
    read_whole(trajectory, spans)


def test_flows_of_control_in_a_ring_make_no_agents_that_are_each_others_parents() -> None:
    run = Run()
    for number, (flow, above) in enumerate((("E1", "E2"), ("E2", "E1"), ("E3", "E3"))):
        asked = message("assistant", "x", calls=((f"c{number}", "ask", "{}"),))
        run.chat(f"c{number}", [message("user", f"u{number}")], asked, at=number, flow=flow, above=above)
    [trajectory] = built(run.end())
    above_of = {agent.id: agent.parent_id for agent in trajectory.agents}
    assert len(above_of) == 4
    assert set(tops(above_of).values()) == {run.root_id}
    out = io.StringIO()
    Console(file=out, width=100).print(trajectory_view(trajectory, *sequences(trajectory), None))
    assert out.getvalue().count("agent sub-agent") == 3


def cost(spans: list[SpanRow]) -> int:
    """Python functions called to build the trajectory of these spans: a count that no machine's speed changes."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        build_trajectories(spans)
    finally:
        sys.setprofile(None)
    return calls


def nested_tools(depth: int) -> list[SpanRow]:
    run, above = Run(), None
    for number in range(depth):
        above = run.tool(f"t{number}", "ask", at=number, until=10**6, parent=above, EXECUTION_ID=f"E{number}")
    for number in range(depth):
        run.chat(f"c{number}", [message("user", "u")], message("assistant", "x"), at=10**5, parent=above, flow="F")
    return run.end(at=10**6)


def test_nested_tools_cost_their_number() -> None:
    assert cost(nested_tools(800)) < 2.5 * cost(nested_tools(400))


def refused_below_each_other(depth: int, top: int | None) -> list[SpanRow]:
    links = [(TRACES[1], span_id(number)) for number in range(8)]
    found = []
    for number in range(depth):
        parent = number - 1 if number else top
        above = None if parent is None else span_id(parent)
        one = stand_in("why", trace_id=TRACES[0], span_id=span_id(number), parent_span_id=above, links=links)
        assert one is not None
        found.append(one)
    return found


@pytest.mark.parametrize("top", [None, 999, 400], ids=["nothing", "what is not there", "each other"])
def test_refused_spans_below_each_other_cost_their_number(top: int | None) -> None:
    few, many = (cost(refused_below_each_other(depth, top)) for depth in (400, 800))
    assert many < 2.5 * few


def refused_beside_many_runs(number: int, *, of_own_traces: bool, linked: bool) -> list[SpanRow]:
    """As many runs as refused spans, all with a part in one trace, of which nothing says to which run they belong."""
    found = []
    for each in range(number):
        own = {semconv.TRAJECTORY_ID: f"run {each}", semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT}
        links = [(f"{number + each:032x}", span_id(each)), (TRACES[1], span_id(7))] if linked else []
        places = [(TRACES[0], each)]
        if of_own_traces:
            places.append((f"{number + each:032x}", 3 * number))
        for trace, id in places:
            found.append(SpanRow(trace, span_id(id), "it", 1 + each, 10**6, attributes=own))
            instead = stand_in("why", trace_id=trace, span_id=span_id(number + id), links=links)
            assert instead is not None
            found.append(instead)
    return found


@pytest.mark.parametrize("of_own_traces", [False, True])
@pytest.mark.parametrize("linked", [False, True])
def test_refused_spans_beside_many_runs_cost_their_number(of_own_traces: bool, linked: bool) -> None:
    few, many = (
        cost(refused_beside_many_runs(number, of_own_traces=of_own_traces, linked=linked)) for number in (200, 400)
    )
    assert many < 2.5 * few


def test_agents_nested_by_the_thousand_are_read_whole() -> None:
    run, above = Run(), None
    for number in range(2000):
        above = run.agent(f"a{number}", at=number, until=10**5, parent=above)
        run.chat(f"c{number}", [message("user", "u")], message("assistant", "x"), at=number, parent=above)
    spans = run.end(at=10**5)
    [trajectory] = built(spans)
    assert len(transcript(trajectory).agents) == 2001
    read_whole(trajectory, spans)


@given(parents=st.dictionaries(numbers, st.one_of(st.none(), st.integers(0, SPANS + 1))))
def test_a_forest_keeps_every_parent_that_is_in_no_cycle(parents: dict[int, int | None]) -> None:
    with bounded_lines(parents, LINES):
        forest, cut = without_cycles(parents)
    assert forest.keys() == parents.keys()
    assert {key for key in parents if forest[key] != parents[key]} == cut
    for key in cut:  # it was its own ancestor, and none below it was that is less
        walked, at = [key], parents[key]
        while at is not None and at != key:
            walked.append(at)
            at = parents[at]
        assert at == key
        assert min(walked) == key
    with bounded_lines(forest, LINES):
        assert tops(forest).keys() == parents.keys()
        assert nearest(forest, {key: key for key in cut}).keys() == parents.keys()
