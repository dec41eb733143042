"""Sessions of the Gemini CLI are runs: each answer with what the conversation was when it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from system_files import GEMINI, TIME, lines, read

from arttrace.formats.imported_files import read_file
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir

META, *_ = GEMINI
BEING_WRITTEN = "its last answer was being written, or waited for tools, when it was read"
TOKENS = {"input": 9, "output": 3, "cached": 2, "thoughts": 4, "tool": 1, "total": 17}


def user(id: str, at: int, *parts: Any) -> dict[str, Any]:
    content = [{"text": one} if isinstance(one, str) else one for one in parts]
    return {"id": id, "timestamp": TIME.format(at), "type": "user", "content": content}


def gemini(id: str, at: int, text: Any = "", **more: Any) -> dict[str, Any]:
    said = {"thoughts": [], "tokens": TOKENS, "model": "gemini-x", **more}
    return {"id": id, "timestamp": TIME.format(at), "type": "gemini", "content": text, **said}


def shown(id: str, at: int, text: Any, type: str = "info") -> dict[str, Any]:
    return {"id": id, "timestamp": TIME.format(at), "type": type, "content": text}


def returned(id: str, **response: Any) -> dict[str, Any]:
    return {"functionResponse": {"id": id, "name": "read_file", "response": response}}


def tool(id: str, at: int, result: Any, status: str = "success", **more: Any) -> dict[str, Any]:
    called = {"id": id, "name": "read_file", "args": {"path": id}, "timestamp": TIME.format(at)}
    return {**called, "status": status, "result": result, **more}


def legacy(*messages: dict[str, Any]) -> bytes:
    return json.dumps({**META, "messages": list(messages)}, indent=2).encode()


def run_of(*messages: dict[str, Any], left_out: dict[str, int] | None = None) -> Trajectory:
    found, [run] = read(lines(META, *messages))
    assert found.left_out == (left_out or {})
    return run


def asked(run: Trajectory) -> list[list[tuple[str, str]]]:
    """What each call was given: the roles, and what is said."""
    return [[(one.role, one.text) for one in placed.call.messages] for placed in run.calls]


USES = gemini("b", 2, thoughts=[{"subject": "Look", "description": "Both.", "timestamp": TIME.format(2)}])
CALLS = [tool("t1", 3, [returned("t1", output="one")]), tool("t2", 4, [returned("t2", error="gone")], "error")]
DONE = {**USES, "toolCalls": CALLS}


def test_an_answer_has_thoughts_calls_results_tokens_model_and_times() -> None:
    results = user("c", 4, *(CALLS[0]["result"] + CALLS[1]["result"]))
    said = user("a", 1, "Read."), USES, DONE, results, gemini("d", 6, "Done.")
    run = run_of(*said)
    first, last = (placed.call for placed in run.calls)
    assert (run.agents[0].name, run.result, run.incomplete) == ("gemini-cli", "Done.", "")
    assert [type(one).__name__ for one in first.choices[0].message.parts] == [
        "ReasoningPart", "ToolCallPart", "ToolCallPart",
    ]  # fmt: skip
    assert "**Look** Both." in str(first.choices[0])
    assert (first.request_model, first.input_tokens, first.output_tokens) == ("gemini-x", 10, 7)
    assert [one.role for one in last.messages] == ["user", "assistant", "tool", "tool"]
    assert "ReasoningPart" not in str(last.messages)  # the program tells its thoughts to no later call
    assert [(one.name, one.result, bool(one.error)) for one in run.tool_calls] == [
        ("read_file", "one", False), ("read_file", "gone", True),
    ]  # fmt: skip
    spans = [one for one in read_file(lines(META, *said), "file").records if isinstance(one, SpanRow)]
    assert [(one.end_ns - one.start_ns) // 10**9 for one in spans if one.kind == 3] == [1, 2]


def test_an_older_file_is_the_same_run() -> None:
    said = user("a", 1, "Read."), DONE, gemini("d", 6, "Done.")
    _, [older] = read(legacy(*said))
    newer = run_of(*said)
    assert (older.id, older.revision, asked(older)) == (newer.id, newer.revision, asked(newer))


def test_a_turn_that_was_taken_back_is_a_branch() -> None:
    run = run_of(
        user("a", 1, "One?"), gemini("b", 2, "1"), user("c", 3, "Two?"), gemini("d", 4, "2"),
        {"$rewindTo": "c"}, user("e", 5, "Three?"), gemini("f", 6, "3"),
    )  # fmt: skip
    begin = [("user", "One?"), ("assistant", "1")]
    assert asked(run) == [begin[:1], [*begin, ("user", "Two?")], [*begin, ("user", "Three?")]]
    assert (run.result, run.incomplete) == ("3", "")
    _, [run] = read(lines(META, user("a", 1, "One?"), {"$rewindTo": "z"}, user("e", 5, "Three?"), gemini("f", 6, "3")))
    assert asked(run) == [[("user", "Three?")]]  # the program forgets all, where it does not know the message


def test_a_conversation_that_is_said_anew_is_what_later_calls_were_given() -> None:
    context = user("s", 1, "<session_context>Today</session_context>")
    summary = [user("x", 5, "Before: 1."), gemini("y", 5, [{"text": "Thanks."}], model=None, tokens=None)]
    run = run_of(
        {"$set": {"messages": [context]}}, user("a", 1, "One?"), gemini("b", 2, "1"), user("c", 3, "Two?"),
        gemini("d", 4, "2"), {"$set": {"messages": summary}}, shown("i", 5, ""), user("e", 6, "Three?"),
        gemini("f", 7, "3"),
    )  # fmt: skip
    assert asked(run)[0] == [("user", "<session_context>Today</session_context>"), ("user", "One?")]
    assert asked(run)[2] == [("user", "Before: 1."), ("assistant", "Thanks."), ("user", "Three?")]
    assert (len(run.calls), run.incomplete) == (3, "")
    masked = {**DONE, "content": [], "toolCalls": [{**CALLS[0], "result": [returned("t1", output="…")]}, CALLS[1]]}
    run = run_of(user("a", 1, "Read."), USES, DONE, gemini("d", 6, "Done."),
                 {"$set": {"messages": [user("a", 1, "Read."), masked, gemini("d", 6, [{"text": "Done."}])]}},
                 user("e", 7, "More."), gemini("f", 8, "No."))  # fmt: skip
    assert ["…" in str(placed.call.messages) for placed in run.calls] == [False, False, True]
    assert [len(placed.call.choices[0].message.parts) for placed in run.calls] == [3, 1, 1]


def test_what_only_the_person_saw_is_given_to_no_call_and_a_file_in_parts_is() -> None:
    picture = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    run = run_of(user("a", 1, "Look."), shown("i", 1, "Updated!"), shown("w", 1, "Slow", "warning"),
                 shown("p", 2, [picture]), shown("e", 2, "Failed", "error"), gemini("b", 3, "A dog."))  # fmt: skip
    assert asked(run) == [[("user", "Look."), ("user", "")]]
    assert "image/png" in str(run.calls[0].call.messages)


def test_calls_of_an_answer_behind_something_shown_are_the_answers() -> None:
    apart = {**gemini("n", 4, toolCalls=[tool("t1", 4, [returned("t1", output="one")])]), "tokens": None}
    run = run_of(user("a", 1, "Read."), gemini("b", 2, "I read."), shown("i", 3, "Hm"), apart, gemini("c", 5, "Done."))
    assert len(run.calls) == 2
    assert [type(one).__name__ for one in run.calls[0].call.choices[0].message.parts] == ["TextPart", "ToolCallPart"]
    assert [one.role for one in run.calls[1].call.messages] == ["user", "assistant", "tool"]


READ = user("a", 1, "Read.")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([READ, USES], BEING_WRITTEN),
        ([READ, gemini("b", 2, "1"), user("c", 3, "And?")], BEING_WRITTEN),
        ([READ, {**USES, "toolCalls": [tool("t1", 3, None, "executing")]}], BEING_WRITTEN),
        ([READ, {**DONE, "toolCalls": [tool("t1", 3, None)]}, gemini("d", 6, "Done.")], "1 tool result"),
        ([READ, USES, user("c", 3, "Go on."), gemini("d", 6, "Done.")], "1 answer of the session missing"),
        ([READ, gemini("b", 2, "1"), shown("i", 3, "Context compressed from 90% to 9%."), user("c", 4, "And?"),
          gemini("d", 5, "2")], "it was compressed"),
        ([READ, {**USES, "toolCalls": [CALLS[0], {**CALLS[1], "timestamp": TIME.format(9)}]}, gemini("d", 10, "Done.")],
         "which may be several answers"),
        ([READ, gemini("b", 2, "1"), {"type": "user"}], "1 line of the session missing"),
    ],
)  # fmt: skip
def test_what_is_missing_makes_the_run_incomplete(said: list[dict[str, Any]], why: str) -> None:
    _, [run] = read(lines(META, *said), refused=int("line" in why))
    assert why in str(run.incomplete)


def test_an_answer_that_ended_empty_is_one() -> None:
    run = run_of(user("a", 1, "Read."), DONE, gemini("d", 6, [], model=None))
    assert (len(run.calls), run.incomplete) == (2, "")


def test_sub_agents_are_runs_of_their_own_and_counted_in_the_session_that_called_them() -> None:
    called = tool("t1", 3, [returned("t1", output="one")], agentId="s-1")
    left_out = {"sub-agents, whose own files (chats/PARENT/ID.jsonl) are runs of their own": 1}
    run = run_of(user("a", 1, "Read."), USES, {**USES, "toolCalls": [called]}, gemini("d", 6, "Done."),
                 left_out=left_out)  # fmt: skip
    _, [sub] = read(lines({**META, "sessionId": "s-1", "kind": "subagent"}, user("a", 1, "x"), gemini("b", 2, "y")))
    assert (len(run.calls), sub.metadata["kind"]) == (2, "subagent")
    assert sub.id != run.id


def test_sessions_of_one_file_are_apart_and_lines_of_none_are_refused() -> None:
    other = {**META, "sessionId": "g-2"}
    found, runs = read(lines(user("z", 1, "?"), *GEMINI, other, user("a", 1, "x"), gemini("b", 2, "y")), refused=1)
    assert (found.kinds, len(runs)) == ({"gemini cli sessions": 2}, 2)
    assert "before the one that names the session" in found.reasons[0]
    nothing = read_file(lines(META, user("a", 1, "x")), "file")
    assert (nothing.spans, nothing.left_out) == (0, {"sessions without an answer": 1})


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_an_answer_whose_tools_were_running_is_whole_at_the_next_import(order: tuple[int, int], tmp_path: Path) -> None:
    days = {1: [META, READ, USES], 2: [META, READ, USES, DONE, gemini("d", 6, "Done.")]}
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        for day in order:
            store.append(read_file(lines(*days[day]), "session").records)
        [run] = store.trajectories()
    assert (run.incomplete, run.conflicts, run.result) == ("", 0, "Done.")
    assert [len(placed.call.choices[0].message.parts) for placed in run.calls] == [3, 1]
