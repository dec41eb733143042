"""Which of Claude Code's agents made a call, read from what is said in it.

An agent starts another one by a tool call. The first request of that one holds the tool call's prompt, each later one
the tool calls of its answers before. Both are below whichever scope asked Claude Code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context, copy_context
from typing import Any, NamedTuple

from arttrace.capture.context import program
from arttrace.capture.context.generators import ScopeStep
from arttrace.capture.context.scope import Scope, open_scope
from arttrace.records.values.lenient_json import json_object, json_objects

_STARTING = ("Agent", "Task")  # the tool's name, and the one that it had in Claude Code 1 and 2.0
_HIDDEN = "<REDACTED>"
_OVER = ("completed", "failed", "killed", "cancelled", "stopped")


class _Asked(NamedTuple):
    """A tool call that starts an agent: the agent's kind, what it is told, which agent's tool call it is, and the
    context of the turn that it was made in."""

    name: str
    prompt: str
    by: str
    context: Context


class SubAgents:
    """Those of one Claude Code, each by the id of the tool call that started it; the main agent is ''."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._callers: dict[str, str] = {}
        """Of each tool call, the agent that made it."""
        self._scopes: dict[str, Scope | None] = {}
        self._tasks: dict[str, str] = {}
        """By the id that Claude Code gives what it runs."""
        self._in_background: set[str] = set()
        self._ended: set[str] = set()

    def scope_of(self, request: dict[str, Any], answer: dict[str, Any], source: str, started_ns: int) -> Scope | None:
        """The scope of the sub-agent that made a call, opened at `started_ns` if it is its first; None for the main
        agent. `source` is what Claude Code says of it. To be called in the context of the call's turn."""
        agent = self._agent_of(request) if source.startswith("agent:") else ""
        self._note_calls(answer, agent)
        if agent and agent not in self._scopes:
            asked = self._asked[agent]
            scope = self._scopes[agent] = asked.context.copy().run(self._opened, asked)
            if scope is not None:
                scope.span.start_ns = started_ns
        return self._scopes.get(agent)

    def saw(self, message: dict[str, Any]) -> set[str]:
        """Claude Code has told the SDK something, in the context of the turn. Returns which sub-agents have ended."""
        ended: set[str] = set()
        said = json_object(message.get("message"))
        if message.get("type") == "assistant":
            self._note_calls(said, str(message.get("parent_tool_use_id") or ""))
        elif message.get("type") == "user":
            answered = {str(result.get("tool_use_id")) for result in json_objects(said.get("content"))}
            ended = (answered & self._asked.keys()) - self._in_background
        elif message.get("type") == "system":
            ended = self._saw_task(message)
        self._ended |= ended
        return ended

    def close_ended(self) -> None:
        """Close the scopes of those that have ended."""
        for id in self._ended:
            if (scope := self._scopes.get(id)) is not None:
                scope.close()

    def close(self) -> None:
        """Close all that are open: Claude Code has ended."""
        self._ended |= self._scopes.keys()
        self.close_ended()

    def _note_calls(self, answer: dict[str, Any], agent: str) -> None:
        for block in json_objects(answer.get("content")):
            if block.get("type") != "tool_use" or not isinstance(id := block.get("id"), str):
                continue
            self._callers[id] = agent
            told = json_object(block.get("input"))
            if id not in self._asked and block.get("name") in _STARTING and isinstance(told.get("prompt"), str):
                name = str(told.get("subagent_type") or "general-purpose")
                self._asked[id] = _Asked(name, told["prompt"], agent, copy_context())

    def _saw_task(self, message: dict[str, Any]) -> set[str]:
        task, told = str(message.get("task_id")), json_object(message.get("patch"))
        id = self._tasks.setdefault(task, str(message.get("tool_use_id") or ""))
        subtype = message.get("subtype")
        if (subtype == "task_started" and message.get("is_backgrounded")) or told.get("is_backgrounded"):
            self._in_background.add(id)
        is_over = subtype == "task_notification" or (subtype == "task_updated" and told.get("status") in _OVER)
        return {id} if id and is_over else set()

    def _opened(self, asked: _Asked) -> Scope | None:
        with ScopeStep(self._scopes.get(asked.by)):
            return open_scope("agent", asked.name, outside=program.scope)

    def _agent_of(self, request: dict[str, Any]) -> str:
        messages = json_objects(request.get("messages"))
        made = [self._callers[id] for id in _tool_calls(messages) if id in self._callers]
        if made and made[-1]:
            return made[-1]
        texts = [text for message in messages if message.get("role") == "user" for text in texts_of(message)]
        told = [id for id, asked in self._asked.items() if any(asked.prompt in text for text in texts)]
        begins = bool(made) or all(message.get("role") != "assistant" for message in messages)
        # One prompt may hold another one.
        told.sort(key=lambda id: (-len(self._asked[id].prompt), (id in self._scopes) == begins))
        return told[0] if told else ""


def restore_thoughts(thoughts: dict[str, str], *spoken: dict[str, Any]) -> bool:
    """Put back the thoughts that Claude Code leaves out of what it writes, by their signatures; one that is not known
    becomes a hidden one. Returns whether the messages were changed."""
    changed = False
    for message in spoken:
        for holder in (message, *json_objects(message.get("messages"))):
            for block in json_objects(holder.get("content")):
                if block.get("type") == "thinking" and block.get("thinking") == _HIDDEN:
                    changed = True
                    if (known := thoughts.get(str(block.get("signature")))) is not None:
                        block["thinking"] = known
                    else:
                        block.clear()
                        block.update(type="redacted_thinking", data="")
    return changed


def texts_of(message: dict[str, Any]) -> Iterator[str]:
    """What is said in a message."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
    for block in json_objects(content):
        if isinstance(text := block.get("text"), str):
            yield text


def _tool_calls(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        if message.get("role") == "assistant":
            for block in json_objects(message.get("content")):
                if block.get("type") == "tool_use" and isinstance(id := block.get("id"), str):
                    yield id
