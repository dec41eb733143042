"""A command that runs beside the program that needs it, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Mapping

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

    In another event loop than that in which it was started it can be stopped, and nothing else. Its stderr is read even
    when no loop runs: a command that nobody reads waits.
    """

    def __init__(self, process: asyncio.subprocess.Process, out: asyncio.StreamReader, err: int) -> None:
        self._process = process
        self._out = out
        self._loop = asyncio.get_running_loop()
        self._end = b""
        self._heard = asyncio.Event()
        self._listening = threading.Thread(target=self._listen, args=(err,), name="arttrace-child", daemon=True)
        self._listening.start()
        self._draining: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, *command: str, env: Mapping[str, str] | None = None) -> Child:
        """Start the command, with the variables of `env` added to those of this process."""
        err, of_child = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=of_child,
                limit=_LINE_BYTES,
                start_new_session=True,  # Ctrl-C is for this process, which stops what it started if it ends
                env={**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"},
            )
        except BaseException:
            os.close(err)
            raise
        finally:
            os.close(of_child)
        assert process.stdout is not None
        return cls(process, process.stdout, err)

    async def __aenter__(self) -> Child:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _listen(self, err: int) -> None:
        with open(err, "rb", buffering=0) as file:
            while chunk := file.read(4096):
                self._end = (self._end + chunk)[-_TOLD_BYTES:]
        with contextlib.suppress(RuntimeError):  # the loop is over, and nobody waits
            self._loop.call_soon_threadsafe(self._heard.set)

    @property
    def of_this_loop(self) -> bool:
        """Whether it was started in the event loop that runs now."""
        return self._loop is asyncio.get_running_loop()

    async def send(self, line: bytes) -> None:
        """Write one line to its stdin. If the process is gone, its stdout is at its end."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line + b"\n")
            await self._process.stdin.drain()

    def send_at_once(self, line: bytes) -> None:
        """As `send`, without waiting until it is written."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(line + b"\n")

    async def line(self) -> bytes:
        """The next line of stdout, b"" at its end, which is that of the process: what that forked may hold it open."""
        reading = asyncio.create_task(self._out.readline())
        try:
            is_over = False
            while not reading.done() and not is_over:
                is_over = self._process.returncode is not None
                await asyncio.wait((reading,), timeout=_LAST_WORDS_S if is_over else _LOOK_EVERY_S)
            return reading.result() if reading.done() else b""
        finally:
            reading.cancel()

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of stdout to its end."""
        while line := await self.line():
            yield line

    def drain(self) -> None:
        """Read and drop the rest of stdout, so that the command never waits for a reader."""

        async def forget() -> None:
            while await self._out.read(4096):
                pass

        self._draining = asyncio.create_task(forget())

    async def wait(self) -> int:
        """The exit code, with what it wrote to stderr read."""
        code = await self._exited()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._heard.wait(), _LAST_WORDS_S)
        return code

    async def _exited(self) -> int:
        """The exit code when it is over. asyncio's `wait` waits for the pipes too, and what it forked may hold them."""
        while (code := self._process.returncode) is None:  # noqa: ASYNC110  nothing of asyncio's tells of it alone
            await asyncio.sleep(_LOOK_EVERY_S)
        return code

    async def _let_go(self) -> None:
        """Close the pipes, when stdout was read or what it forked holds it open."""
        transport = self._process._transport  # type: ignore[attr-defined]
        until = time.monotonic() + _LAST_WORDS_S
        while not transport.get_pipe_transport(1).is_closing() and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
        transport.close()

    def last_lines(self) -> str:
        """The end of stderr."""
        return self._end.decode(errors="replace").strip() or "it printed nothing"

    async def death(self, within_s: float = 0.0) -> str | None:
        """How it ended and the end of its stderr; None if it still runs after `within_s`. Any event loop may ask."""
        until = time.monotonic() + within_s
        while not self._is_over():
            if time.monotonic() >= until:
                return None
            await asyncio.sleep(_LOOK_EVERY_S)
        if self.of_this_loop:
            await self._exited()
        await asyncio.to_thread(self._listening.join, _LAST_WORDS_S)
        code = self._process.returncode
        return f"{'' if code is None else f' ({how_ended(code)})'}: {self.last_lines()}"

    def _is_over(self) -> bool:
        if self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # a loop that is over took its exit status
            return True

    async def ended(self) -> None:
        """Close its stdin, and wait until it has ended by itself."""
        if not self.of_this_loop:
            await self.stop()
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._exited()

    async def stop(self) -> None:
        """Stop the process: terminated first, killed after half a minute or when the caller is cancelled."""
        if not self.of_this_loop:
            await asyncio.to_thread(_end, self._process.pid)
            transport = self._process._transport  # type: ignore[attr-defined]
            with contextlib.suppress(RuntimeError):  # its loop is closed, which would be printed later
                if self._loop.is_running():
                    self._loop.call_soon_threadsafe(transport.close)
                else:
                    transport.close()
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._exited(), _STOP_S)
        finally:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            if self._draining is not None:
                self._draining.cancel()
        await self._exited()
        await self._let_go()


def _end(pid: int) -> None:
    """As `stop`, for a process whose event loop is over."""
    deadline = time.monotonic() + _STOP_S
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises for a number that may be another's
        os.kill(pid, signal.SIGTERM)
        while not os.waitpid(pid, os.WNOHANG)[0]:  # the thread of that loop may have taken its exit status
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
