"""Sampling: which runs are stored, by a rate or a rule of the user's, always with those that failed or were rewarded.

The decision is made when a run begins, by its id alone where the rate is a number: processes that know the same id
decide alike. What a run that is not sampled records is buffered in memory until its root ends, and then dropped as a
whole, unless it is kept before, for an error or a reward. Who decides first has decided; every recorder settles its own
part in its own thread.

A run that another process records a part of cannot be buffered: that part is written there before anybody knows how the
run ends. All of it is written at once then, and when its root ends well a span says that it was left out: the store
shows nothing of such a run, unless some process has rewarded it (store/rows/left_out.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from arttrace.capture.base.guard import Guard, logger
from arttrace.capture.base.ids import random_hex
from arttrace.capture.base.sample_rate import BeginningRun, Sample, as_rate, is_sampled
from arttrace.capture.export import summary
from arttrace.records import semconv
from arttrace.records.record import Record, encode_record
from arttrace.records.span import SpanRow
from arttrace.system.paths import DataDir

MAX_BUFFERED_BYTES = 64 << 20
"""What runs that are not sampled may buffer in all; beyond it those that have been buffered longest are stored."""
_REMEMBERED = 100_000

_deciding = Guard("deciding whether a run is sampled")
_warned = False


class _BufferedRun:
    """A run that is not sampled and not decided on, as long as it has no verdict."""

    __slots__ = ("id", "parts", "verdicts")

    def __init__(self, trajectory_id: str) -> None:
        self.id = trajectory_id
        self.parts: dict[RunBuffer, list[tuple[bytes, bool]]] = {}
        self.verdicts: list[bool] = []  # whether it is kept: the first counts, and appending is atomic


class _JoinedRun:
    """How many model calls this process has written of a run. It is counted here, and not in the table of them: whoever
    keeps the run meanwhile takes it out of that."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


# No locks: a finalizer may give a reward, or end a run, on a thread that is in here.
_buffered: dict[str, _BufferedRun] = {}
_left_out: dict[str, None] = {}
_joined: dict[str, _JoinedRun] = {}
"""Runs that are not sampled and yet written, as other processes record parts of them."""
_marks: dict[str, str] = {}
"""Files that child processes make of runs in which they record something, by the run's id."""
_set: set[str] = set()


def begin(
    trajectory_id: str, name: str, sample: Sample, *, tags: Sequence[str], metadata: Mapping[str, msgspec.Raw]
) -> None:
    """A trajectory begins; what it records is buffered if it is not sampled. One that cannot be decided on is stored.

    Both are stored where another root of its id has not ended: whichever ended first would decide for the other.
    """
    if sample == 1 and not (_buffered or _joined or _left_out):
        return
    sampled = True
    with _deciding:
        rate = sample
        if callable(sample):
            decoded = {key: msgspec.json.decode(value) for key, value in metadata.items()}
            rate = sample(BeginningRun(trajectory_id, name, tuple(tags), decoded))
        sampled = is_sampled(trajectory_id, as_rate(rate))
    with _deciding:
        if trajectory_id in _buffered or trajectory_id in _joined:
            sampled = True
            keep(trajectory_id)
        _left_out.pop(trajectory_id, None)  # an earlier one of this id
        if not sampled:
            _buffered[trajectory_id] = _BufferedRun(trajectory_id)


def before_fork(current: Callable[[], str | None]) -> None:
    """This process forks: the child may go on with the run that `current` returns the id of, and would store its
    part."""
    with _deciding:
        trajectory_id = current() if _buffered else None
        if trajectory_id is not None:
            join(trajectory_id)


def keep(trajectory_id: str) -> None:
    """Store the run, if it is buffered, and all that it records from now on."""
    _joined.pop(trajectory_id, None)
    _decide(trajectory_id, True)


def join(trajectory_id: str) -> None:
    """Another process records a part of the run: if it is buffered, write it now, and say at its end that it was left
    out."""
    if trajectory_id in _buffered:
        _joined[trajectory_id] = _JoinedRun()
        _decide(trajectory_id, True)


def mark_for(trajectory_id: str, data: DataDir) -> str | None:
    """The file that a child process is to make before it records its part of the run; None where the run is stored."""
    if trajectory_id not in _buffered:
        return None
    directory = data.root.absolute() / "joined"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        join(trajectory_id)
        return None
    return _marks.setdefault(trajectory_id, str(directory / random_hex(32)))


def set_mark(path: str) -> None:
    """This process records a part of the run that another one buffers: it is to be written.

    Where that cannot be said, or the run has ended, the part is stored without its root: incomplete.
    """
    if path not in _set:
        _set.add(path)
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def _was_marked(trajectory_id: str) -> bool:
    path = _marks.pop(trajectory_id, None)
    if path is None:
        return False
    try:
        Path(path).unlink()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def was_left_out(trajectory_id: str) -> bool:
    """Whether the run has ended and was dropped."""
    return trajectory_id in _left_out


