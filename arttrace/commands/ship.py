"""`arttrace ship`: delivers to the collector and the receivers what captured processes left behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from arttrace.capture.base.receiver import Receiver
from arttrace.capture.base.settings import Settings
from arttrace.capture.export.shipping.delivery import Delivered, Delivery, NotNow, ShippingLock, sizes, undelivered
from arttrace.capture.export.shipping.forwarding import waiting
from arttrace.capture.export.shipping.otlp_client import OtlpClient
from arttrace.commands.shared.options import dir_option
from arttrace.records.values.units import quantity, size_text
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


@click.command("ship")
@click.option("--endpoint", help="Base URL of the collector.  [default: $ARTTRACE_ENDPOINT]")
@dir_option
def command(endpoint: str | None, data: DataDir) -> None:
    """Deliver every span that waits in the data directory to its collector and receivers, then exit.

    Captured processes do this themselves while they run; this command delivers what they could not deliver before they
    ended. Spans of processes that captured without an endpoint are delivered too, unless there is a store here, which
    ingests them. A collector that does not answer is tried again until Ctrl-C; nothing is lost meanwhile. The bearer
    token is ARTTRACE_API_KEY; the receivers are those of ARTTRACE_ENDPOINT and OTEL_EXPORTER_OTLP_*, and Langfuse with
    ARTTRACE_LANGFUSE=1.
    """
    settings = Settings.resolve(dir=data.root, endpoint=endpoint)
    collector = settings.collector
    beside = [*settings.receivers, *([settings.otel_beside] if settings.otel_beside is not None else [])]
    outboxes = [] if collector is None else [(data.outbox, collector)]
    if collector is not None and not data.store.exists():
        outboxes.append((data.spool, collector))
    outboxes += [(data.receivers / receiver.folder(), receiver) for receiver in beside]
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
    counts = _deliver_all(outboxes)
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

    def __init__(self, directory: Path, receiver: Receiver) -> None:
        self.client = OtlpClient(receiver)
        self.due = 0.0
        self._directory = directory
        self._wanted = sizes(directory)
        self._delivery: Delivery | None = None
        self._lock: ShippingLock | None = None
        self._failures, self._shown = 0, ""

    @property
    def counts(self) -> Delivered:
        """What was delivered so far."""
        return self._delivery.counts if self._delivery is not None else Delivered()

    def deliver(self) -> bool:
        """Try once; whether all of it is delivered, by this process or by another one. Raises ArttraceError where
        waiting does not help."""
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
                self._shown = _show(self._shown, f"{refusal.reason}; trying again")
                self._failures += 1
                wait_s = min(_FIRST_WAIT_S * 2.0 ** min(self._failures, 10), _LONGEST_WAIT_S)
                self.due = time.monotonic() + max(refusal.retry_after_s, wait_s)
                return False
        if not undelivered(self._directory, self._wanted):
            return True
        if self._lock is None:
            self._shown = _show(self._shown, "another process ships this directory; waiting for it")
        self.due = time.monotonic() + _FIRST_WAIT_S
        return False

    def close(self) -> None:
        """Let another process deliver what is left."""
        if self._lock is not None:
            self._lock.release()
        self.client.close()


def _deliver_all(outboxes: Sequence[tuple[Path, Receiver]]) -> list[Delivered]:
    """Of several receivers none waits for one that is away, nor for one that is misconfigured."""
    wrong: dict[str, ArttraceError] = {}
    all_of_them: list[_Outbox] = []

    def give_up(name: str, error: ArttraceError) -> None:
        if len(outboxes) > 1:
            click.echo(f"error: {error.message}", err=True)
        wrong[name] = error

    for directory, receiver in outboxes:
        try:
            all_of_them.append(_Outbox(directory, receiver))
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
        last = next(reversed(wrong.values()))
        raise last if len(outboxes) == 1 else ArttraceError(f"not delivered to {', '.join(wrong)}", last.hint)
    return [each.counts for each in all_of_them]


def _show(shown: str, news: str) -> str:
    if news != shown:
        click.echo(news, err=True)
    return news
