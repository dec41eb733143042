"""Where a recorder's records are shipped to: the collector, by the outbox that is its spool, and further receivers.

What ships is loaded when something is shipped: http.client and ssl take 40 ms, which are not the user's thread's. A
failure here never reaches the spool.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.settings import Settings
from arttrace.system import native_threads

if TYPE_CHECKING:
    from arttrace.capture.export.shipping.forwarding import ReceiverOutboxes
    from arttrace.capture.export.shipping.shipper import Shipper

_shipping = Guard("shipping to the collector", background=True)
_importing = native_threads.allocate_lock()
"""Held while what ships is imported, and by who forks: a child that is forked meanwhile has half a module for good."""
_IMPORTED_WITHIN_S = 2.0
_forking: int | None = None
"""The thread that forks, and holds it."""


class Destinations:
    """The shippers of one recorder, each with a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shipper: Shipper | None = None
        self._forwards: ReceiverOutboxes | None = None
        receiver = settings.collector
        self._ships = receiver is not None and receiver.is_reachable  # else all waits in the outbox
        self._forwards_any = bool(settings.receivers or settings.otel_beside)

    @property
    def delivered(self) -> int:
        """Records that the collector acknowledged."""
        return self._shipper.counts.delivered if self._shipper is not None else 0

    @property
    def rejected(self) -> int:
        """Records that the collector refused for good."""
        return self._shipper.counts.refused if self._shipper is not None else 0

    def spooled(self) -> None:
        """The spool has records for the collector, if there is one."""
        if self._ships:
            with _shipping:
                self.shipper().notify()

    def forward(self, payloads: list[bytes]) -> None:
        """Put records into the outboxes of the further receivers, if there are any."""
        if self._forwards_any and payloads:
            with _shipping:
                if self._forwards is None:
                    with _importing:
                        from arttrace.capture.export.shipping.forwarding import ReceiverOutboxes

                    settings = self._settings
                    self._forwards = ReceiverOutboxes(
                        settings.data, settings.receivers, settings.otel_beside, settings.otel_meant
                    )
                self._forwards.write(payloads)

    def sync(self) -> None:
        """Return when the outboxes of the receivers are on the disk."""
        if self._forwards is not None:
            self._forwards.sync()

    def seal(self) -> None:
        """The same, and their segments may leave when they are delivered."""
        if self._forwards is not None:
            self._forwards.seal()

    def deliver(self, timeout_s: float | None, *, patient: bool) -> bool:
        """Return True when what was sealed is with the collector and with every receiver.

        False when the time is over, or, without `patient`, when one of them takes nothing now: the rest stays in its
        outbox, and the next process of this data directory, or `arttrace ship`, delivers it.
        """
        with _shipping:
            shippers = self._shippers()
            if self._ships and self._shipper is None:
                shippers.insert(0, self.shipper())
            collected = self._ships or self._settings.endpoint is None
            if not shippers:
                return collected
            from arttrace.capture.export.shipping.shipper import drain

            return drain(shippers, timeout_s, patient=patient) and collected
        return False

    def stop(self) -> None:
        """End their threads."""
        for shipper in self._shippers():
            shipper.stop()

    def after_fork_in_child(self) -> None:
        """Their threads are the parent's."""
        for shipper in self._shippers():
            shipper.after_fork_in_child()

    def shipper(self) -> Shipper:
        """What ships to the collector of the settings; there must be one."""
        if self._shipper is None:
            with _importing:
                from arttrace.capture.export.shipping.shipper import Shipper

            receiver = self._settings.collector
            assert receiver is not None
            self._shipper = Shipper(self._settings.data.outbox, receiver)
        return self._shipper

    def _shippers(self) -> list[Shipper]:
        return [
            *([self._shipper] if self._shipper is not None else []),
            *(self._forwards.shippers if self._forwards is not None else []),
        ]


def _before_fork() -> None:
    global _forking
    if _importing.acquire(timeout=_IMPORTED_WITHIN_S):
        _forking = native_threads.get_ident()


def _after_fork_in_parent() -> None:
    global _forking
    if _forking == native_threads.get_ident():
        _forking = None
        _importing.release()


def _after_fork_in_child() -> None:
    global _importing, _forking
    _importing, _forking = native_threads.allocate_lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
