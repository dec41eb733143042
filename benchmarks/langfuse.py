"""Push to and pull from Langfuse: spans per second, and the process's memory, against a stand-in server.

    python benchmarks/langfuse.py [--runs 2000]

The server is tests/support/langfuse_server.py on this machine, so that what is measured is arttrace: its store, its
formats and its requests. It shares the processor with the stand-in, which answers from memory.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from langfuse_server import langfuse_server
from simulated_agent import research_run

from arttrace.capture.base.langfuse_project import Connection
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.langfuse.client import LangfuseClient
from arttrace.views.langfuse.pull import TraceQuery, pull
from arttrace.views.langfuse.push import push
from arttrace.views.langfuse.state import PullCursor, SentRuns


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=2000)
    runs = options.parse_args().runs
    with tempfile.TemporaryDirectory() as folder, langfuse_server() as server:
        data, other = DataDir(Path(folder, "one")), DataDir(Path(folder, "two"))
        spans = 0
        with Store.open(data, create=True) as store:
            for start in range(0, runs, 500):
                for number in range(start, min(start + 500, runs)):
                    made = research_run(f"r{number}", scenario=f"s{number // 8}")
                    spans += len(made)
                    store.journal([*made, Reward(id=f"w{number}", trajectory_id=f"r{number}", value=number % 7)])
                store.load()
            store.summaries()
        connection = Connection.resolve(server.environ())
        with Store.open(data) as store, LangfuseClient(connection) as client:
            _measure("push", spans, lambda: push(
                store, client, connection, SentRuns(data, connection)
            ))  # fmt: skip
            _measure("push again", spans, lambda: push(
                store, client, connection, SentRuns(data, connection)
            ))  # fmt: skip
        with Store.open(other, create=True) as store, LangfuseClient(connection) as client:
            _measure(
                "pull", spans, lambda: pull(store, client, TraceQuery(), PullCursor(other, connection, TraceQuery().id))
            )


def _measure(what: str, spans: int, work: Callable[[], object]) -> None:
    before = _memory_mb()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    pace = f"{spans:7} spans  {seconds:6.1f} s  {spans / seconds:8.0f} spans/s"
    print(f"{what:10}  {pace}  memory {before} -> {_memory_mb()} MB")


def _memory_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
