"""What a store of 10,000 trajectories costs: taking spans in, bytes on disk, and the time to open, list, show and pick
the next batch; beside the stock way in the same run: one JSON row per span under a primary key, written by executemany,
read back by key and built anew each time.

    python benchmarks/store.py [--trajectories 10000]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import simulated_agent
from simulated_agent import Run, message, prompt_tokens, result

from arttrace.records.record import Record, encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import encode_token_ids
from arttrace.store import Store
from arttrace.store.rows.summary import summarise
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

GROUP, BATCH_GROUPS, LISTED = 4, 8, 20
STOCK_SPANS = 1_500
TURNS, LONG_RUN_TURNS = (25, 200), 6_000
_ABOUT = "Looks something up. " * 6
_RESOURCE = {"service.name": "agent", "telemetry.sdk.language": "python", "telemetry.sdk.version": "1.45.2"}


_reported: dict[bytes, list[int]] = {}
_tokens = simulated_agent.tokens


def tokens(item: dict[str, Any]) -> list[int]:
    """The toy tokenizer, each message once: it would take most of the time."""
    key = msgspec.json.encode(item)
    if key not in _reported:
        _reported[key] = _tokens(item)
    return _reported[key]


simulated_agent.tokens = tokens


def run(number: int, turns: int) -> list[SpanRow]:
    """One agent of so many turns, each with a tool's answer, as capture writes it: messages, token ids, tools."""
    agent = Run(f"run-{number}", scenario=f"task {number // GROUP}")
    tools = json.dumps(
        [{"type": "function", "function": {"name": f"tool_{i}", "description": "x" * 120}} for i in "abcd"]
    )
    history = [message("system", "You are a careful agent. " * 10), message("user", f"task {number // GROUP}")]
    for turn in range(turns):
        asked = message("assistant", f"step {turn} of {number}", calls=((f"c{turn}", "tool_a", f'{{"q": {turn}}}'),))
        agent.chat(
            f"m{turn}",
            history,
            asked,
            at=10 * turn + number * 1000,
            INPUT_MESSAGES=msgspec.json.encode(history).decode(),
            PROMPT_TOKEN_IDS=encode_token_ids(prompt_tokens(history)),
            TOOL_DEFINITIONS=tools,
        )
        history += [asked, result(f"c{turn}", f"page {turn} of run {number}: " + "words " * 12)]
    return [msgspec.structs.replace(span, resource=_RESOURCE) for span in agent.end(at=number * 1000 + 10 * turns)]


def records(trajectories: int) -> Iterator[list[Record]]:
    for number in range(trajectories):
        reward = Reward(f"r{number}", f"run-{number}", float(number % 3 == 0))
        yield [*run(number, 4), reward]


def timed(work: Callable[[], Any], times: int = 5) -> float:
    """The median time in milliseconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken)


class Stock:
    """The way that is written first: a table of JSON rows with a key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = duckdb.connect(str(path))
        self.connection.execute(
            "CREATE TABLE spans (trace_id VARCHAR, span_id VARCHAR, document VARCHAR, PRIMARY KEY (trace_id, span_id))"
        )

    def insert(self, spans: list[SpanRow]) -> None:
        rows = [(span.trace_id, span.span_id, encode_record(span).decode()) for span in spans]
        self.connection.execute("BEGIN")
        self.connection.executemany("INSERT OR IGNORE INTO spans VALUES (?, ?, ?)", rows)
        self.connection.execute("COMMIT")

    def fill(self, spans: list[SpanRow]) -> None:
        """Fast, so that the queries can be compared: not what is measured."""
        columns = [[s.trace_id for s in spans], [s.span_id for s in spans], [encode_record(s).decode() for s in spans]]
        lists = ", ".join("unnest(?::VARCHAR[])" for _ in columns)
        self.connection.execute(f"INSERT OR IGNORE INTO spans SELECT {lists}", columns)

    def newest(self) -> list[str]:
        query = """SELECT document->'attributes'->>'arttrace.trajectory.id' AS id FROM spans GROUP BY id
            ORDER BY min((document->>'start_ns')::BIGINT) DESC LIMIT ?"""
        return [id for (id,) in self.connection.execute(query, [LISTED]).fetchall()]

    def spans(self, id: str | None = None) -> list[SpanRow]:
        where = "" if id is None else "WHERE (document->'attributes'->>'arttrace.trajectory.id') = ?"
        rows = self.connection.execute(f"SELECT document FROM spans {where}", [] if id is None else [id]).fetchall()
        return [msgspec.json.decode(document, type=SpanRow) for (document,) in rows]

    def list(self) -> None:
        [summarise(one) for id in self.newest() for one in build_trajectories(self.spans(id))]

    def next_batch(self) -> None:
        chosen = [one for one in build_trajectories(self.spans()) if not one.incomplete]
        assert len(chosen) >= GROUP * BATCH_GROUPS


