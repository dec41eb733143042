"""The collector's numbers in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from arttrace.collector.otlp.request_bodies import Budget
from arttrace.collector.spool import Sink, directory_bytes
from arttrace.collector.supervisor import Loader


def render(sink: Sink, loader: Loader | None, budget: Budget, answers: Mapping[int, int]) -> bytes:
    """All of them. `answers` counts HTTP answers to trace requests by status."""
    store = sink.data.store
    log = store.with_name(store.name + ".wal")
    lines: list[str] = []

    def metric(name: str, kind: str, help: str, value: float, labels: str = "") -> None:
        name = f"arttrace_collector_{name}"
        if not labels or f"# TYPE {name} {kind}" not in lines:
            lines.extend((f"# HELP {name} {help}", f"# TYPE {name} {kind}"))
        lines.append(f"{name}{labels} {value:g}" if isinstance(value, float) else f"{name}{labels} {value}")

    metric("spans_acknowledged_total", "counter", "Spans that are durable.", sink.acknowledged)
    metric("spans_refused_total", "counter", "Spans that were not valid.", sink.refused)
    for status, count in sorted(Counter(answers).items()):
        metric("answers_total", "counter", "Answers to trace requests.", count, f'{{status="{status}"}}')
    metric("in_flight_bytes", "gauge", "Bytes of requests not answered yet.", budget.used)
    metric("in_flight_limit_bytes", "gauge", "The bound on them.", budget.limit)
    metric("spool_bytes", "gauge", "Bytes of journal not yet in the store.", directory_bytes(sink.data.spool))
    metric("store_bytes", "gauge", "Size of the store's file and log.", sum(_size(path) for path in (store, log)))
    if loader:
        lag = loader.lag_s(sink.last)
        metric("load_lag_seconds", "gauge", "How long a span may have waited to get into the store.", lag)
        metric("owns_store", "gauge", "1 while the collector owns the store.", int(loader.owner))
    trouble = sink.trouble or (loader.trouble if loader else "")
    metric("ready", "gauge", "1 when nothing is in the way.", int(not trouble))
    return ("\n".join(lines) + "\n").encode()


def _size(path: Path) -> int:
    try:
        return int(path.stat().st_size)
    except FileNotFoundError:
        return 0
