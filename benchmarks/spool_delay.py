"""How long after its end a call is in the spool, while threads of the same process stream without a pause.

    python benchmarks/spool_delay.py [--seconds N] [THREADS ...]

Each thread reads streams of 200 chunks from a server in another process, one after the other, so that all of them want
the interpreter all the time. A call's delay runs from its end, on the user's thread, to the moment at which another
process, which looks every millisecond, finds its record in the spool's file. Beside it stands how long a thread of the
same program that only sleeps 1 ms at a time waited for the interpreter at most: while capture was off (bare), and
beside the calls that were captured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
from capture import _start_server
from capture_worker import REQUESTS

import arttrace
from arttrace.records.record import decode_record
from arttrace.records.span import SpanRow
from arttrace.system.journal import list_segments, read_segment

_WATCH = """
import os, select, sys, time
sizes = {}
print(flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    for entry in os.scandir(sys.argv[1]) if os.path.isdir(sys.argv[1]) else ():
        try:
            size = os.stat(entry.path).st_size
        except FileNotFoundError:
            continue
        name = entry.name.partition(".")[0]
        if size > sizes.get(name, 0):
            sizes[name] = size
            print(name, size, time.time_ns())
"""


def streams(server: str, threads: int, seconds: float) -> float:
    """Let `threads` threads stream for `seconds`; the longest wait of one that only sleeps, in milliseconds."""
    end = time.monotonic() + seconds
    longest = 0.0

    def stream() -> None:
        client = openai.OpenAI(base_url=f"{server}/stream/v1", api_key="sk-benchmark-0123456789")
        create: Any = client.chat.completions.create
        with arttrace.trajectory(name="streams"):
            while time.monotonic() < end:
                for _chunk in create(**REQUESTS["stream"]):
                    pass

    def sleep() -> None:
        nonlocal longest
        while time.monotonic() < end:
            asked = time.monotonic() + 0.001
            time.sleep(0.001)
            longest = max(longest, time.monotonic() - asked)

    running = [threading.Thread(target=stream) for _ in range(threads)]
    running.append(threading.Thread(target=sleep))
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return longest * 1000


def delays(spool: Path, watched: list[tuple[str, int, int]]) -> Iterator[float]:
    """Milliseconds of every call in the spool, by what the watcher saw: segments' names, sizes and times."""
    for segment in list_segments(spool):
        seen = [(size, time_ns) for name, size, time_ns in watched if name == segment.name]
        for end, payload in read_segment(segment.path):
            record = decode_record(payload)
            if isinstance(record, SpanRow) and record.kind == 3 and record.end_ns:
                yield (next(time_ns for size, time_ns in seen if size >= end) - record.end_ns) / 1e6


def measure(server: str, threads: int, seconds: float) -> None:
    """Print one line."""
    bare = subprocess.run(
        [sys.executable, __file__, "--bare", server, "--seconds", str(seconds), str(threads)],
        env={**os.environ, "ARTTRACE_DISABLED": "1"}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="arttrace-benchmark-") as directory:
        arttrace.init(dir=directory)
        spool = Path(directory, "spool")
        watch = [sys.executable, "-c", _WATCH, str(spool)]
        with subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            watcher.stdout.readline()
            beside = streams(server, threads, seconds)
            arttrace.flush()
            time.sleep(0.1)
            said, _ = watcher.communicate("")
        watched = [(name, int(size), int(time_ns)) for name, size, time_ns in map(str.split, said.splitlines())]
        found = sorted(delays(spool, watched))
    worst, alone = found[int(0.99 * len(found))], float(bare.stdout)
    print(
        f"{threads:7}{len(found):8}{statistics.median(found):9.0f}{worst:11.0f}{found[-1]:11.0f}"
        f"{alone:11.0f}{beside:9.0f}{found[-1] / alone:13.2f}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a line for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("threads", nargs="*", type=int, default=[1, 8, 16, 32])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--bare", metavar="SERVER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.bare:
        print(streams(options.bare, options.threads[0], options.seconds))
        return
    with ExitStack() as stack:
        server = _start_server(stack)
        print("                 ms from a call's end to the spool     longest wait, ms     longest delay")
        print("threads   calls   median       99 %        max       bare   beside   to bare wait")
        for threads in options.threads:
            measure(server, threads, options.seconds)


if __name__ == "__main__":
    main()
