"""The shipper: a background thread that delivers the outbox of this data directory for as long as there is one.

Of all the processes that share the directory one ships at a time, for all of them and for those that died; another
takes over when it ends. The user's thread never waits for it, but in `drain`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from arttrace.capture.base.guard import Guard, logger
from arttrace.capture.base.receiver import Receiver
from arttrace.capture.export.shipping.delivery import Delivered, Delivery, NotNow, ShippingLock, sizes, undelivered
from arttrace.capture.export.shipping.otlp_client import OtlpClient
from arttrace.system import native_threads
from arttrace.system.suppression import suppress_instrumentation

_GATHER_S = 0.2  # what comes within this time goes out together
_LOOK_S = 1.0  # how often to look for what other processes wrote, and for the lock
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 60.0
_URGENT_WAIT_S = 0.2  # between attempts while somebody waits for the delivery

_shipping = Guard("shipping to the collector", background=True)


def drain(shippers: Sequence[Shipper], timeout_s: float | None, *, patient: bool = True) -> bool:
    """Return when each of them has delivered what is sealed, or cannot, as `Shipper.drain` says of one."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    left: dict[Shipper, Callable[[bool], bool | None]] = {}
    delivered = True
    try:
        for shipper in shippers:
            left[shipper] = shipper.begin_drain()
        while True:
            for shipper, outcome in list(left.items()):
                said = outcome(patient)
                if said is not None:
                    delivered = delivered and said
                    del left[shipper]
                    shipper.end_drain()  # one that is waited for asks its receiver without a pause
            if not left:
                return delivered
            if end is not None and time.monotonic() >= end:
                return False
            native_threads.pause(0.02)
    finally:
        for shipper in left:
            shipper.end_drain()


class Shipper:
    """Ships one directory to one receiver. Raises ArttraceError when the receiver cannot be one."""

    def __init__(self, directory: Path, receiver: Receiver) -> None:
        OtlpClient(receiver)
        self._directory = directory
        self._new_client: Callable[[], OtlpClient] = lambda: OtlpClient(receiver)
        self._lock: ShippingLock | None = None
        self._client: OtlpClient | None = None
        self._earlier = Delivered()
        self._reset()

    def _reset(self) -> None:
        self._thread: native_threads.Thread | None = None
        self._starting = native_threads.Lock()
        self._news = native_threads.Event()
        self._hurry = native_threads.Event()
        self._stop = native_threads.Event()
        self._waiting = 0  # callers of `drain`
        self._delivery: Delivery | None = None
        self.outages = 0
        self._attempts = self._misconfigured = 0  # begun; the last of them that found a receiver set up wrongly

    @property
    def counts(self) -> Delivered:
        """What this process has delivered, and what was refused."""
        counts = [self._earlier, *([self._delivery.counts] if self._delivery is not None else [])]
        return Delivered(
            delivered=sum(each.delivered for each in counts),
            refused=sum(each.refused for each in counts),
            damaged=sum(each.damaged for each in counts),
        )

    def notify(self) -> None:
        """There is something new in the outbox. Called in the background."""
        self._start()
        if not self._news.is_set():
            self._news.set()

    def drain(self, timeout_s: float | None, *, patient: bool = True) -> bool:
        """Return True when all that nobody writes any more, of this process and its children, is delivered by whichever
        process ships; False when the time is over, or, without `patient`, when the receiver does not take it."""
        return drain([self], timeout_s, patient=patient)

    def begin_drain(self) -> Callable[[bool], bool | None]:
        """Deliver what is sealed with short pauses, until `end_drain`. The function, which is called with whether to be
        patient, says whether it is delivered; None while it may still be."""
        sealed, outages = sizes(self._directory, finished_only=True), self.outages
        begun = self._attempts
        self._waiting += 1
        if sealed:
            self._start()
            self._hurry.set()
            self._news.set()

        def outcome(patient: bool) -> bool | None:
            if not undelivered(self._directory, sealed):
                return True
            if self._misconfigured > begun:  # nothing will be taken until somebody changes something again
                return False
            return False if self._thread is None or (not patient and self.outages > outages) else None

        return outcome

    def end_drain(self) -> None:
        """Nobody waits any more."""
        self._waiting -= 1

    def stop(self) -> None:
        """End the thread after the request under way. A later `notify` starts another."""
        self._stop.set()
        self._hurry.set()
        self._news.set()
        self._thread = None

    def after_fork_in_child(self) -> None:
        """The thread, the lock and the connection are the parent's; the child ships with its own."""
        if self._lock is not None:
            self._lock.release()
        if self._client is not None:
            self._client.close()
        self._lock = self._client = None
        self._earlier = Delivered()
        self._reset()

    def _start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            self._stop = native_threads.Event()
            thread = native_threads.Thread(partial(self._run, self._stop))
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending
                return
            self._thread = thread

    def _run(self, stop: native_threads.Event) -> None:
        with suppress_instrumentation():
            while not stop.is_set():
                with _shipping:
                    lock = ShippingLock.take(self._directory)
                    if lock is not None:
                        self._lock = lock
                        self._ship(lock, stop)
                stop.wait(_URGENT_WAIT_S if self._waiting else _LOOK_S)

    def _ship(self, lock: ShippingLock, stop: native_threads.Event) -> None:
        """Deliver what there is and what comes, until asked to stop or until the lock is worth nothing any more."""
        client = self._client = self._new_client()
        self._delivery = Delivery(self._directory, client, stop.is_set)
        failures, said = 0, ""
        self._hurry.wait(_GATHER_S)
        try:
            while not stop.is_set() and lock.held():
                self._news.clear()
                self._hurry.clear()
                self._attempts += 1
                try:
                    self._delivery.run()
                except NotNow as refusal:
                    failures += 1
                    if refusal.kind != said:
                        said = refusal.kind
                        logger.warning("arttrace: %s; what was recorded waits in %s", refusal.reason, self._directory)
                    self.outages += 1  # the program may end now
                    if refusal.misconfigured:
                        self._misconfigured = self._attempts
                    self._hurry.wait(self._wait_s(failures, refusal.retry_after_s))
                    continue
                if failures:
                    logger.warning("arttrace: %s accepts spans again", client.name)
                    failures, said = 0, ""
                if self._news.wait(_LOOK_S) and not self._hurry.is_set():
                    self._hurry.wait(_GATHER_S)
        finally:
            self._earlier, self._delivery = self.counts, None
            lock.release()
            client.close()

    def _wait_s(self, failures: int, retry_after_s: float) -> float:
        if self._waiting:
            return max(_URGENT_WAIT_S, retry_after_s)
        longest = min(_FIRST_WAIT_S * 2.0 ** min(failures - 1, 16), _LONGEST_WAIT_S)
        return max(longest * random.uniform(0.5, 1.0), retry_after_s)