def next_batch(store: Store) -> None:
    """The first groups whose rewards differ, built."""
    groups: dict[str, list[Any]] = {}
    for summary in store.summaries(unconsumed_by="policy", complete_only=True):
        groups.setdefault(summary.group, []).append(summary)
    apart = [found for found in groups.values() if len({one.rewards[0].value for one in found}) > 1][:BATCH_GROUPS]
    built = store.trajectories(ids=[one.id for found in apart for one in found])
    assert len(built) == GROUP * BATCH_GROUPS


def fill(data: DataDir, stock: Stock, count: int) -> tuple[int, int, float]:
    """Spools the trajectories for the store and loads them into the other; gives the spans' bytes as JSON, their
    number, and the rate at which executemany took the first of them."""
    spool = JournalWriter(data.spool, fsync_interval_s=None)
    waiting: list[SpanRow] = []
    raw = spans = 0
    rate = 0.0
    for items in records(count):
        for item in items:
            encoded = encode_record(item)
            spool.append(encoded)
            if isinstance(item, SpanRow):
                raw, spans = raw + len(encoded), spans + 1
                waiting.append(item)
        if not rate and len(waiting) >= STOCK_SPANS:
            start = time.perf_counter()
            stock.insert(waiting)
            rate = len(waiting) / (time.perf_counter() - start)
            waiting = []
        elif len(waiting) > 20_000:
            stock.fill(waiting)
            waiting = []
    stock.fill(waiting)
    spool.close()
    return raw, spans, rate


def row(what: str, ours: float, stock: float, unit: str, *, more_is_better: bool = False) -> None:
    ratio = ours / stock if more_is_better else stock / ours
    print(f"{what:34}{ours:>12,.1f}{stock:>14,.1f} {unit:<14}{ratio:>9.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=10_000)
    count = parser.parse_args().trajectories
    with tempfile.TemporaryDirectory() as folder:
        data = DataDir(Path(folder) / "data")
        stock = Stock(Path(folder) / "stock.duckdb")
        raw, spans, stock_rate = fill(data, stock, count)
        turns = spans - count

        start = time.perf_counter()
        store = Store.open(data, create=True)
        took = time.perf_counter() - start
        print(f"{count:,} trajectories, {turns:,} turns, {spans:,} spans of {raw // spans:,} bytes\n")
        print(f"{'':34}{'arttrace':>12}{'stock':>14}")
        row("taken in", spans / took, stock_rate, "spans/s", more_is_better=True)
        store.close()
        stock.connection.execute("CHECKPOINT")
        row("on disk", data.store.stat().st_size / turns, stock.path.stat().st_size / turns, "bytes/turn")

        start = time.perf_counter()
        with Store.open(data) as store:
            store.summaries()
        first = time.perf_counter() - start
        stock.connection.close()

        def reopen() -> None:
            stock.connection = duckdb.connect(str(stock.path))
            stock.connection.execute("SELECT 1").fetchall()
            stock.connection.close()

        row("open", timed(lambda: Store.open(data).close()), timed(reopen), "ms")
        stock.connection = duckdb.connect(str(stock.path))
        store = Store.open(data)
        shown = f"run-{count // 2}"
        row(f"list the newest {LISTED}", timed(lambda: store.summaries(limit=LISTED)), timed(stock.list, 1), "ms")
        row(
            "show one",
            timed(lambda: store.trajectory(shown)),
            timed(lambda: build_trajectories(stock.spans(shown)), 3),
            "ms",
        )
        row("choose and build the next batch", timed(lambda: next_batch(store)), timed(stock.next_batch, 1), "ms")
        print(f"{'list all':34}{timed(lambda: store.summaries()):>12,.1f}{'':14} ms")
        print(f"{'the first list of all after intake':34}{1000 * first:>12,.1f}{'':14} ms")
        store.close()
        stock.connection.close()
    long_runs()


def long_runs() -> None:
    """Bytes on disk per turn must not grow with the length of a run, though what came in does."""
    print(f"\n{'runs of':>10}{'raw bytes/turn':>18}{'stored bytes/turn':>20}")
    for turns in TURNS:
        with tempfile.TemporaryDirectory() as folder:
            data = DataDir(Path(folder))
            runs = LONG_RUN_TURNS // turns
            raw = 0
            with Store.open(data, create=True) as store:
                for number in range(runs):
                    spans = run(number, turns)
                    raw += sum(len(encode_record(span)) for span in spans)
                    store.append(spans)
            size = data.store.stat().st_size
        print(f"{turns:>10}{raw // (runs * turns):>18,}{size // (runs * turns):>20,}")


if __name__ == "__main__":
    main()
