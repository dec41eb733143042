"""Pull from and push to Langfuse, killed (SIGKILL) on the way and started again: what is lost, what is there twice, and
the peak memory of each start.

    python benchmarks/langfuse_killed.py [--observations 200000] [--kills 3]

The stand-in runs in a process of its own. It makes what is pulled, and of what is pushed it keeps the ids. A start is
killed up to half a second after it has come to 1/4, 2/4 and 3/4 of the work, so that any of its steps may be under way.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langfuse_large import LargeServer, _json, protobuf_spans, serve, served

from arttrace.capture.base.langfuse_project import Connection
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.langfuse.client import LangfuseClient
from arttrace.views.langfuse.pull import TraceQuery, pull
from arttrace.views.langfuse.push import push
from arttrace.views.langfuse.state import PullCursor, SentRuns


class CountingServer(LargeServer):
    """Knows of every span that was sent to it, and how many were sent."""

    def prepare(self, count: int) -> None:
        super().prepare(count)
        self.known: set[tuple[str, str, int]] = set()
        self.sent = 0

    def take_spans(self, body: bytes) -> Any:
        spans = protobuf_spans(body)
        self.known.update((span.trace_id, span.span_id, span.start_ns) for span in spans)
        self.sent += len(spans)
        self.requests.clear()
        return _json(200, {})

    def list_scores(self, query: dict[str, str]) -> Any:
        return _json(200, {"data": [{"known": len(self.known), "sent": self.sent}], "meta": {}})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--observations", type=int, default=200_000)
    options.add_argument("--kills", type=int, default=3)
    given = options.parse_args()
    count = given.observations
    with tempfile.TemporaryDirectory() as folder, served(__file__, "--serve", str(count)) as environ:
        places = [count * n // (given.kills + 1) for n in range(1, given.kills + 1)]
        print(f"{count} observations", flush=True)
        _round("pull", folder, environ, places)
        with Store.open(DataDir(Path(folder, "one"))) as store:
            [(rows, distinct)] = store.sql(
                "SELECT count(*), count(DISTINCT (trace_id, span_id)) FROM span_records WHERE trajectory_id IS NOT NULL"
            )[1]
            [(every,)] = store.sql("SELECT count(*) FROM span_records")[1]
        print(f"in the store: {every} spans, {distinct} of runs", flush=True)
        assert (every, distinct, rows) == (count, count, count)
        # Progress of a push is in runs of eight.
        _round("push", folder, environ, [place // 8 for place in places])
        with LangfuseClient(Connection.resolve(environ)) as client:
            [[found], _] = client.page("/api/public/v3/scores", {})
        print(f"Langfuse has {found['known']} spans, {found['sent'] - found['known']} of which came twice", flush=True)
        assert found["known"] == count


def _round(what: str, folder: str, environ: dict[str, str], places: Sequence[int]) -> None:
    for place in (*places, None):
        began = time.perf_counter()
        command = [sys.executable, __file__, "--step", what, folder]
        with subprocess.Popen(
            command, env={**os.environ, **environ}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            last = 0
            for line in process.stdout:
                last = int(line)
                if place is not None and last >= place:
                    time.sleep(random.uniform(0, 0.5))
                    process.kill()
                    break
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == (0 if place is None else -signal.SIGKILL), process.returncode
        end = "done" if place is None else "killed"
        seconds = time.perf_counter() - began
        print(f"{what} {end} at {last:7} {seconds:6.0f} s  peak {usage.ru_maxrss >> 10} MB", flush=True)


def _step(what: str, folder: str) -> None:
    data = DataDir(Path(folder, "one"))
    connection = Connection.resolve()
    with Store.open(data, create=True) as store, LangfuseClient(connection) as client:
        if what == "pull":
            kept = PullCursor(data, connection, "q")
            pull(
                store,
                client,
                TraceQuery(),
                kept,
                with_scores=False,
                progress=lambda now: print(now.observations, flush=True),
            )
        else:
            push(
                store,
                client,
                connection,
                SentRuns(data, connection),
                with_scores=False,
                progress=lambda done, _: print(done, flush=True),
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(CountingServer, int(sys.argv[2]))
    elif sys.argv[1:2] == ["--step"]:
        _step(*sys.argv[2:4])
    else:
        main()
