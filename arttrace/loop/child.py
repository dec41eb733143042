"""A command that runs beside the program that needs it, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping

_STOP_S = 30.0
_TOLD_BYTES = 4000
_LINE_BYTES = 1 << 26


class Child:
    """Its stdout line by line, and the end of its stderr. Its stdin closes when this process ends."""

    def __init__(
        self, process: asyncio.subprocess.Process, out: asyncio.StreamReader, err: asyncio.StreamReader
    ) -> None:
        self._process = process
        self._out = out
        self._end = b""
        self._listening = asyncio.create_task(self._listen(err))
        self._draining: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, *command: str, env: Mapping[str, str] | None = None) -> Child:
        """Start the command, with the variables of `env` added to those of this process."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            env={**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        assert process.stderr is not None
        return cls(process, process.stdout, process.stderr)

    async def __aenter__(self) -> Child:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _listen(self, err: asyncio.StreamReader) -> None:
        while chunk := await err.read(4096):
            self._end = (self._end + chunk)[-_TOLD_BYTES:]

    async def send(self, line: bytes) -> None:
        """Write one line to its stdin. If the process is gone, its stdout is at its end."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line + b"\n")
            await self._process.stdin.drain()

    async def line(self) -> bytes:
        """The next line of stdout, b"" at its end."""
        return await self._out.readline()

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of stdout until it is closed."""
        async for line in self._out:
            yield line

    def drain(self) -> None:
        """Read and drop the rest of stdout, so that the command never waits for a reader."""

        async def forget() -> None:
            while await self._out.read(4096):
                pass

        self._draining = asyncio.create_task(forget())

    async def wait(self) -> int:
        """The exit code, with all of stderr read."""
        await self._listening
        return await self._process.wait()

    def last_lines(self) -> str:
        """The end of stderr."""
        return self._end.decode(errors="replace").strip() or "it said nothing"

    async def ended(self) -> None:
        """Close its stdin, and wait until it has ended by itself."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()

    async def stop(self) -> None:
        """Stop the process: terminated first, killed after half a minute or when the caller is cancelled."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), _STOP_S)
        finally:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            for task in (self._listening, self._draining):
                if task is not None:
                    task.cancel()
        await self._process.wait()
