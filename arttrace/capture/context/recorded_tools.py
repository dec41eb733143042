"""The recorded results of a rollout's tools: a tool that was recorded returns what it returned then, and does not run.

Which there are is part of the rollout's job and lies on its `RunState`; outside of rollouts there are none, and every
tool runs. A recorded execution is found by the tool's name and its arguments as JSON, and answers one call, in order.
"""

from __future__ import annotations

import builtins
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from arttrace.capture.base.annotations import as_annotated, hints_of
from arttrace.records.message import canonical_json
from arttrace.records.rollout import RecordedTool, ToolRecord
from arttrace.system import native_threads
from arttrace.system.errors import ArttraceError


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


def as_returned(function: Callable[..., Any] | None, tool: RecordedTool) -> Any:
    """The recorded result as what `function` is annotated to return; as JSON values where it is None."""
    return tool.result if function is None else as_annotated(tool.result, hints_of(function).get("return"))


def replay(tool: RecordedTool, result: Any) -> Any:
    """Return `result`, or raise what the tool raised."""
    if tool.error is not None:
        kind = getattr(builtins, tool.error)
        raise kind(_Key(tool.message) if issubclass(kind, KeyError) else tool.message)
    return result


class _Key(str):
    """The text of a KeyError, which is its key's repr()."""

    def __repr__(self) -> str:
        return str(self)


def refuse(call: str) -> NoReturn:
    """Raise ToolNotRecorded: `call` is to be neither run nor answered."""
    raise ToolNotRecorded(f"the record has no such tool call: {call}", "--on-missing live runs such calls.")
