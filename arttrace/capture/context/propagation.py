"""What a trajectory says to another process of itself: one line of text, in an environment variable or in `baggage`.

The line is a traceparent and, after semicolons, `key=value` pairs: the trajectory's id, the execution that the other
process descends from, a content mode, and for a child on this machine the project, the data directory, and the file by
which it says that it records a part of a run which sampling may leave out.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote, unquote

import msgspec

from arttrace.capture.base.guard import logger
from arttrace.capture.context import sampling
from arttrace.capture.context.flow import calling_flow

VARIABLE = "ARTTRACE_CONTEXT"
BAGGAGE = "arttrace.context"
_MAX_LENGTH = 4096
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


class Carried(msgspec.Struct, frozen=True):
    """A place in a trajectory that lives in another process. `span_id` is the span that what happens here is under."""

    trace_id: int
    span_id: int
    trajectory_id: str
    execution_id: str | None = None
    capture_content: str = "full"
    project: str | None = None
    dir: str | None = None
    mark: str | None = None

    def text(self) -> str:
        """The line, of printable ASCII without spaces and commas."""
        pairs = {
            "trajectory": self.trajectory_id,
            "execution": self.execution_id,
            "content": None if self.capture_content == "full" else self.capture_content,
            "project": self.project,
            "dir": self.dir,
            "mark": self.mark,
        }
        said = [f"{key}={quote(value, safe='/')}" for key, value in pairs.items() if value is not None]
        return ";".join([f"00-{self.trace_id:032x}-{self.span_id:016x}-01", *said])


def parse(text: str) -> Carried | None:
    """A line read back; None, and logged, where it is none: what was to join stands alone then."""
    head, *rest = text.split(";")
    match = _TRACEPARENT.fullmatch(head)
    said = {key: unquote(value) for key, _, value in (pair.partition("=") for pair in rest)}
    if match is None or not said.get("trajectory") or len(text) > _MAX_LENGTH:
        logger.warning("arttrace: %r names no trajectory; what happens here joins none", text[:200])
        return None
    return Carried(
        trace_id=int(match[1], 16),
        span_id=int(match[2], 16),
        trajectory_id=said["trajectory"],
        execution_id=said.get("execution"),
        capture_content=said.get("content", "full"),
        project=said.get("project"),
        dir=said.get("dir"),
        mark=said.get("mark"),
    )


def carried_by(*, far: bool = False, joins: bool = True) -> Carried | None:
    """What the current flow says of itself, None where it is in no trajectory. `far`: to another machine. `joins`: who
    that receives it records its part for certain; else it marks the run when it does."""
    flow = calling_flow()
    scope = flow.scope
    if scope is None or flow.muted or not scope.id:
        return None
    context = scope.context
    settings = scope.recorder.settings
    if joins:
        sampling.keep(scope.id)  # the other process stores its part, and so this one does
    return Carried(
        trace_id=context.trace_id,
        span_id=context.span_id,
        trajectory_id=scope.id,
        execution_id=flow.execution.id if flow.execution is not None else None,
        capture_content=scope.capture_content,
        mark=None if joins else sampling.mark_for(scope.id, settings.data),
        project=None if far else settings.project,
        dir=None if far else str(settings.data.root.absolute()),
    )


_of_process: tuple[str, Carried | None] = ("", None)


def of_process() -> Carried | None:
    """The trajectory that this process was started in, by the environment."""
    global _of_process
    text = os.environ.get(VARIABLE, "")
    if text != _of_process[0]:
        _of_process = (text, parse(text))
    return _of_process[1]
