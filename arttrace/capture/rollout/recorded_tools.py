"""Tools answered from the record: in a rollout, a tool that was recorded gives what it gave then, and does not run.

Which answers there are is part of the rollout's job and lies on its `Run`; outside of rollouts there are none, and
every tool runs. A recorded execution is found by the tool's name and its arguments as JSON, and answers one call, in
order.
"""

from __future__ import annotations

import builtins
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from arttrace.capture.base.annotations import as_annotated, hints_of
from arttrace.capture.base.guard import Guard
from arttrace.errors import ArttraceError
from arttrace.records.message import canonical_json
from arttrace.records.rollout import RecordedTool, ToolRecord
from arttrace.system import native_threads

if TYPE_CHECKING:
    from arttrace.capture.context.scope import Scope

_answering = Guard("answering a tool from the record")


class ToolNotRecorded(ArttraceError):
    """A tool was called in a way that the record does not hold, and is not to be run."""


class RecordedTools:
    """The answers of one rollout. Safe for threads."""

    def __init__(self, record: ToolRecord) -> None:
        self.runs_missing = record.on_missing == "live"
        self.agents = frozenset(record.agents)
        self.asked = 0
        """How many tool calls have come here to be answered."""
        self._lock = native_threads.allocate_lock()
        self._answers: defaultdict[tuple[str, bytes], deque[RecordedTool]] = defaultdict(deque)
        for tool in record.tools:
            self._answers[tool.name, canonical_json(tool.arguments)].append(tool)

    def take(self, name: str, arguments: str | None) -> RecordedTool | None:
        """The next answer to this call, None where the record holds none (any more). `arguments` is JSON text; None for
        a call that cannot be compared."""
        self.asked += 1
        if arguments is None:
            return None
        with self._lock:
            found = self._answers.get((name, canonical_json(msgspec.json.decode(arguments))))
            return found.popleft() if found else None


def recorded(
    scope: Scope | None, again: Callable[[RecordedTool], Any] | None = None, *, comparable: bool = True
) -> Callable[[], Any] | None:
    """What to call instead of the tool that `scope` is a run of; None where the tool is to run, as outside of rollouts.

    It returns what `again` makes of the recorded result (by default, what the decorated function is annotated to
    return, from JSON values), raises what the tool raised (built-in exceptions alone are in a record), or raises
    ToolNotRecorded; a run that met one of these is no word about its agent, and marked so.
    """
    if scope is None or scope.kind != "tool" or scope.run.tools is None:
        return None
    tools = scope.run.tools
    if scope.name in tools.agents:
        return None
    with _answering:
        found = tools.take(scope.name, scope.arguments if comparable else None)
        if found is not None:
            result = None
            if found.error is None:
                result = _as_returned(scope, found) if again is None else again(found)
            return partial(_give, found, result)
    if tools.runs_missing:
        return None
    call = f"{scope.name}({(scope.arguments or '')[:200]})"
    scope.run.interrupted = f"a tool call that is not in the record: {scope.name}"
    return partial(_refuse, call)


def _as_returned(scope: Scope, tool: RecordedTool) -> Any:
    return tool.result if scope.function is None else as_annotated(tool.result, hints_of(scope.function).get("return"))


def _give(tool: RecordedTool, result: Any) -> Any:
    if tool.error is not None:
        raise getattr(builtins, tool.error)(tool.message)
    return result


def _refuse(call: str) -> NoReturn:
    raise ToolNotRecorded(f"the record holds no such call of a tool: {call}", "--on-missing live runs such calls.")
