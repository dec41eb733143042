"""A tool call that one agent asked for, and that ran or was answered under another one that went on, is one."""

from __future__ import annotations

import random
import time

import pytest
from simulated_agent import Run, message, result

from arttrace.trajectories import build_trajectories

Found = tuple[str, str, str | None, bool]


def found(run: Run) -> list[Found]:
    """Agent, id, result, inferred of each tool call, whatever the order in which the spans came."""
    spans = run.end(at=999)
    trajectory, again = (build_trajectories(random.Random(seed).sample(spans, len(spans)))[0] for seed in (1, 2))
    assert trajectory == again
    names = {agent.id: agent.name for agent in trajectory.agents}
    return [(names[tool.agent_id], tool.id, tool.result, tool.inferred) for tool in trajectory.tool_calls]


def paused(run: Run, name: str, task: str, id: str, *, at: int, arguments: str = '{"at": 1}') -> None:
    """An agent whose model asks for a tool, which does not run."""
    agent = run.agent(name, at=at, until=at + 9)
    asked = message("assistant", calls=((id, "look", arguments),))
    run.chat(f"{name} asks", [message("user", task)], asked, at=at + 1, parent=agent, flow=name)


def going_on(
    run: Run, name: str, task: str, id: str, *, at: int, runs: str | None = '{"at": 1}', calls: bool = True
) -> None:
    """An agent that goes on with its messages, where the tool runs first, by these arguments."""
    agent = run.agent(name, at=at, until=at + 9)
    if runs is not None:
        said = {"TOOL_CALL_ARGUMENTS": runs, "TOOL_CALL_RESULT": f'"{name}"'} if runs else {}
        run.tool(f"{name} runs", "look", at=at + 1, until=at + 3, parent=agent, TOOL_CALL_ID=id, **said)
    if calls:
        asked = message("assistant", calls=((id, "look", '{"at": 1}'),))
        prompt = [message("user", task), asked, result(id, f"{name} says")]
        run.chat(f"{name} answers", prompt, message("assistant", "Done."), at=at + 5, parent=agent, flow=name)


@pytest.mark.parametrize("calls", [True, False], ids=["goes on", "ends there"])
def test_what_another_agent_ran_is_the_tool_call_that_waited(calls: bool) -> None:
    run = Run()
    paused(run, "A", "u", "c", at=10)
    going_on(run, "B", "u", "c", at=30, calls=calls)
    assert found(run) == [("B", "c", "B", False)]


def test_a_tool_without_content_has_what_was_asked() -> None:
    run = Run()
    paused(run, "A", "u", "c", at=10)
    going_on(run, "B", "u", "c", at=30, runs="")
    [tool] = build_trajectories(run.end())[0].tool_calls
    assert (tool.arguments, tool.inferred) == ('{"at": 1}', False)


def test_other_arguments_were_given_with_the_yes() -> None:
    run = Run()
    paused(run, "A", "u", "c", at=10)
    going_on(run, "B", "u", "c", at=30, runs='{"at": 2}')
    assert found(run) == [("B", "c", "B", False)]


def test_what_nobody_ran_has_the_answer_that_stands_in_the_messages() -> None:
    run = Run()
    paused(run, "A", "u", "c", at=10)
    going_on(run, "B", "u", "c", at=30, runs=None)
    assert found(run) == [("A", "c", "B says", True)]


def test_a_tool_that_never_ran_stays_unanswered() -> None:
    run = Run()
    paused(run, "A", "u", "c", at=10)
    assert found(run) == [("A", "c", None, True)]


def test_one_id_for_every_tool_call_is_told_apart_by_the_messages() -> None:
    """Of three agents that asked for the same one goes on, the second."""
    run = Run()
    for number, name in enumerate("ABC"):
        paused(run, name, f"task of {name}", "call_0", at=10 + number)
    going_on(run, "D", "task of B", "call_0", at=50)
    assert found(run) == [("A", "call_0", None, True), ("C", "call_0", None, True), ("D", "call_0", "D", False)]


