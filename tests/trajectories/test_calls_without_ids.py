"""Tool calls that were sampled without ids, as Gemini's are: each has its own result, and its own execution."""

from __future__ import annotations

from simulated_agent import JsonMessage, Run, message

from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories


def asked(*calls: tuple[str, str]) -> JsonMessage:
    parts = [{"type": "tool_call", "id": None, "name": name, "arguments": arguments} for name, arguments in calls]
    return {"role": "assistant", "parts": parts}


def given(name: str, response: str) -> JsonMessage:
    return {
        "role": "tool",
        "name": name,
        "parts": [{"type": "tool_call_response", "id": None, "response": response}],
    }


def two_turns(run: Run, wanted: JsonMessage, *results: JsonMessage) -> Trajectory:
    question = message("user", "Rome?")
    run.chat("one", [question], wanted, at=1)
    run.chat("two", [question, wanted, *results], message("assistant", "Done."), at=50)
    [trajectory] = build_trajectories(run.end())
    assert [placed.relation for placed in trajectory.calls] == ["start", "extends"]
    return trajectory


def results_of(trajectory: Trajectory) -> list[tuple[str, str, str | None, bool]]:
    return [(tool.name, tool.arguments, tool.result, tool.inferred) for tool in trajectory.tool_calls]


def test_a_result_is_that_of_the_tool_that_it_names() -> None:
    """They come in another order than was asked; those of one tool in that order."""
    wanted = asked(("look", '{"at":"a"}'), ("find", "{}"), ("look", '{"at":"b"}'))
    found = two_turns(Run(), wanted, given("find", "3"), given("look", "1"), given("look", "2"))
    assert results_of(found) == [
        ("look", '{"at":"a"}', "1", True), ("find", "{}", "3", True), ("look", '{"at":"b"}', "2", True),
    ]  # fmt: skip


def test_a_result_that_names_no_tool_that_was_asked_for_is_the_next_ones() -> None:
    found = two_turns(Run(), asked(("look", "{}"), ("find", "{}")), given("looking", "1"), given("finding", "2"))
    assert [result for _, _, result, _ in results_of(found)] == ["1", "2"]


def test_an_execution_under_an_id_that_its_library_keeps_to_itself_is_the_tool_calls() -> None:
    """Google ADK's: by name and arguments."""
    run = Run()
    for number, at in ((1, "b"), (2, "a")):
        run.tool(
            f"t{number}", "look", at=number * 10, until=number * 10 + 5,
            TOOL_CALL_ID=f"adk-{number}", TOOL_CALL_ARGUMENTS=f'{{"at": "{at}"}}', TOOL_CALL_RESULT=f'"{at}!"',
        )  # fmt: skip
    wanted = asked(("look", '{"at":"a"}'), ("look", '{"at":"b"}'), ("look", '{"at":"c"}'))
    found = two_turns(run, wanted, given("look", "a!"), given("look", "b!"), given("look", "c!"))
    assert sorted(results_of(found)) == [
        ("look", '{"at": "a"}', "a!", False), ("look", '{"at": "b"}', "b!", False), ("look", '{"at":"c"}', "c!", True),
    ]  # fmt: skip
    assert {tool.id for tool in found.tool_calls if not tool.inferred} == {"adk-1", "adk-2"}


def test_an_execution_is_the_tool_calls_where_the_client_gives_ids_in_place_of_the_servers() -> None:
    """langchain-ollama's, whose client sends none back; the last call was never answered."""
    run = Run()
    for number, at in ((1, "a"), (2, "b")):
        run.tool(
            f"t{number}", "look", at=number * 10, until=number * 10 + 5,
            TOOL_CALL_ID=f"client-{number}", TOOL_CALL_ARGUMENTS=f'{{"at": "{at}"}}', TOOL_CALL_RESULT=f'"{at}!"',
        )  # fmt: skip
    question, without = message("user", "Rome?"), asked(("look", '{"at":"a"}'))
    for number, (prompt, at) in enumerate((([question], "a"), ([question, without, given("look", "a!")], "b")), 1):
        answer = asked(("look", f'{{"at":"{at}"}}'))
        answer["parts"][0]["id"] = f"server-{number}"
        run.chat(f"c{number}", prompt, answer, at=number * 10 - 5)
    [found] = build_trajectories(run.end())
    assert results_of(found) == [("look", '{"at": "a"}', "a!", False), ("look", '{"at": "b"}', "b!", False)]
    assert [tool.id for tool in found.tool_calls] == ["server-1", "server-2"]
