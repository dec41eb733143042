"""The context of a trajectory as one line of text, for another process: an environment variable, or a `baggage` entry.

The line is a traceparent and, after semicolons, `key=value` pairs: the trajectory's id, the execution that the other
process descends from, a content mode, and for a child on this machine the project, the data directory, and the file
that the child creates when it records a part of a run which sampling may leave out. What `text` writes `parse` reads
back; a line that cannot be read is logged and names no trajectory.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote, unquote

import msgspec

from arttrace.capture.base.guard import logger

VARIABLE = "ARTTRACE_CONTEXT"
BAGGAGE = "arttrace.context"
_MAX_LENGTH = 4096
_ANY = "surrogatepass"  # a directory's name need not be UTF-8
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


class RemoteContext(msgspec.Struct, frozen=True):
    """A position in a trajectory of another process. `span_id` is the parent of the spans that are made below it."""

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
        fields = [f"{key}={quote(value, safe='/', errors=_ANY)}" for key, value in pairs.items() if value is not None]
        return ";".join([f"00-{self.trace_id:032x}-{self.span_id:016x}-01", *fields])


def parse(text: str, *, of_this_machine: bool = True) -> RemoteContext | None:
    """Read a line back. Returns None, and logs it, where the line names no trajectory.

    One that came over the network is not `of_this_machine`: anybody may have written it, and it names no files.
    """
    head, *rest = text.split(";")
    match = _TRACEPARENT.fullmatch(head)
    fields = {key: _unquoted(value) for key, _, value in (pair.partition("=") for pair in rest)}
    if match is None or not fields.get("trajectory") or len(text) > _MAX_LENGTH:
        logger.warning("arttrace: %r names no trajectory; this process joins none", text[:200])
        return None
    return RemoteContext(
        trace_id=int(match[1], 16),
        span_id=int(match[2], 16),
        trajectory_id=fields["trajectory"],
        execution_id=fields.get("execution"),
        capture_content=fields.get("content", "full"),
        project=fields.get("project"),
        dir=fields.get("dir") if of_this_machine else None,
        mark=fields.get("mark") if of_this_machine else None,
    )


def _unquoted(value: str) -> str:
    try:
        return unquote(value, errors=_ANY)
    except UnicodeDecodeError:  # nothing that `text` wrote
        return unquote(value)


_of_process: tuple[str, RemoteContext | None] = ("", None)


def of_process() -> RemoteContext | None:
    """The context that this process was started in, by the environment; None outside any trajectory."""
    global _of_process
    text = os.environ.get(VARIABLE, "")
    if text != _of_process[0]:
        _of_process = (text, parse(text) if text else None)
    return _of_process[1]
