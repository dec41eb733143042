"""A sub-agent whose answer comes back wrapped is linked to the tool call that wrapped it, less surely, and shown so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from simulated_agent import Run, message, result

from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Agent, Relation, Trajectory
from arttrace.trajectories import build_trajectories

ANSWER = "Oslo has 700,000 inhabitants."


def built(spans: list[SpanRow]) -> Trajectory:
    [trajectory] = build_trajectories(spans)
    return trajectory


def delegating(wrapped: Any, *, flow: str = "E1", late: bool = False, decorated: bool = False) -> list[SpanRow]:
    """A planner and one sub-agent, whose answer comes back as `wrapped`; `late` runs it after that was seen."""
    run = Run()
    history = [message("user", "plan")]
    asked = message("assistant", calls=(("c", "research", "{}"),))
    history.append(run.chat("m1", history, asked, at=1))
    at = 100 if late else 10
    parent = run.agent("researcher", at=at, until=at + 9, ENTRY_RESULT=json.dumps(ANSWER)) if decorated else None
    run.chat("s", [message("user", "how many?")], message("assistant", ANSWER), at=at + 1, flow=flow, parent=parent)
    history.append(result("c", wrapped))
    run.chat("m2", history, message("assistant", "done"), at=50)
    return run.end()


WRAPPED = [
    ({"result": ANSWER}, 0.9),
    (json.dumps({"status": "ok", "data": [{"answer": ANSWER}]}), 0.9),
    (f"researcher: {ANSWER}", 0.9),
    (f"# Answer of the researcher\n\n{ANSWER}", 0.9),
    (f"The researcher was asked. {ANSWER} That is all.", 0.7),
    (json.dumps({"log": f'asked "how many?"\n{ANSWER}'}), 0.7),
    ([{"type": "text", "text": ANSWER}], 1.0),
]


@pytest.mark.parametrize("flow", ["E0", "E1"])
@pytest.mark.parametrize(("wrapped", "confidence"), WRAPPED)
def test_a_wrapped_answer_is_linked(wrapped: Any, confidence: float, flow: str) -> None:
    trajectory = built(delegating(wrapped, flow=flow))
    [_, sub] = trajectory.agents
    assert (sub.name, sub.spawned_by, sub.confidence) == ("research", "c", confidence)
    assert "research returned" in sub.evidence
    [start] = [call for call in trajectory.calls if call.agent_id == sub.id]
    assert (start.relation, start.confidence) == (Relation.SUB_AGENT, confidence)


@pytest.mark.parametrize(("wrapped", "confidence"), WRAPPED)
def test_a_decorated_agent_is_linked_alike(wrapped: Any, confidence: float) -> None:
    [_, sub] = built(delegating(wrapped, decorated=True)).agents
    assert (sub.name, sub.spawned_by, sub.confidence, sub.inferred) == ("researcher", "c", confidence, False)


def test_what_ran_after_the_result_was_seen_is_not_its_cause() -> None:
    assert len(built(delegating({"result": ANSWER}, flow="E0", late=True)).agents) == 1
    [_, sub] = built(delegating({"result": ANSWER}, flow="E1", late=True)).agents
    assert (sub.spawned_by, sub.confidence) == (None, 1.0)


def test_a_short_answer_is_not_looked_for_inside_texts() -> None:
    run = Run()
    start = [message("user", "plan")]
    asked = message("assistant", calls=(("c", "read", "{}"),))
    run.chat("m1", start, asked, at=1)
    run.chat("s", [message("user", "other")], message("assistant", "yes"), at=10)
    run.chat("m2", [*start, asked, result("c", "the eyes have it, yes indeed")], message("assistant", "ok"), at=50)
    assert len(built(run.end()).agents) == 1


def three(flows: tuple[str, str, str], wrap: str = "{}", parallel: bool = True) -> list[SpanRow]:
    """A planner that asks three sub-agents; each asks once."""
    run = Run()
    history = [message("user", "plan")]
    calls = tuple((f"c{n}", f"ask_{n}", "{}") for n in range(3))
    history.append(run.chat("m1", history, message("assistant", calls=calls), at=1))
    for n, flow in enumerate(flows):
        said = message("assistant", f"the answer of number {n} in full")
        run.chat(f"s{n}", [message("user", f"task {n}")], said, at=10 + 10 * n, flow=flow, above="E0")
        history.append(result(f"c{n}", wrap.replace("{}", f"the answer of number {n} in full")))
    run.chat("m2", history, message("assistant", "done"), at=80)
    return run.end()


def subs(trajectory: Trajectory) -> list[Agent]:
    return list(trajectory.agents[1:])


@pytest.mark.parametrize("wrap", ["{}", '{"result": "{}"}', "researcher: {}", "It said: {} (end)"])
@pytest.mark.parametrize("flows", [("E0", "E0", "E0"), ("E1", "E1", "E1"), ("E1", "E2", "E3"), ("E1", "E1", "E2")])
def test_three_sub_agents_are_three(flows: tuple[str, str, str], wrap: str) -> None:
    trajectory = built(three(flows, wrap))
    assert [(sub.name, sub.spawned_by, sub.parent_id) for sub in subs(trajectory)] == [
        (f"ask_{n}", f"c{n}", trajectory.agents[0].id) for n in range(3)
    ]


def test_an_exact_answer_goes_before_a_wrapped_one() -> None:
    """One result quotes another agent's answer; the one that is that answer is its own."""
    run = Run()
    history = [message("user", "plan")]
    asked = message("assistant", calls=(("c0", "summarise", "{}"), ("c1", "research", "{}")))
    history.append(run.chat("m1", history, asked, at=1))
    run.chat("s", [message("user", "how many?")], message("assistant", ANSWER), at=10, flow="E1", above="E0")
    history += [result("c0", f"A summary: {ANSWER} And more."), result("c1", ANSWER)]
    run.chat("m2", history, message("assistant", "done"), at=50)
    [sub] = subs(built(run.end()))
    assert (sub.name, sub.confidence) == ("research", 1.0)


def test_a_compacted_sub_agent_in_its_own_flow_stays_one() -> None:
    run = Run()
    history = [message("user", "plan")]
    history.append(run.chat("m1", history, message("assistant", calls=(("c", "research", "{}"),)), at=1))
    run.chat("s1", [message("user", "how many?")], message("assistant", "still looking"), at=10, flow="E1", above="E0")
    run.chat("s2", [message("user", "so far: little")], message("assistant", ANSWER), at=20, flow="E1", above="E0")
    history.append(result("c", {"result": ANSWER}))
    run.chat("m2", history, message("assistant", "done"), at=50)
    [sub] = subs(built(run.end()))
    assert (sub.spawned_by, sub.confidence) == ("c", 0.9)


def test_a_tool_call_without_an_id_is_named_by_its_place() -> None:
    run = Run()
    start = [message("user", "plan")]
    asked = {"role": "assistant", "parts": [{"type": "tool_call", "name": "research", "arguments": "{}"}]}
    run.chat("m1", start, asked, at=1)
    run.chat("s", [message("user", "how many?")], message("assistant", ANSWER), at=10)
    run.chat("m2", [*start, asked, result(None, {"result": ANSWER})], message("assistant", "done"), at=50)
    trajectory = built(run.end())
    [sub], [tool] = subs(trajectory), trajectory.tool_calls
    assert sub.spawned_by == tool.id == f"{run.span_id('m1')}:0:0"
