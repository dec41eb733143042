"""The collector's numbers in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from arttrace.collector.otlp.request_bodies import Budget
from arttrace.collector.spool import Spool
from arttrace.collector.supervisor import StoreSupervisor
from arttrace.store.server.metrics_text import MetricsText
from arttrace.store.unread import read_unread
from arttrace.system.files import directory_bytes


def render(sink: Spool, loader: StoreSupervisor | None, budget: Budget, answers: Mapping[int, int]) -> bytes:
    """All of them. `answers` counts HTTP answers to trace requests by status."""
    store = sink.data.store
    log = store.with_name(store.name + ".wal")
    text = MetricsText("arttrace_collector_")
    text.add("counter", "spans_acknowledged_total", "Spans that are durable.", sink.acknowledged)
    text.add("counter", "spans_refused_total", "Spans that were not valid.", sink.refused)
    text.add("counter", "requests_unread_total", "Requests that were refused as a whole.", sink.unread.counted)
    unread = read_unread(sink.data.unread_entries).count
    text.add("counter", "journal_unread_total", "Entries of the journal that could not be read.", unread)
    for status, count in sorted(Counter(answers).items()):
        text.add("counter", "answers_total", "Answers to trace requests.", count, status=str(status))
    text.add("gauge", "in_flight_bytes", "Bytes of requests not answered yet.", budget.used)
    text.add("gauge", "in_flight_limit_bytes", "The bound on them.", budget.limit)
    text.add(
        "gauge",
        "spool_bytes",
        "Size of the spool: all that is not in the store, the files that are written to, what was damaged.",
        directory_bytes(sink.data.spool),
    )
    text.add("gauge", "store_bytes", "Size of the store's file and log.", sum(_size(path) for path in (store, log)))
    if loader:
        lag = round(loader.lag_s(sink.last), 3) or 0
        text.add("gauge", "load_lag_seconds", "How long a span may have waited to get into the store.", lag)
        text.add("gauge", "owns_store", "1 while the collector owns the store.", int(loader.owner))
    trouble = sink.trouble or (loader.trouble if loader else "")
    text.add("gauge", "ready", "1 when spans are accepted and stored.", int(not trouble))
    return text.encode()


def _size(path: Path) -> int:
    try:
        return int(path.stat().st_size)
    except FileNotFoundError:
        return 0
