"""`arttrace ship`: delivers to a collector what captured processes left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from arttrace.capture.export.delivery import Delivered, Delivery, NotNow, ShippingLock, sizes, undelivered
from arttrace.capture.export.otlp_client import OtlpClient
from arttrace.commands.shared.options import dir_option
from arttrace.errors import ArttraceError
from arttrace.paths import DataDir

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


@click.command("ship")
@click.option("--endpoint", help="Base URL of the collector.  [default: $ARTTRACE_ENDPOINT]")
@dir_option
def command(endpoint: str | None, data: DataDir) -> None:
    """Deliver every span that waits in the data directory to a collector, and end when it has them.

    Captured processes do this themselves while they run; this is for what they could not deliver before they ended.
    Spans of processes that captured without an endpoint are delivered too, unless there is a store here, which takes
    them in. A collector that is away is asked again until Ctrl-C; nothing is lost by that. The bearer token is
    ARTTRACE_API_KEY.
    """
    endpoint = endpoint or os.environ.get("ARTTRACE_ENDPOINT")
    if not endpoint:
        raise ArttraceError("there is no collector to ship to", "Pass --endpoint URL or set ARTTRACE_ENDPOINT.")
    client = OtlpClient(endpoint, os.environ.get("ARTTRACE_API_KEY"))
    counts = []
    try:
        for directory in [data.outbox] if data.store.exists() else [data.outbox, data.spool]:
            waiting = sizes(directory)
            if waiting:
                counts.append(_deliver(directory, client, waiting))
    finally:
        client.close()
    refused, damaged = sum(each.refused for each in counts), sum(each.damaged for each in counts)
    click.echo(f"{sum(each.delivered for each in counts)} spans delivered to {client.name}")
    if damaged:
        click.echo(f"{damaged} damaged stretches are kept in files that end in .damaged", err=True)
    if refused:
        raise ArttraceError(
            f"the collector refused {refused} spans",
            f"The reason is above; they are kept in the folders `refused` of {data.root}.",
        )


def _deliver(directory: Path, client: OtlpClient, waiting: dict[str, int]) -> Delivered:
    """Returns when the waiting segments are delivered up to their sizes, by this process or by another one."""
    delivery: Delivery | None = None
    failures, told = 0, ""
    lock = None
    try:
        while undelivered(directory, waiting):
            lock = lock or ShippingLock.take(directory)
            if lock is None:
                told = _tell(told, "another process ships this directory; waiting for it")
                time.sleep(_FIRST_WAIT_S)
                continue
            delivery = delivery or Delivery(directory, client)
            try:
                delivery.run(only=set(waiting))
            except NotNow as refusal:
                if refusal.misconfigured:
                    raise ArttraceError(
                        refusal.reason, "Check the endpoint and ARTTRACE_API_KEY. Nothing is lost: all is on the disk."
                    ) from refusal
                told = _tell(told, f"{refusal.reason}; trying again")
                failures += 1
                time.sleep(max(refusal.retry_after_s, min(_FIRST_WAIT_S * 2.0 ** min(failures, 10), _LONGEST_WAIT_S)))
    finally:
        if lock is not None:
            lock.release()
    return delivery.counts if delivery is not None else Delivered()


def _tell(told: str, news: str) -> str:
    if news != told:
        click.echo(news, err=True)
    return news
