"""The recorder: makes spans, ends them in a background thread, and appends them to the spool.

The user's thread only starts a span and hands over what it saw; decoding, encoding and writing happen here. A span is
with the operating system as soon as its job has run, and on the disk a second later or after `flush`.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from arttrace.capture.base.guard import Guard, failed, raise_background_failure
from arttrace.capture.base.receiver import resource_attributes
from arttrace.capture.base.settings import MAX_SPOOL_BYTES, MAX_WAITING_BYTES, Settings
from arttrace.capture.export import summary
from arttrace.capture.export.destinations import Destinations
from arttrace.capture.export.open_span import Lasting, Opened
from arttrace.capture.export.sampling import RunBuffer
from arttrace.capture.export.span_rows import span_row
from arttrace.capture.export.spool import Counts, SpoolWriter
from arttrace.capture.export.worker_pacing import GATHER_S, PAUSE_S, Turns
from arttrace.records import semconv
from arttrace.records.record import Record, encode_record
from arttrace.system import native_threads
from arttrace.system.processes import at_the_end_of_a_multiprocessing_child
from arttrace.wire.content import ContentRules

Job = Callable[[], object]

_SYNC_INTERVAL_S = 0.5  # half of what is promised: power may fail a second after a call ended
_SHOWN_AFTER_S = 1.0
_EXIT_S = 10.0
_LOOK_AFTER_S = 0.5  # whether the worker is still there, while a flush waits for it
_GATHER_BYTES = 8 << 20
_background = Guard("recording in the background", background=True)


class Recorder:
    """One per process. Its spans are its own: no sampler, limit or processor of the user's applies to them."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.is_off = settings, settings.disabled  # what it is given while it is off is dropped
        self.names_runs = settings.names_runs
        self.rules = ContentRules(settings.capture_content, settings.mask, partial(failed, "the mask", background=True))
        self._not_queued, self._patience_s = 0, 0.0  # for which calls may still wait, all together, at the exit
        self._spool = SpoolWriter(settings.data, ships=settings.endpoint is not None, max_bytes=MAX_SPOOL_BYTES)
        self.destinations = Destinations(settings)
        self._resource: dict[str, Any] = {**resource_attributes(os.environ), semconv.SERVICE_NAME: settings.project}
        self._start_worker_state()
        self._buffer = RunBuffer(self.submit, lambda payload: self._turn.append(payload))

    def ended(
        self,
        what: Opened,
        attributes: dict[str, Any],
        end_ns: int,
        failure: tuple[str, str] | None,
        left_open: Sequence[Lasting] | None = None,
    ) -> None:
        """End the span of a call or scope and append to the spool what of it may be written; a job's to do. `failure`
        is (error type, message). With the root of what this process did in a run come the scopes that it left open. No
        span ends before it began, as where a clock was set back: receivers take such a span for centuries long."""
        span, mode, is_whole = what.span, what.capture_content, False
        try:
            if left_open is not None:
                self._show_left_open(what, left_open)
            said = "" if failure is None else failure[1]
            span.attributes, said = self.rules.span(attributes, said, mode, what.hidden)
            span.end_ns, span.failure = max(end_ns, span.start_ns), None if failure is None else (failure[0], said)
            self._open.pop(id(what), None)
            summary.ended(what, span.attributes)
            self.append(span_row(span, self._resource))
            is_whole = True
        finally:
            if getattr(what, "is_root", False):
                run_id = attributes.get(semconv.TRAJECTORY_ID, "")
                self._buffer.root_ended(run_id, failed=failure is not None or not is_whole)

    def submit(self, job: Job, weight: int = 0, *, waits: bool = True) -> None:
        """Run a job in the background, after those submitted before.

        `weight` is how many bytes it holds. When too many wait (a disk that hangs), the job is refused and counted:
        the user's program is not to run out of memory. While the program exits, who `waits` returns when it is written,
        and no call any more when a disk has kept them for `_EXIT_S` together.
        """
        if self.is_off:
            return
        if weight:
            with self._weighing:
                full = self._waiting_bytes + weight > MAX_WAITING_BYTES
                self._waiting_bytes += 0 if full else weight
                many = self._waiting_bytes > _GATHER_BYTES
            if many:
                self._hurry.set()
            if full:
                self._not_queued += 1
                failed("keeping up with the calls", BufferError(f"over {MAX_WAITING_BYTES} bytes wait to be written"))
                return
        self._jobs.put((job, weight, time.monotonic()))
        if sys.is_finalizing():  # a thread that is started now never begins, and its start never returns
            self._drain()
        elif self._worker is None:
            self._start_worker()
        if self._patience_s > 0 and waits and not native_threads.is_ours():
            began = time.monotonic()
            self.hand_over(self._patience_s)
            self._patience_s -= time.monotonic() - began

    def started(self, what: Lasting, *, joins: bool = False) -> None:
        """Say that a call or a root has begun: it is asked in the background for its span and the attributes known by
        then. One that lasts over a second is spooled once as it is, without an end; one that `joins` another process's
        run at the end of this turn, as that run may end before it."""
        self._open[id(what)] = (time.monotonic() + _SHOWN_AFTER_S, what)
        if joins or self._idle:  # the worker waits for a job, and for nothing else
            self.submit(partial(self._joined.append, what) if joins else _nothing)

    def record(self, record: Record) -> None:
        """Append a record to the spool in the background."""
        self.submit(lambda: self.append(record))

    def append(self, record: Record) -> None:
        """Append a record to the spool when this turn ends; one that the spool refuses is logged and counted."""
        try:
            if not self._buffer.takes(record, payload := encode_record(record)):
                self._turn.append(payload)
        except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
            self._spool.refuse(error)
            summary.lost(record)

    def _end_turn(self) -> None:
        """Write what the jobs of this turn appended: at once, as each write hands the interpreter over."""
        while self._joined:
            self._show(self._joined.pop(0))
        payloads = self._turn.copy()
        self._turn.clear()
        if self._spool.write(payloads):
            self.destinations.spooled()
        if payloads:
            summary.write_on()
        self.destinations.forward(payloads)

    def counts(self) -> Counts:
        """What became of this process's records so far."""
        return Counts(
            recorded=self._spool.recorded,
            refused=self._spool.refused + self._not_queued,
            delivered=self.destinations.delivered,
            rejected=self.destinations.rejected,
            left_out=self._buffer.left_out,
        )

    def hand_over(self, timeout_s: float | None = None) -> bool:
        """Return when everything submitted before is with the operating system, which outlives this process; False
        when that took longer than `timeout_s`."""
        done = native_threads.Event()
        self.submit(self._end_turn, waits=False)
        self.submit(done.set, waits=False)
        self._hurry.set()
        return self._wait(done, timeout_s) or self.is_off

    def flush(self, timeout_s: float | None = None) -> bool:
        """The same for when it is on the disk."""
        in_time = self.hand_over(timeout_s)
        self._sync()
        raise_background_failure()
        return in_time

    def _sync(self) -> None:
        self.destinations.sync()
        self._spool.sync()

    def _sync_beside(self) -> bool:
        """Sync in a thread of its own: what ends meanwhile is to be written. False while one waits for the disk."""
        if not self._syncing.acquire(blocking=False):
            return False
        try:
            native_threads.Thread(self._sync_then_release).start()
        except RuntimeError:  # the interpreter ends, no thread starts
            self._sync_then_release()
        return True

    def _sync_then_release(self) -> None:
        try:
            with _background:
                self._sync()
        finally:
            self._syncing.release()

    def _wait(self, done: native_threads.Event, timeout_s: float | None) -> bool:
        """Wait for a job to be done by the worker, or do what waits in its place when there is none."""
        end = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            worker = self._worker
            if done.wait_outside(0.0 if worker is None else min(_LOOK_AFTER_S, max(0.0, end - time.monotonic()))):
                break
            if worker is None or not worker.is_alive():  # the interpreter ends, no thread starts
                self._drain()
                return done.is_set()
            if time.monotonic() >= end:
                return False
        return True

    def close(self, timeout_s: float | None = None) -> bool:
        """Flush, then seal the segment so that a reader may take it away. A later submit opens a new one."""
        in_time = self.flush(timeout_s)
        self.destinations.seal()
        self._spool.close()
        return in_time

    def exit(self) -> None:
        """Show what is open, and close; any moment now the process ends, and the worker with it."""
        self.submit(self._show_open)
        self.close(_EXIT_S)
        self._patience_s = _EXIT_S

    def deliver(self, timeout_s: float | None, *, patient: bool = True) -> bool:
        """Return True when what was closed is with the collector and with every receiver; see `Destinations`."""
        return self.destinations.deliver(timeout_s, patient=patient)

    def retire(self) -> None:
        """Close, and leave the shipping to the recorder that comes after this one."""
        self.close()
        if self._open:
            self.destinations.stop()
        else:
            self.stop()

    @property
    def has_work(self) -> bool:
        """Whether anything may wait to be written."""
        return self._worker is not None or not self._jobs.empty()

    def stop(self) -> None:
        """End its threads after what they have been given. A later `submit` starts another."""
        if self._worker is not None:
            self.submit(_end_of_work, waits=False)  # nothing behind it is done any more
            self._hurry.set()
        self.destinations.stop()

    def _start_worker_state(self) -> None:
        self._jobs: native_threads.SimpleQueue[tuple[Job, int, float]] = native_threads.SimpleQueue()
        self._turn: list[bytes] = []
        self._turns = Turns()
        self._hurry = native_threads.Event()  # somebody waits for a flush, or much waits
        self._weighing = native_threads.allocate_lock()
        self._syncing = native_threads.allocate_lock()
        self._waiting_bytes = 0
        self._worker: native_threads.Thread | None = None
        self.has_begun = False  # since the fork, where the process was forked
        self._starting = native_threads.allocate_lock()
        self._open: dict[int, tuple[float, Lasting]] = {}  # by id(), in order; not what was spooled
        self._joined: list[Lasting] = []  # what began in this turn and joins another process's run
        self._idle = True

    def _start_worker(self) -> None:
        if not self._starting.acquire(blocking=False):  # maybe by this very thread, which collects a dropped stream
            return
        try:
            if self._worker is not None:
                return
            self._worker = worker = native_threads.Thread(self._work)
            self.has_begun = True
            try:
                worker.start()
            except BaseException as error:
                self._worker = None  # whatever kept it from starting, the next job tries again
                if not isinstance(error, RuntimeError):
                    raise
                return
        finally:
            self._starting.release()
        at_the_end_of_a_multiprocessing_child(partial(self.close, 5.0), priority=100)
        at_the_end_of_a_multiprocessing_child(summary.write, priority=90)

    def _work(self) -> None:
        try:
            with _background:  # a worker that dies is counted, and the next job starts another
                self._work_off()
        finally:
            self._worker = None

    def _work_off(self) -> None:
        sync_at: float | None = None
        self._gather()
        while True:
            job, weight, since = self._next_job(sync_at)
            if job is _end_of_work:
                self._end_turn()
                return
            if job is not None:
                self._run(job, weight)
                self._turns.took(since)
                if self._turns.is_over(now := time.monotonic()):
                    self._end_turn()
                    if not self._hurry.is_set() and self._turns.gives_way(now):
                        native_threads.sleep(PAUSE_S)
                        self._turns.woke(now + PAUSE_S, time.monotonic())
                    self._turns.begin(time.monotonic())
                sync_at = time.monotonic() + _SYNC_INTERVAL_S if sync_at is None else sync_at
            del job  # holds the bytes of a call
            if self._show_open(time.monotonic()):
                sync_at = time.monotonic() + _SYNC_INTERVAL_S if sync_at is None else sync_at
            if sync_at is not None and time.monotonic() >= sync_at:
                sync_at = None if self._sync_beside() else time.monotonic() + _SYNC_INTERVAL_S

    def _next_job(self, sync_at: float | None) -> tuple[Job | None, int, float]:
        """The next job, or None when it is time for something else. One that had to be waited for waits for more."""
        with contextlib.suppress(native_threads.Empty):
            return self._jobs.get_nowait()
        self._end_turn()
        self._hurry.clear()
        self._idle = sync_at is None  # before the look at what has begun: `started` looks the other way round
        shown_at = next((due for due, _ in list(self._open.values())), None)
        times = [each for each in (sync_at, shown_at) if each is not None]
        self._idle = not times
        try:
            job = self._jobs.get(timeout=max(0.0, min(times) - time.monotonic()) if times else None)
        except native_threads.Empty:
            return None, 0, 0.0
        self._idle = False
        self._turns.woke(job[2], time.monotonic())
        self._gather()
        return job

    def _gather(self) -> None:
        now = time.monotonic()
        if not self._turns.is_crowded(now):
            hurried = self._hurry.wait(GATHER_S)
            asked, now = now + GATHER_S, time.monotonic()
            self._turns.woke(now if hurried else asked, now)
        self._turns.begin(now)

    def _show_open(self, by: float = math.inf) -> bool:
        """Spool the calls and roots that are to be shown by then; whether there were any."""
        shown = False
        for key, (due, what) in list(self._open.items()):
            if due > by:
                break
            if key in self._open:
                shown = True
                self._show(what)
        return shown

    def _show_left_open(self, root: Opened, scopes: Sequence[Lasting]) -> None:
        """Spool as they are these scopes and the run's calls, before its root: it is complete when they have ended."""
        run = getattr(root, "run", None)
        for one in (*(one for _, one in list(self._open.values()) if one.run is run and one is not root), *scopes):
            self._show(one)

    def _show(self, what: Lasting) -> None:
        self._open.pop(id(what), None)
        if not what.span.end_ns:
            with _background:
                row = span_row(what.span, self._resource)
                row = msgspec.structs.replace(row, attributes={**row.attributes, **what.so_far()})
                self.append(self.rules.row(row, what.capture_content))

    def _drain(self) -> None:
        with contextlib.suppress(native_threads.Empty):
            while True:
                job, weight, _ = self._jobs.get_nowait()
                self._run(job, weight)
        self._end_turn()

    def _run(self, job: Job, weight: int) -> None:
        with _background:
            job()
        if weight:
            with self._weighing:
                self._waiting_bytes -= weight

    def after_fork_in_child(self) -> None:
        """Jobs waiting at the fork are the parent's; the child starts with none, and a thread of its own."""
        self._start_worker_state()
        self._not_queued = 0
        self._spool.after_fork_in_child()
        self._buffer.forget()
        self.destinations.after_fork_in_child()


def _end_of_work() -> None:
    """A job after which the worker ends."""


def _nothing() -> None:
    """A job that only wakes the worker."""
