"""How long after its end a call is in the spool, while threads of the same process stream without a pause.

    python benchmarks/spool_delay.py [--seconds N] [THREADS ...]

Each thread reads streams of 200 chunks from a server in another process, one after the other, so that all of them want
the interpreter all the time. A call's delay runs from its end, on the user's thread, to the return of the write to the
spool that holds it; what can still wait after that is the disk, which is not in it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import openai
from capture import _start_server
from capture_worker import REQUESTS

import arttrace
from arttrace.capture.export import lifecycle
from arttrace.records.record import decode_record
from arttrace.records.span import SpanRow


def delays(server: str, threads: int, seconds: float) -> Iterator[float]:
    """Milliseconds of every call that `threads` threads make in `seconds`."""
    spool = lifecycle.recorder()._spool.journal
    written: list[tuple[int, tuple[bytes, ...]]] = []
    append = spool.append

    def noted(*payloads: bytes) -> None:
        append(*payloads)
        written.append((time.time_ns(), payloads))

    spool.append = noted  # type: ignore[method-assign]
    end = time.monotonic() + seconds

    def stream() -> None:
        client = openai.OpenAI(base_url=f"{server}/stream/v1", api_key="sk-benchmark-0123456789")
        create: Any = client.chat.completions.create
        with arttrace.trajectory(name="streams"):
            while time.monotonic() < end:
                for _chunk in create(**REQUESTS["stream"]):
                    pass

    streaming = [threading.Thread(target=stream) for _ in range(threads)]
    for thread in streaming:
        thread.start()
    for thread in streaming:
        thread.join()
    arttrace.flush()
    spool.append = append  # type: ignore[method-assign]
    for time_ns, payloads in written:
        for record in map(decode_record, payloads):
            if isinstance(record, SpanRow) and record.kind == 3 and record.end_ns:
                yield (time_ns - record.end_ns) / 1e6


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a line for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("threads", nargs="*", type=int, default=[1, 8, 16, 32])
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        arttrace.init(dir=stack.enter_context(tempfile.TemporaryDirectory(prefix="arttrace-benchmark-")))
        server = _start_server(stack)
        print("threads   calls   median       99 %        max   (ms from a call's end to the spool)")
        for threads in options.threads:
            found = sorted(delays(server, threads, options.seconds))
            worst = found[int(0.99 * len(found))]
            print(f"{threads:7}{len(found):8}{statistics.median(found):9.0f}{worst:11.0f}{found[-1]:11.0f}", flush=True)


if __name__ == "__main__":
    main()
