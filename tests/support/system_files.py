"""Files of other systems, as examples: they restate, with other words in them, what real files of each hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from arttrace.formats.imported_files import Imported, read_file
from arttrace.formats.sdks.tolerant import normalised
from arttrace.records.record import Record
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories

TIME = "2026-03-01T10:00:{:02d}.000Z"


def lines(*items: Any) -> bytes:
    return "\n".join(map(json.dumps, items)).encode()


def read(data: bytes, *, refused: int = 0) -> tuple[Imported, list[Trajectory]]:
    found = read_file(data, "file")
    assert found.refused == refused, found.reasons
    return found, runs_of(found.records)


def runs_of(records: Sequence[Record]) -> list[Trajectory]:
    return build_trajectories([normalised(record) for record in records if isinstance(record, SpanRow)])


# --- SWE-agent ------------------------------------------------------------------------------------------------

ASK = {"role": "system", "content": "You program.", "agent": "main", "message_type": "system_prompt"}
SWE = {
    "environment": "repo-1",
    "trajectory": [{"action": "ls", "observation": "a.py", "thought": "Look.", "response": "Look.", "state": "{}"}],
    "history": [
        ASK,
        {"role": "user", "content": "A demonstration", "agent": "main", "is_demo": True},
        {"role": "assistant", "content": "shown", "agent": "main", "is_demo": True, "action": "x", "thought": "y"},
        {"role": "user", "content": "Fix it.", "agent": "main", "message_type": "observation"},
        {
            "role": "assistant", "content": "Look.", "thought": "Look.", "action": "ls", "agent": "main",
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "a.py", "agent": "main", "tool_call_ids": ["call_1"]},
        {"role": "assistant", "content": "Done.", "action": "submit", "agent": "main"},
    ],
    "info": {"exit_status": "submitted", "submission": "diff --git", "model_stats": {"api_calls": 2}},
    "resolved": True,
}  # fmt: skip


# --- Claude Code ----------------------------------------------------------------------------------------------


def line(id: str, parent: str | None, role: str, content: Any, at: int, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        usage = {"input_tokens": 3, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 5, "output_tokens": 2}
        message |= {"id": more.pop("answer"), "model": "claude-x", "stop_reason": "end_turn", "usage": usage}
    return {
        "uuid": id, "parentUuid": parent, "sessionId": "s-1", "isSidechain": False, "type": role, "message": message,
        "timestamp": TIME.format(at), "cwd": "/home/x", "version": "2.1.0", "gitBranch": "main", **more,
    }  # fmt: skip


def use(id: str, name: str = "Read") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": {"path": id}}


def done(id: str, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": text}]}


SESSION = [
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
    {"type": "summary", "summary": "x", "leafUuid": "u9"},
    line("u1", None, "user", "Read both.", 1),
    line("u2", "u1", "assistant", [{"type": "thinking", "thinking": "Both.", "signature": "x"}], 2, answer="a1"),
    line("u3", "u2", "assistant", [use("t1")], 3, answer="a1"),
    line("u4", "u3", "assistant", [use("t2")], 4, answer="a1"),
    line("u5", "u3", "user", [done("t1", "one")], 5),
    line("u6", "u4", "user", [done("t2", "two")], 6),
    line("u7", "u6", "assistant", [{"type": "text", "text": "One and two."}], 7, answer="a2"),
    line("u8", "u7", "user", "Again.", 8),
    line("u9", "u8", "assistant", [{"type": "text", "text": "As before."}], 9, answer="a3"),
]
SUB_AGENT = [
    line("v1", None, "user", "You look.", 5, isSidechain=True, agentId="ag"),
    line("v2", "v1", "assistant", [{"type": "text", "text": "Seen."}], 6, isSidechain=True, agentId="ag", answer="b1"),
]


# --- Codex ----------------------------------------------------------------------------------------------------


def event(at: int, kind: str, /, **payload: Any) -> dict[str, Any]:
    return {"timestamp": TIME.format(at), "type": kind, "payload": payload}


def spoken(at: int, role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return event(at, "response_item", type="message", role=role, content=[{"type": kind, "text": text}])


CODEX = [
    event(0, "session_meta", id="c-1", cwd="/home/x", cli_version="0.100.0", base_instructions={"text": "You code."}),
    event(1, "turn_context", model="gpt-x", cwd="/home/x"),
    spoken(1, "user", "List."),
    event(
        2, "response_item", type="reasoning", summary=[{"type": "summary_text", "text": "ls"}], encrypted_content="x"
    ),
    event(2, "response_item", type="function_call", name="exec", arguments='{"cmd":"ls"}', call_id="k1"),
    event(3, "event_msg", type="token_count", info={"last_token_usage": {"input_tokens": 9, "output_tokens": 4}}),
    event(3, "response_item", type="function_call_output", call_id="k1", output="a.py"),
    event(4, "event_msg", type="agent_message", message="There is one."),
    spoken(4, "assistant", "There is one."),
]


# --- LangSmith, Phoenix ----------------------------------------------------------------------------------------

ROOT, CHILD, TOOL = (f"{n}0000000-0000-4000-8000-000000000000" for n in (1, 2, 3))


PHOENIX = {
    "name": "ChatCompletion", "span_kind": "LLM", "parent_id": None, "start_time": TIME.format(0),
    "end_time": TIME.format(1), "status_code": "OK", "status_message": "", "events": [],
}  # fmt: skip
NESTED = [{"message": {"role": "user", "content": "hi"}}]
FLAT = {
    "llm.model_name": "gpt-x",
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": "hi",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "yo",
    "llm.invocation_parameters": '{"temperature": 0.5}',
}


# --- stored completions ---------------------------------------------------------------------------------------

COMPLETION = {
    "object": "chat.completion", "id": "chatcmpl-1", "model": "gpt-x", "created": 1_790_000_000,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yo"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}, "metadata": {"task_id": "t1"},
}  # fmt: skip


# --- Gemini CLI -----------------------------------------------------------------------------------------------


def told(id: str, at: int, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": id, "timestamp": TIME.format(at), "type": kind, "content": content, **more}


def answered(id: str, at: int, text: str, **more: Any) -> dict[str, Any]:
    tokens = {"input": 9, "output": 3, "cached": 0, "thoughts": 2, "tool": 0, "total": 14}
    return told(id, at, "gemini", text, thoughts=[], tokens=tokens, model="gemini-x", **more)


def ran(id: str, at: int, output: str) -> dict[str, Any]:
    result = [{"functionResponse": {"id": id, "name": "read_file", "response": {"output": output}}}]
    called = {"id": id, "name": "read_file", "args": {"path": "a.py"}, "result": result, "status": "success"}
    return {**called, "timestamp": TIME.format(at)}


GEMINI = [
    {"sessionId": "g-1", "projectHash": "ab", "startTime": TIME.format(0), "lastUpdated": TIME.format(0)},
    told("m1", 1, "user", [{"text": "Read it."}]),
    answered("m2", 2, ""),
    answered("m2", 2, "", toolCalls=[ran("r1", 3, "one")]),
    {"$set": {"lastUpdated": TIME.format(3)}},
    answered("m3", 4, "One."),
    told("m4", 5, "user", [{"text": "Again."}]),
    {"$rewindTo": "m4"},
    told("m5", 6, "user", [{"text": "Again?"}]),
    answered("m6", 7, "As before."),
]