def warn_left_out(trajectory_id: str) -> None:
    """Says, once, that a reward came too late for a run that was dropped."""
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "arttrace: the run %.100r was left out by sampling when it ended; the reward that came later is not "
            "recorded. Give it before the run ends, or have `sample` store such runs (logged once)",
            trajectory_id,
        )


def _decide(trajectory_id: str, kept: bool, here: RunBuffer | None = None) -> bool:
    """Decide on a buffered run, for who is first; whether that was the one who asks."""
    run = _buffered.get(trajectory_id)
    if run is None:
        return False
    run.verdicts.append(kept)
    kept = run.verdicts[0]
    if not kept:
        _left_out[trajectory_id] = None
        if len(_left_out) > _REMEMBERED:
            _left_out.pop(next(iter(_left_out)), None)
    first = _buffered.pop(trajectory_id, None) is not None
    for buffer in list(run.parts):
        if buffer is here:
            buffer.settle(run)
        else:
            buffer.settle_later(run)
    return first and not kept


class RunBuffer:
    """One recorder's part of the runs that are buffered. Its methods are for that recorder's background thread."""

    def __init__(self, submit: Callable[[Callable[[], None]], None], write: Callable[[bytes], None]) -> None:
        self._submit = submit
        self._write = write
        self._bytes = 0
        self.left_out = 0
        """Runs that were dropped."""

    def takes(self, record: Record, payload: bytes) -> bool:
        """Whether the record is not to be written now: its run is buffered, or was left out."""
        if not (_buffered or _left_out or _joined):
            return False
        if isinstance(record, SpanRow):
            trajectory_id = record.attributes.get(semconv.TRAJECTORY_ID)
        else:
            trajectory_id = getattr(record, "trajectory_id", None)
        if not isinstance(trajectory_id, str):
            return False
        run = _buffered.get(trajectory_id)
        if run is None:
            if (joined := _joined.get(trajectory_id)) is not None:
                joined.calls += summary.is_call(record)
            if trajectory_id not in _left_out:
                return False
            summary.dropped(calls=summary.is_call(record))
            return True
        run.parts.setdefault(self, []).append((payload, summary.is_call(record)))
        self._bytes += len(payload)
        if run.verdicts:  # decided meanwhile, perhaps before this part was there to be settled
            self.settle(run)
        if self._bytes > MAX_BUFFERED_BYTES:
            self._make_room()
        return True

    def root_ended(self, trajectory_id: str, *, failed: bool) -> None:
        """The root of a run has been recorded: one that is still buffered is decided on."""
        if _was_marked(trajectory_id):
            join(trajectory_id)
        left_out = _decide(trajectory_id, failed, self)
        joined = _joined.pop(trajectory_id, None)
        if joined is not None and not failed:
            self._write(encode_record(left_out_span(trajectory_id)))
            summary.dropped(calls=joined.calls)
            left_out = True
        if left_out:
            self.left_out += 1
            summary.dropped(runs=1)

    def settle(self, run: _BufferedRun) -> None:
        """Write or drop this part of a run that was decided on."""
        part = run.parts.pop(self, [])
        self._bytes -= sum(len(payload) for payload, _ in part)
        if run.verdicts[0]:
            for payload, _ in part:
                self._write(payload)
            if (joined := _joined.get(run.id)) is not None:
                joined.calls += sum(is_call for _, is_call in part)
        else:
            summary.dropped(calls=sum(is_call for _, is_call in part))

    def settle_later(self, run: _BufferedRun) -> None:
        """The same from any thread."""
        self._submit(lambda: self.settle(run))

    def forget(self) -> None:
        """In a forked child: what is buffered is the parent's."""
        self._bytes = self.left_out = 0

    def _make_room(self) -> None:
        for trajectory_id, run in list(_buffered.items()):
            if self._bytes <= MAX_BUFFERED_BYTES:
                return
            if self in run.parts:
                _decide(trajectory_id, True, self)


def left_out_span(trajectory_id: str) -> SpanRow:
    now = time.time_ns()
    return SpanRow(
        trace_id=random_hex(32),
        span_id=random_hex(16),
        name="left out by sampling",
        start_ns=now,
        end_ns=now,
        attributes={semconv.TRAJECTORY_ID: trajectory_id, semconv.OPERATION_NAME: semconv.OPERATION_LEFT_OUT},
        scope_name="arttrace",
    )


def _after_fork_in_child() -> None:
    _buffered.clear()
    _joined.clear()
    _marks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
