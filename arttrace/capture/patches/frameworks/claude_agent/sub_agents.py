"""Which of Claude Code's agents made a call, read from what is said in it.

An agent starts another one by a tool call. The first request of that one holds the tool call's prompt, each later one
the tool calls of its answers before. Both are below whichever scope asked Claude Code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from arttrace.capture.context import program
from arttrace.capture.context.generators import ScopeStep
from arttrace.capture.context.scope import Scope, open_scope
from arttrace.records.values.lenient_json import json_object, json_objects

_STARTING = ("Agent", "Task")  # the tool's name, and the one that it had in Claude Code 1 and 2.0
_HIDDEN = "<REDACTED>"


class _Asked(NamedTuple):
    """A tool call that starts an agent: the agent's kind, what it is told, and which agent's tool call it is."""

    name: str
    prompt: str
    by: str


class SubAgents:
    """Those of one Claude Code, each by the id of the tool call that started it; the main agent is ''."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._callers: dict[str, str] = {}
        """Of each tool call, the agent that made it."""
        self._scopes: dict[str, Scope | None] = {}
        self._in_background: set[str] = set()
        self._ended: set[str] = set()

    def scope_of(self, request: dict[str, Any], answer: dict[str, Any], source: str, started_ns: int) -> Scope | None:
        """The scope of the sub-agent that made a call, opened at `started_ns` if it is its first; None for the main
        agent. `source` is what Claude Code says of it."""
        agent = self._agent_of(request) if source.startswith("agent:") else ""
        for block in json_objects(answer.get("content")):
            if block.get("type") == "tool_use" and isinstance(id := block.get("id"), str):
                self._callers[id] = agent
                told = json_object(block.get("input"))
                if block.get("name") in _STARTING and isinstance(prompt := told.get("prompt"), str):
                    self._asked[id] = _Asked(str(told.get("subagent_type") or "general-purpose"), prompt, agent)
        if agent and agent not in self._scopes:
            with ScopeStep(self._scopes.get(self._asked[agent].by)):
                scope = self._scopes[agent] = open_scope("agent", self._asked[agent].name, outside=program.scope)
            if scope is not None:
                scope.span.start_ns = started_ns
        return self._scopes.get(agent)

    @property
    def are_running(self) -> bool:
        """Whether some go on beside the main agent."""
        return bool(self._in_background - self._ended)

    def saw(self, message: dict[str, Any]) -> set[str]:
        """Claude Code has told the SDK something. Returns which sub-agents have ended by it."""
        ended: set[str] = set()
        id = message.get("tool_use_id")
        if message.get("type") == "system" and isinstance(id, str):
            if message.get("subtype") == "task_started" and message.get("is_backgrounded"):
                self._in_background.add(id)
            elif message.get("subtype") == "task_notification":
                ended.add(id)
        elif message.get("type") == "user":
            results = json_objects(json_object(message.get("message")).get("content"))
            answered = {str(result.get("tool_use_id")) for result in results} - self._in_background
            ended = answered & self._asked.keys()
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

    def _agent_of(self, request: dict[str, Any]) -> str:
        messages = json_objects(request.get("messages"))
        made = [self._callers[id] for id in _tool_calls(messages) if id in self._callers]
        if made and made[-1]:
            return made[-1]
        texts = [text for message in messages if message.get("role") == "user" for text in _texts(message)]
        told = [id for id, asked in self._asked.items() if any(asked.prompt in text for text in texts)]
        begins = all(message.get("role") != "assistant" for message in messages) or bool(made)
        told.sort(key=lambda id: (id in self._scopes) == begins)
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


def _tool_calls(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        if message.get("role") == "assistant":
            for block in json_objects(message.get("content")):
                if block.get("type") == "tool_use" and isinstance(id := block.get("id"), str):
                    yield id


def _texts(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    for block in json_objects(content):
        if isinstance(text := block.get("text"), str):
            yield text