def test_one_id_for_every_tool_call_is_that_of_the_messages_answer() -> None:
    run = Run()
    for number, name in enumerate("ABC"):
        paused(run, name, f"task of {name}", "call_0", at=10 + number)
    going_on(run, "D", "task of B", "call_0", at=50, runs=None)
    assert found(run) == [
        ("A", "call_0", None, True), ("B", "call_0", "D says", True), ("C", "call_0", None, True),
    ]  # fmt: skip


def test_turn_after_turn_that_waits() -> None:
    run = Run()
    for turn in range(3):
        paused(run, f"A{turn}", "u", "call_0", at=100 * turn + 10)
        going_on(run, f"B{turn}", "u", "call_0", at=100 * turn + 50)
    assert found(run) == [(f"B{turn}", "call_0", f"B{turn}", False) for turn in range(3)]


def test_what_an_agent_itself_asked_for_is_nobody_elses() -> None:
    """Two at once ask for the same under one id; the tool of the first is not recorded, or it was stopped."""
    run = Run()
    paused(run, "A", "u", "call_0", at=10)
    paused(run, "B", "u", "call_0", at=11)
    run.tool(
        "runs", "look", at=15, until=16, parent=run.span_id("B"),
        TOOL_CALL_ID="call_0", TOOL_CALL_ARGUMENTS='{"at": 1}', TOOL_CALL_RESULT='"r"',
    )  # fmt: skip
    assert found(run) == [("B", "call_0", "r", False), ("A", "call_0", None, True)]


def test_a_tool_of_an_agent_with_other_messages_is_its_own() -> None:
    """Its model's message with the tool call was not recorded, say."""
    run = Run()
    paused(run, "A", "u", "call_0", at=10)
    agent = run.agent("B", at=20, until=40)
    run.tool("runs", "look", at=21, until=22, parent=agent, TOOL_CALL_ID="call_0", TOOL_CALL_ARGUMENTS='{"at": 1}')
    run.chat("says", [message("user", "v")], message("assistant", "x"), at=25, parent=agent, flow="B")
    assert found(run) == [("A", "call_0", None, True), ("B", "call_0", None, False)]


def test_a_tool_that_ran_before_it_was_asked_for_is_another() -> None:
    run = Run()
    going_on(run, "B", "u", "call_0", at=10, calls=False)
    paused(run, "A", "u", "call_0", at=30)
    assert found(run) == [("B", "call_0", "B", False), ("A", "call_0", None, True)]


def test_a_tool_that_itself_waits_ran_twice() -> None:
    """LangGraph's `interrupt` in a tool: it begins anew with the yes."""
    run = Run()
    paused(run, "A", "u", "c", at=10)
    run.tool(
        "waits", "look", at=17, until=18, parent=run.span_id("A"), TOOL_CALL_ID="c", TOOL_CALL_ARGUMENTS='{"at": 1}'
    )
    going_on(run, "B", "u", "c", at=30)
    assert found(run) == [("A", "c", None, False), ("B", "c", "B", False)]


def test_a_recorded_tool_without_a_result_has_that_of_the_messages() -> None:
    """PydanticAI's `CallDeferred`: another process answers."""
    run = Run()
    paused(run, "A", "u", "c", at=10)
    run.tool("defers", "look", at=17, until=18, parent=run.span_id("A"), TOOL_CALL_ID="c")
    going_on(run, "B", "u", "c", at=30, runs=None)
    assert found(run) == [("A", "c", "B says", False)]


def test_hundreds_under_one_id_take_no_time() -> None:
    run = Run()
    for turn in range(500):
        paused(run, f"A{turn}", f"{turn}", "call_0", at=turn)
        going_on(run, f"B{turn}", f"{turn}", "call_0", at=2000 + turn)
    spans = run.end(at=9999)
    began = time.process_time()
    [trajectory] = build_trajectories(spans)
    assert time.process_time() - began < 2
    assert sum(not tool.inferred for tool in trajectory.tool_calls) == 500
