"""A program that serves MCP over HTTP, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reserved_port import reserved_port


@contextmanager
def answering(script: Path, *before_port: str) -> Iterator[str]:
    """The URL of a server that is started, with its port for the last argument."""
    with reserved_port() as port:
        command = [sys.executable, script, *before_port, str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 120
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert server.poll() is None, "the server ended"
                    assert time.monotonic() < until
                    time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.terminate()
            server.wait()
