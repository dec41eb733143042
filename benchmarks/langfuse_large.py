"""Pull from and push to Langfuse on a large scale: observations per second, and memory as their number grows.

    python benchmarks/langfuse_large.py [--observations 1000000] [--dir DIR]

The stand-in runs in a process of its own. What is pulled it makes page by page from the observations of one run, with
other ids; what is pushed it reads and forgets. So the memory printed is arttrace's alone. With --dir nothing is pulled:
the runs of that data directory are pushed, as if none had been sent.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from langfuse_server import LangfuseServer, _json, langfuse_server, protobuf_spans
from simulated_agent import research_run

from arttrace.capture.base.langfuse_project import Connection
from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.formats.sdks.langfuse_live import formed
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.langfuse.client import LangfuseClient
from arttrace.views.langfuse.pull import Pulled, TraceQuery, pull
from arttrace.views.langfuse.push import push
from arttrace.views.langfuse.state import PullCursor, SentRuns
from arttrace.views.run_filter import RunFilter
from arttrace.views.run_index import RunIndex

_STEPS = 10


class LargeServer(LangfuseServer):
    """A project of so many observations, none of which is held."""

    def prepare(self, count: int) -> None:
        super().take_spans(encode_protobuf([formed(span) for span in research_run("template", "s")]))
        template = list(self.observations.values())
        self.trace, self.count, self.of_run = template[0]["traceId"], count, len(template)
        self.text = json.dumps(template)
        self.observations.clear()

    def take_spans(self, body: bytes) -> Any:
        protobuf_spans(body)
        self.requests.clear()
        return _json(200, {})

    def take_scores(self, body: bytes) -> Any:
        return _json(202, {"message": "Accepted"})

    def count_observations(self, query: dict[str, Any]) -> Any:
        return _json(200, {"data": [{"count_count": self.count}]})

    def list_observations(self, query: dict[str, str]) -> Any:
        self.requests.clear()
        at, limit = int(query.get("cursor", "0")), int(query["limit"])
        items = list(islice(self._from(at), limit))
        more = at + len(items) < self.count
        return _json(200, {"data": items, "meta": {"cursor": str(at + len(items)) if more else None}})

    def _from(self, at: int) -> Iterator[dict[str, Any]]:
        for run in range(at // self.of_run, self.count // self.of_run + 1):
            made = json.loads(self.text.replace(self.trace, f"{run + 1:032x}").replace("template", f"r{run:07}"))
            for number, item in enumerate(made):
                if at <= run * self.of_run + number < self.count:
                    yield item


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--observations", type=int, default=1_000_000)
    options.add_argument("--dir", type=Path)
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.serve:
        serve(LargeServer, given.observations)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        served(__file__, "--serve", "--observations", str(given.observations)) as environ,
    ):
        data = DataDir(given.dir or Path(folder, "one"))
        beside = DataDir(Path(folder, "sent"))
        connection = Connection.resolve(environ)
        with Store.open(data, create=True) as store, LangfuseClient(connection) as client:
            if not given.dir:
                tell = _Tell("pull", given.observations)
                done = pull(
                    store,
                    client,
                    TraceQuery(),
                    PullCursor(data, connection, "q"),
                    progress=lambda now: tell(now.observations),
                )
                _check(done, given.observations)
            began = time.perf_counter()
            with RunIndex(store, RunFilter()) as runs:
                print(
                    f"{runs.count} runs summed up in {time.perf_counter() - began:.0f} s, memory {_memory_mb()}",
                    flush=True,
                )
                tell = _Tell("push", runs.count, "runs")
            pushed = push(store, client, connection, SentRuns(beside, connection), progress=lambda now, _: tell(now))
            print(f"pushed {pushed.spans} spans, refused {pushed.refused_spans}")


def _check(done: Pulled, observations: int) -> None:
    assert (done.observations, done.refused) == (observations, 0), done


class _Tell:
    """A line for every tenth."""

    def __init__(self, what: str, total: int, unit: str = "observations") -> None:
        self.what, self.total, self.unit = what, total, unit
        self.began = time.perf_counter()
        self.next = total / _STEPS

    def __call__(self, done: int) -> None:
        if done >= self.next:
            seconds = time.perf_counter() - self.began
            self.next = done + self.total / _STEPS
            print(f"{self.what} {done:8} {self.unit} {seconds:6.0f} s  memory {_memory_mb()}", flush=True)


def _memory_mb() -> str:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return f"{pages * 4096 >> 20} MB (peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10})"


def serve(kind: type[LargeServer], count: int) -> None:
    """Serve so many observations until standard input ends."""
    import langfuse_server as stand_in

    stand_in.LangfuseServer = kind
    with langfuse_server() as server:
        server.prepare(count)
        print(json.dumps(server.environ()), flush=True)
        sys.stdin.read()


@contextmanager
def served(*command: str) -> Iterator[dict[str, str]]:
    """Run a program that calls `serve`; its server's environment variables."""
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(30)


if __name__ == "__main__":
    main()
