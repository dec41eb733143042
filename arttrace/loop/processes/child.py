"""A command that runs beside the program that needs it, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from queue import SimpleQueue
from typing import IO

from arttrace.system.exit_status import how_ended

WATCH_STARTER = """
import os, signal, threading, time
def watch(starter):
    while os.getppid() == starter:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()
"""
"""The first lines of a Python program that is terminated when its starter is gone, by kill -9 too. A pipe from the
starter would not do: whatever that forked holds it open."""
_STOP_S = 30.0
_LAST_WORDS_S = 1.0
"""How long its output is read after its end; what it started may hold it open."""
_LOOK_EVERY_S = 0.1
_TOLD_BYTES = 4000
_LINE_BYTES = 1 << 26


class Child:
    """Its stdout line by line, and the end of its stderr. Its stdin closes when this process ends.

    Threads of its own read and write, so that it belongs to no event loop: a script of several `asyncio.run` uses it in
    each, and a command whose output nobody asks for does not wait.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._input: SimpleQueue[bytes | None] = SimpleQueue()
        self._lines: deque[bytes] = deque()
        self._is_read = False
        self._is_drained = False
        self._end = b""
        self._waiting: set[Callable[[], object]] = set()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        _begin(self._write, process.stdin)
        _begin(self._read, process.stdout)
        self._listening = _begin(self._listen, process.stderr)

    @classmethod
    def start(cls, *command: str, env: Mapping[str, str] | None = None) -> Child:
        """Start the command, with the variables of `env` added to those of this process."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for this process, which stops what it started if it ends
            env={**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"},
        )
        return cls(process)

    async def __aenter__(self) -> Child:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _write(self, file: IO[bytes]) -> None:
        with file, contextlib.suppress(OSError):  # it is gone, and its stdout at its end
            while (line := self._input.get()) is not None:
                rest = memoryview(line)
                while rest:
                    rest = rest[file.write(rest) :]

    def _read(self, file: IO[bytes]) -> None:
        with open(file.fileno(), "rb", closefd=False) as lines, file:
            while line := lines.readline(_LINE_BYTES):
                if not self._is_drained:
                    self._lines.append(line)
                    self._tell()
        self._is_read = True
        self._tell()

    def _listen(self, file: IO[bytes]) -> None:
        with file:
            while chunk := file.read(4096):
                self._end = (self._end + chunk)[-_TOLD_BYTES:]

    def _tell(self) -> None:
        for tell in tuple(self._waiting):
            with contextlib.suppress(RuntimeError):  # its loop is over
                tell()

    def send(self, line: bytes) -> None:
        """Write one line to its stdin, behind those before it, while this goes on. If the process is gone, its stdout
        is at its end."""
        self._input.put(line + b"\n")

    async def line(self) -> bytes:
        """The next line of stdout, b"" at its end, which is that of the process: what that forked may hold it open."""
        told = asyncio.Event()
        tell = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, told.set)
        self._waiting.add(tell)
        try:
            is_over = False
            while not (self._lines or self._is_read or is_over):
                is_over = self._process.poll() is not None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS_S if is_over else _LOOK_EVERY_S):
                        await told.wait()
                told.clear()
            return self._lines.popleft() if self._lines else b""
        finally:
            self._waiting.discard(tell)

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of stdout to its end."""
        while line := await self.line():
            yield line

    def drain(self) -> None:
        """Drop the rest of stdout."""
        self._is_drained = True
        self._lines.clear()

    async def wait(self) -> int:
        """The exit code, with what it wrote to stderr read."""
        code = await self._exited()
        await asyncio.to_thread(self._listening.join, _LAST_WORDS_S)
        return code

    async def _exited(self) -> int:
        while (code := self._process.poll()) is None:  # noqa: ASYNC110  what tells of it blocks a thread
            await asyncio.sleep(_LOOK_EVERY_S)
        return code

    def last_lines(self) -> str:
        """The end of stderr."""
        return self._end.decode(errors="replace").strip() or "it printed nothing"

    async def death(self, within_s: float = 0.0) -> str | None:
        """How it ended and the end of its stderr; None if it still runs after `within_s`."""
        until = time.monotonic() + within_s
        while self._process.poll() is None:
            if time.monotonic() >= until:
                return None
            await asyncio.sleep(_LOOK_EVERY_S)
        return f" ({how_ended(await self.wait())}): {self.last_lines()}"

    async def ended(self) -> None:
        """Close its stdin, and wait until it has ended by itself."""
        self._input.put(None)
        await self._exited()

    async def stop(self) -> None:
        """Stop the process: terminated first, killed after half a minute or when the caller is cancelled."""
        self._input.put(None)
        self._process.terminate()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._exited()
        finally:
            self._process.kill()
            await self._exited()


def _begin(work: Callable[[IO[bytes]], None], file: IO[bytes]) -> threading.Thread:
    started = threading.Thread(target=work, args=(file,), name="arttrace-child", daemon=True)
    started.start()
    return started
