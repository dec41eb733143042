"""Admission of requests: bounds on how much the gateway handles at once, and the pause that lets requests wait or
refuses them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from trainer.gateway.errors import Refusal

MAX_BODY_BYTES = 64 << 20
"""One request's body."""

_RETRY_S = 2


@dataclass(slots=True)
class AdmittedRequest:
    """What one request and its answer hold inside."""

    gate: Gate
    held: int = 0

    def hold(self, size: int) -> None:
        """It has grown by `size` bytes. Raises Refusal (503) when all requests together hold too many."""
        if not self.takes(size):
            raise _too_much(f"requests of over {self.gate.max_held_bytes} bytes in all are being answered")

    def takes(self, size: int) -> bool:
        """Whether there is room for `size` bytes more, which it then holds."""
        if self.gate.held_bytes + size > self.gate.max_held_bytes:
            return False
        self.held += size
        self.gate.held_bytes += size
        return True


class Gate:
    """Counts the requests that are inside, and those of them that wait, or have passed on to an engine.

    At most `max_requests` are inside at once, and they and their answers hold at most `max_held_bytes`. While it is
    paused, requests wait up to `max_wait_s` seconds, or are refused where `refusing`. While no engine is ready, those
    that no engine has seen are held for `max_hold_s` seconds from when they came.
    """

    def __init__(
        self,
        *,
        max_requests: int = 1024,
        max_held_bytes: int = 1 << 30,
        max_wait_s: float = 600.0,
        max_hold_s: float = 300.0,
    ) -> None:
        self.max_requests = max_requests
        self.max_held_bytes = max_held_bytes
        self.max_wait_s = max_wait_s
        self.max_hold_s = max_hold_s
        self.inside = 0
        self.waiting = 0
        self.passed = 0
        self.held_bytes = 0
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._closed_by: dict[str, bool] = {}
        self._opened = asyncio.Event()
        self._opened.set()
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def paused(self) -> bool:
        """Whether no request passes now."""
        return not self._opened.is_set()

    @property
    def busy_s(self) -> float:
        """Seconds during which a request was with an engine, since the beginning."""
        return self._busy_s + (0.0 if self._busy_since is None else time.monotonic() - self._busy_since)

    @property
    def refusing(self) -> bool:
        """Whether a reason to pause says that requests are refused meanwhile."""
        return any(self._closed_by.values())

    def pause(self, *, refuse: bool = False, reason: str = "order") -> None:
        """Let no further request pass; those that have passed go on."""
        self._closed_by[reason] = refuse or self._closed_by.get(reason, False)
        self._opened.clear()

    def resume(self, *, reason: str = "order") -> None:
        """Let requests pass again, those that waited first, once no reason to pause is left."""
        self._closed_by.pop(reason, None)
        if not self._closed_by:
            self._opened.set()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no request is with an engine; False when that took longer than `timeout_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.passed:  # a request that one engine did not take may be with another by now
                    await self._drained.wait()
        return not self.passed

    @contextmanager
    def entered(self) -> Iterator[AdmittedRequest]:
        """A request is inside. Raises Refusal (503) when too many are."""
        if self.inside >= self.max_requests:
            raise _too_much(f"{self.inside} requests are being answered, which is the bound")
        self.inside += 1
        place = AdmittedRequest(self)
        try:
            yield place
        finally:
            self.inside -= 1
            self.held_bytes -= place.held

    async def opened(self) -> None:
        """Wait while it is paused. Raises Refusal (503) instead when it refuses, or when the wait is over."""
        while self.paused:
            if not self.refusing:
                with self.holding(), suppress(TimeoutError):
                    async with asyncio.timeout(self.max_wait_s):
                        await self._opened.wait()
                        continue
            raise Refusal(503, "paused", "the gateway is paused", retry_s=_RETRY_S)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A request waits."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A request is with an engine."""
        self.passed += 1
        self._drained.clear()
        if self._busy_since is None:
            self._busy_since = time.monotonic()
        try:
            yield
        finally:
            self.passed -= 1
            if not self.passed:
                self._drained.set()
                self._busy_s, self._busy_since = self.busy_s, None


def _too_much(message: str) -> Refusal:
    return Refusal(503, "overloaded", message, retry_s=_RETRY_S)
