"""`arttrace ship`: delivers to the collector and the receivers what captured processes left behind."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import click

from arttrace.capture.base.receiver import Receiver
from arttrace.capture.base.settings import Settings
from arttrace.capture.export.shipping.delivery import (
    Delivered,
    Delivery,
    NotNow,
    ShippingLock,
    read_offsets,
    sizes,
    undelivered,
)
from arttrace.capture.export.shipping.forwarding import waiting
from arttrace.capture.export.shipping.otlp_client import OtlpClient
from arttrace.commands.shared.options import dir_option
from arttrace.records.values.units import duration_text, quantity, size_text
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_SAID_EVERY_S = 60.0
_NOT_YET = "the end of what waits is not whole yet, or the disk does not take that it was delivered"


@click.command("ship")
@click.option("--endpoint", help="Base URL of the collector.  [default: $ARTTRACE_ENDPOINT]")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.0),
    default=600.0,
    show_default=True,
    help="Seconds for which a receiver that takes nothing is tried again; 0: it is tried once.",
)
@dir_option
def command(endpoint: str | None, timeout: float, data: DataDir) -> None:
    """Deliver every span that waits in the data directory to its collector and receivers, then exit.

    Captured processes do this themselves while they run; this command delivers what they could not deliver before they
    ended. Spans of processes that captured without an endpoint are delivered too, unless there is a store here, which
    ingests them. A collector that does not answer is tried again, up to 30 seconds apart, until it has taken nothing
    for --timeout seconds. The exit code is 1 then, and nothing is lost: start the command again later. The bearer token
    is ARTTRACE_API_KEY; the receivers are those of ARTTRACE_ENDPOINT and OTEL_EXPORTER_OTLP_*, and Langfuse with
    ARTTRACE_LANGFUSE=1.
    """
    settings = Settings.resolve(dir=data.root, endpoint=endpoint)
    collector = settings.collector
    outboxes = [] if collector is None else [(data.outbox, collector)]
    if collector is not None and not data.store.exists():
        outboxes.append((data.spool, collector))
    outboxes += [(data.receivers / receiver.folder(), receiver) for receiver in settings.all_receivers]
    known = {directory for directory, _ in outboxes}
    for about, directory in waiting(data):
        if directory not in known and (size := sum(sizes(directory).values())):
            shown = f"{size_text(size)} wait for {about.name}"
            click.echo(f"{shown}; the program that knows it delivers them when it runs again", err=True)
    if not outboxes:
        raise ArttraceError(
            "there is no collector to ship to",
            "Pass --endpoint URL or set ARTTRACE_ENDPOINT, or OTEL_EXPORTER_OTLP_ENDPOINT for a receiver, or"
            " ARTTRACE_LANGFUSE=1 for Langfuse.",
        )
    counts = _deliver_all(outboxes, timeout)
    refused, damaged = sum(each.refused for each in counts), sum(each.damaged for each in counts)
    if damaged:
        click.echo(f"{damaged} damaged stretches are kept in files that end in .damaged", err=True)
    if refused:
        raise ArttraceError(
            f"the receiver refused {quantity(refused, 'span')}",
            f"The reason is above; they are kept in the folders `refused` of {data.root}.",
        )


class _Outbox:
    """One outbox on its way to one receiver: the segments that are `wanted`, up to their sizes."""

    def __init__(self, directory: Path, receiver: Receiver, timeout_s: float) -> None:
        self.client = OtlpClient(receiver)
        self.due = 0.0
        self._directory = directory
        self._wanted = sizes(directory)
        self._delivery: Delivery | None = None
        self._lock: ShippingLock | None = None
        self._failures, self._shown, self._say_at = 0, "", 0.0
        self._timeout_s = timeout_s
        self._left, self._took_at = self._waits(), math.inf

    @property
    def counts(self) -> Delivered:
        """What was delivered so far."""
        return self._delivery.counts if self._delivery is not None else Delivered()

    def deliver(self) -> bool:
        """Try once; whether all of it is delivered, by this process or by another one. Raises ArttraceError where
        waiting does not help."""
        self._took_at = min(self._took_at, time.monotonic())
        self._lock = self._lock or (ShippingLock.take(self._directory) if self._wanted else None)
        if self._lock is not None:
            self._delivery = self._delivery or Delivery(self._directory, self.client)
            try:
                self._delivery.run(only=set(self._wanted))
            except NotNow as refusal:
                if refusal.misconfigured:
                    raise ArttraceError(
                        refusal.reason,
                        "Check the endpoint, and ARTTRACE_API_KEY or its headers. Nothing is lost: all is on the disk.",
                    ) from refusal
                self._failures += 1
                wait_s = min(_FIRST_WAIT_S * 2.0 ** min(self._failures, 10), _LONGEST_WAIT_S)
                self._again(refusal.reason, wait_s, at_least_s=refusal.retry_after_s)
                return False
        if not undelivered(self._directory, self._wanted):
            return True
        if self._lock is None:
            self._again(f"another process ships {self._directory}", _FIRST_WAIT_S)
        else:  # most often it is there the next time, and it is no error yet
            self._shown, self._say_at = self._shown or _NOT_YET, self._say_at or time.monotonic() + _FIRST_WAIT_S
            self._again(_NOT_YET, _FIRST_WAIT_S)
        return False

    def _again(self, reason: str, wait_s: float, *, at_least_s: float = 0.0) -> None:
        """Say what is waited for, and until when. Raises ArttraceError where that would be too long."""
        now, left = time.monotonic(), self._waits()
        if left < self._left:
            self._left, self._took_at = left, now
        end = self._took_at + self._timeout_s
        if now >= end or now + at_least_s > end:
            raise ArttraceError(
                f"{reason}; gave up" + (f" after {duration_text(now - self._took_at)}" if self._timeout_s else ""),
                f"Nothing is lost: {size_text(left)} wait in {self._directory}. Start `arttrace ship` again when it"
                " answers, or give it longer with --timeout SECONDS.",
            )
        self.due = min(now + max(at_least_s, wait_s), end)
        if reason != self._shown or now >= self._say_at:
            self._shown, self._say_at = reason, now + _SAID_EVERY_S
            waits = f"{reason}; {size_text(left)} wait in {self._directory}"
            bound = f"up to {_LONGEST_WAIT_S:.0f} s apart, for {duration_text(end - now)} more (--timeout)"
            click.echo(f"{waits}; trying again, {bound}", err=True)

    def _waits(self) -> int:
        """The bytes of what is wanted that are not delivered yet."""
        offsets, found = read_offsets(self._directory), sizes(self._directory)
        return sum(max(0, size - offsets.get(name, 0)) for name, size in self._wanted.items() if name in found)

    def close(self) -> None:
        """Let another process deliver what is left."""
        if self._lock is not None:
            self._lock.release()
        self.client.close()


def _deliver_all(outboxes: Sequence[tuple[Path, Receiver]], timeout_s: float) -> list[Delivered]:
    """Of several receivers none waits for one that is away, nor for one that is misconfigured."""
    several = len({receiver.called for _, receiver in outboxes}) > 1
    wrong: dict[str, ArttraceError] = {}
    all_of_them: list[_Outbox] = []

    def give_up(name: str, error: ArttraceError) -> None:
        if several:
            click.echo(f"error: {error.message}\n{error.hint}", err=True)
        wrong.setdefault(name, error)

    for directory, receiver in outboxes:
        try:
            all_of_them.append(_Outbox(directory, receiver, timeout_s))
        except ArttraceError as error:
            give_up(receiver.called, error)
    left = list(all_of_them)
    try:
        while left:
            each = min(left, key=lambda outbox: outbox.due)
            time.sleep(max(0.0, each.due - time.monotonic()))
            try:
                if each.deliver():
                    left.remove(each)
            except ArttraceError as error:
                give_up(each.client.name, error)
                left.remove(each)
    finally:
        delivered: dict[str, int] = {}
        for each in all_of_them:
            each.close()
            delivered[each.client.name] = delivered.get(each.client.name, 0) + each.counts.delivered
        for name, count in delivered.items():
            click.echo(f"{quantity(count, 'span')} delivered to {name}")
    if wrong:
        if not several:
            raise next(iter(wrong.values()))
        raise ArttraceError(f"not delivered to {', '.join(wrong)}", "The reasons are above; nothing is lost.")
    return [each.counts for each in all_of_them]
