"""The real collector, `arttrace collect`, as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from arttrace.system.paths import DataDir

ARTTRACE = [sys.executable, "-c", "from arttrace.commands import main; main()"]


def environment(data: DataDir, **more: str) -> dict[str, str]:
    """The environment of a process that records into `data`, or reads it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ARTTRACE_")}
    return {**kept, "ARTTRACE_DIR": str(data.root), **more}


@contextmanager
def collecting(data: DataDir, port: int = 0, **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running collector, with `more` in its environment, and its URL."""
    command = [*ARTTRACE, "collect", "--port", str(port)]
    with subprocess.Popen(command, env=environment(data, **more), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[2]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
