"""What is recorded of a library's GenAI span while it is followed: a scope of an agent or a tool.

What is recorded of a model call's: followed_call.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from arttrace.capture.base.values import MAX_ERROR_TEXT
from arttrace.capture.context import program
from arttrace.capture.context.flow import claim_execution, current_flow
from arttrace.capture.context.position import Position
from arttrace.capture.context.recorded_tools import RecordedTools
from arttrace.capture.context.scope import Scope, open_scope
from arttrace.records import semconv
from arttrace.records.values.users_text import safe_text

CALLS = (semconv.OPERATION_CHAT, semconv.OPERATION_GENERATE_CONTENT, semconv.OPERATION_TEXT_COMPLETION)
"""The operations that are model calls."""
_SCOPES = (semconv.OPERATION_INVOKE_AGENT, semconv.OPERATION_EXECUTE_TOOL)
# Some libraries set attributes only after the start: the conventions begin a span's name with its operation.
_BY_NAME = (*_SCOPES, *CALLS[:2])
_OLDER_NAMES = {"agent run": semconv.OPERATION_INVOKE_AGENT, "running tool": semconv.OPERATION_EXECUTE_TOOL}
_OF_AN_AGENT = (semconv.AGENT_ID, semconv.AGENT_DESCRIPTION, semconv.CONVERSATION_ID)
_ARGUMENTS = (semconv.TOOL_CALL_ARGUMENTS, "gcp.vertex.agent.tool_call_args", "tool_arguments")
_RESULTS = (semconv.TOOL_CALL_RESULT, "gcp.vertex.agent.tool_response", "tool_response")


class Said(NamedTuple):
    """What a span said when it ended; `failure` is the description of an error, None where it has none."""

    attributes: Mapping[str, Any]
    events: Sequence[tuple[str, Mapping[str, Any]]]
    failure: str | None

    def error(self) -> tuple[str, str] | None:
        """(error type, message) where the span has an error."""
        if self.failure is None:
            return None
        raised: Mapping[str, Any] = next((said for name, said in self.events if name == "exception"), {})
        kind = self.attributes.get(semconv.ERROR_TYPE) or raised.get("exception.type") or "error"
        message = self.failure or raised.get("exception.message") or ""
        return safe_text(kind), safe_text(message)[:MAX_ERROR_TEXT]


class Followed(Protocol):
    """Of one span: the innermost scope inside it, and what is to be done when it ends."""

    scope: Position
    unsaid: Mapping[str, Any]
    """What its library knows and does not put on the span: content that it was not asked to export."""

    @property
    def is_awaited(self) -> bool:
        """Whether what the span would say still matters."""

    def end(self, said: Said) -> None: ...


def operation_of(name: str, attributes: Mapping[str, Any]) -> str | None:
    """Which operation of the GenAI conventions a span is, of those that are followed."""
    operation = attributes.get(semconv.OPERATION_NAME)
    if operation is None and name in _OLDER_NAMES:
        operation = _OLDER_NAMES[name]
    elif operation is None:
        operation, _, rest = name.partition(" ")
        if operation not in _BY_NAME or rest.startswith("("):  # "execute_tool (merged)"
            return None
    return operation if operation in _SCOPES or operation in CALLS else None


class FollowedScope:
    """A span of an agent or a tool. Where that is being recorded already, by a hook or a decorator, it is the same."""

    def __init__(self, scope: Position, is_tool: bool, own: Scope | None) -> None:
        self.scope = scope
        self.unsaid: Mapping[str, Any] = {}
        self._is_tool = is_tool
        self._own = own
        if own is not None:
            own.run.open_library_scopes[id(own)] = own

    @classmethod
    def open(
        cls, operation: str, name: str, attributes: Mapping[str, Any], library: str
    ) -> FollowedScope | ToolOfRollout | None:
        """None where nothing is recorded here. `library` is who makes the span."""
        is_tool = operation == semconv.OPERATION_EXECUTE_TOOL
        named = attributes.get(semconv.TOOL_NAME if is_tool else semconv.AGENT_NAME)
        own_name = safe_text(named or name.removeprefix(operation).strip() or operation)
        call_id = attributes.get(semconv.TOOL_CALL_ID) or None
        around = current_flow().scope
        scope = None
        if is_tool and around is not None and around.run.tools is not None:
            return ToolOfRollout(around, around.run.tools, own_name)
        if is_tool:
            scope = open_scope("tool", own_name, outside=program.scope, library=library, call_id=call_id)
            if scope is not None:
                scope.run_by(library, call_id)
        elif around is None or not around.is_same_agent(own_name):
            scope = open_scope("agent", own_name, outside=program.scope)
        if scope is not None:
            scope.belongs_to(claim_execution(scope.root.execution))
        elif around is None:
            return None
        inner = scope or around
        return None if inner is None else cls(inner, is_tool, scope)

    @property
    def is_awaited(self) -> bool:
        """Until it ends."""
        return True

    def end(self, said: Said) -> None:
        """Record what was said, and end the scope where it is this span's own."""
        scope, attributes = self.scope, {**said.attributes, **self.unsaid}
        if self._is_tool:
            scope.run_by(scope.library, attributes.get(semconv.TOOL_CALL_ID) or None)
        else:
            scope.describe({name: safe_text(attributes[name]) for name in _OF_AN_AGENT if attributes.get(name)})
        own = self._own
        if own is None:
            return
        own.run.open_library_scopes.pop(id(own), None)
        if self._is_tool:
            given = _value(attributes, _ARGUMENTS)
            if given is not None:
                own.set_arguments(**(given if isinstance(given, dict) else {"input": given}))
            result = _value(attributes, _RESULTS)
            if result is not None:
                own.set_result(result)
        error = said.error()
        if error is not None:
            own.failed(*error)
        own.close()


class ToolOfRollout:
    """A tool's span in a rollout whose tools are answered from the record.

    It opens no scope: a hook inside answers. Where none was asked, the tool has run, and the rollout is no word about
    its agent.
    """

    def __init__(self, scope: Position, tools: RecordedTools, name: str) -> None:
        self.scope = scope
        self.unsaid: Mapping[str, Any] = {}
        self._tools = tools
        self._asked = tools.asked
        self._name = name

    @property
    def is_awaited(self) -> bool:
        """Nothing is read from the span."""
        return False

    def end(self, said: Said) -> None:
        """Say what has run."""
        if self._tools.asked == self._asked and not self._tools.runs_missing and self._name not in self._tools.agents:
            self.scope.run.interrupted = f"a tool ran that no record can answer for: {self._name}"


def _value(attributes: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first of the attributes that is there; JSON text as what it says."""
    for name in names:
        if attributes.get(name) is not None:
            return decoded_value(attributes[name])
    return None


def decoded_value(value: Any) -> Any:
    """What JSON text says; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
