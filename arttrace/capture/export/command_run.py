"""The one run of a rollout's command, whichever of its processes records it: the first says in a file where it is, and
the others become parts of it.

From its beginning to the command's end the run has a span without an operation, below its root, which is in progress as
long as the command is: another of its programs may go on with a run whose root has ended.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from arttrace.capture.base.guard import logger
from arttrace.capture.base.remote_context import RemoteContext, parse
from arttrace.capture.export import lifecycle
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.system.journal.lock import acquire

_WAIT_S = 10.0
_LOOK_EVERY_S = 0.005
_MAX_BYTES = 8192


class CommandRun:
    """The file in which the processes of one command say who has begun its run."""

    def __init__(self, path: str) -> None:
        self._path = path

    def end(self) -> None:
        """The command has ended. Does nothing where none of its processes has begun the run."""
        try:
            fd = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            begun, start_ns = _read(fd)
        finally:
            os.close(fd)
        if begun is not None:
            lifecycle.recorder().record(_of_command(begun, start_ns, max(time.time_ns(), start_ns)))

    @contextmanager
    def turn(self) -> Iterator[Turn | None]:
        """One process at a time. None where it cannot be asked who has begun the run, as the rollout is over: what is
        recorded then is a run of its own."""
        fd = -1
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            end = time.monotonic() + _WAIT_S
            while not acquire(fd):
                if time.monotonic() > end:
                    raise TimeoutError(f"another process holds {self._path}")
                time.sleep(_LOOK_EVERY_S)
            turn = Turn(fd, _read(fd)[0])
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            logger.warning("arttrace: what is recorded here is not in the rollout's run: %s", error)
            yield None
            return
        try:
            yield turn
        finally:
            os.close(fd)


class Turn:
    """`begun` is where the run is that a process has begun; None where this one is to begin it, and `note` it."""

    def __init__(self, fd: int, begun: RemoteContext | None) -> None:
        self._fd = fd
        self.begun = begun

    def note(self, begun: RemoteContext) -> None:
        """Say where this process has begun the run."""
        start_ns = time.time_ns()
        os.write(self._fd, f"{start_ns} {begun.text()}".encode())
        lifecycle.recorder().record(_of_command(begun, start_ns))


def _read(fd: int) -> tuple[RemoteContext | None, int]:
    """Where the run was begun, None where it was not, and when."""
    start, _, text = os.read(fd, _MAX_BYTES).decode().partition(" ")
    return (parse(text), int(start)) if text else (None, 0)


def _of_command(begun: RemoteContext, start_ns: int, end_ns: int = 0) -> SpanRow:
    root = f"{begun.span_id:016x}"
    return SpanRow(
        trace_id=f"{begun.trace_id:032x}",
        span_id=hashlib.blake2b(root.encode(), digest_size=8, person=b"arttrace.command").hexdigest(),
        parent_span_id=root,
        name="command",
        start_ns=start_ns,
        end_ns=end_ns,
        attributes={semconv.TRAJECTORY_ID: begun.trajectory_id, semconv.TRAJECTORY_SPAN_COUNT: 0},
        scope_name="arttrace",
    )
