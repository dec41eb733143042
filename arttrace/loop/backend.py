"""LocalBackend: serve, judge and train on this machine. It starts the commands and speaks HTTP; no torch comes in here.

The commands are the same that a person types, so whatever a loop did can be seen, continued or repeated by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import msgspec

from arttrace.capture.api import init
from arttrace.capture.runtime import recorder
from arttrace.errors import ServingError, TrainingError
from arttrace.exits import how_ended
from arttrace.loop.gather import TrajectoryGroup
from arttrace.loop.model import TrainableModel, api_key
from arttrace.records.reward import Judgement
from arttrace.rewards import DEFAULT_RUBRIC, score_groups, to_store
from arttrace.rewards.judge import DEFAULT_JUDGE
from arttrace.store import open_store

_COMMAND = (sys.executable, "-c", "from arttrace.commands import main; main()")
_STOP_S = 30.0
_TOLD_BYTES = 4000


class TrainedStep(msgspec.Struct, frozen=True):
    """One optimisation step: the version it made, its adapter's directory, and its numbers (seconds end in `_s`)."""

    version: str
    adapter: str
    metrics: dict[str, float] = {}


class _Served(msgspec.Struct, frozen=True):
    """What `serving.json` and the first line of `arttrace serve --json` say."""

    url: str
    policy: str
    base_model: str


class LocalBackend:
    """Trains on the data directory into which this process captures: `dir`, else $ARTTRACE_DIR or ./.arttrace.

    Use it as an async context manager: what `register` started is stopped at the end.
    """

    def __init__(self, dir: str | Path | None = None) -> None:
        if dir is not None:
            init(dir=dir)
        self.data = recorder().settings.data
        self._command: tuple[str, ...] = _COMMAND
        self._server: _Child | None = None

    async def __aenter__(self) -> LocalBackend:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def register(self, model: TrainableModel) -> None:
        """Serve the model, and set its `base_url`. A gateway that runs on this directory is used, else one is started.

        Raises ServingError when the gateway there serves another policy or base model, or the start fails.
        """
        served = await self._running()
        if served is None:
            served = await self._start(model)
        if not _serves(served, model):
            raise ServingError(
                f"the gateway at {served.url} serves {served.policy} on {served.base_model}, "
                f"not {model.name} on {model.base_model}",
                "Stop it, or use another data directory for this model.",
            )
        model.base_url = f"{served.url}/v1"

    async def judge(
        self,
        groups: Sequence[TrajectoryGroup],
        judge_model: str = DEFAULT_JUDGE,
        extra_litellm_params: dict[str, Any] | None = None,
        rubric: str = DEFAULT_RUBRIC,
    ) -> list[Judgement]:
        """Score gathered groups of two runs or more with RULER, and store judgements and rewards.

        Raises the first JudgeError after the groups that could be judged are stored.
        """
        comparable = [group.group for group in groups if len(group.group.trajectories) > 1]
        judged: list[Judgement] = []
        try:
            results = await score_groups(
                comparable,
                judge_model,
                extra_litellm_params,
                rubric,
                on_judged=lambda _group, judgement: judged.append(judgement),
            )
        finally:
            if judged:  # also when the judge gave out half-way: what is paid for is kept
                await asyncio.to_thread(self._append, judged)
        for result in results:
            if not isinstance(result, Judgement):
                raise result
        return judged

    async def train(self, model: TrainableModel, *, steps: int = 1) -> list[TrainedStep]:
        """Train on every scored group that the policy has not been trained on, in `steps` steps at most.

        Each step's version is served when this returns. Raises TrainingError with what the command said when it fails.
        """
        arguments = ("train", "--steps", str(steps), "--policy", model.name, "--base-model", str(model.base_model))
        async with await _Child.start(*self._command, *arguments, "--dir", str(self.data.root), "--json") as child:
            lines = [line async for line in child.lines()]
            code = await child.wait()
        if code != 0:
            raise TrainingError(f"`arttrace train` failed ({how_ended(code)}): {child.told()}")
        return [msgspec.json.decode(line, type=TrainedStep) for line in lines]

    async def close(self) -> None:
        """Stop the gateway, if this backend started it."""
        if self._server is not None:
            await self._server.stop()
            self._server = None

    def _append(self, judged: Sequence[Judgement]) -> None:
        with open_store(self.data) as store:
            for one in judged:
                store.append(to_store(one))

    async def _running(self) -> _Served | None:
        try:
            served = msgspec.json.decode(self.data.serving.read_bytes(), type=_Served)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        async with httpx.AsyncClient(timeout=5.0, headers={"authorization": f"Bearer {api_key()}"}) as client:
            try:
                answer = await client.get(f"{served.url}/arttrace/status")
            except httpx.HTTPError:
                return None  # it died without removing its file
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise ServingError(f"the gateway at {served.url} asks for a key", "Set ARTTRACE_API_KEY to its key.")
        return served if answer.status_code == httpx.codes.OK else None

    async def _start(self, model: TrainableModel) -> _Served:
        self._server = await _Child.start(
            *self._command,
            *("serve", "--base-model", str(model.base_model), "--policy", model.name, "--port", "0"),
            *("--dir", str(self.data.root), "--json"),
        )
        try:
            if line := await anext(self._server.lines(), None):
                self._server.drain()
                return msgspec.json.decode(line, type=_Served)
            code = await self._server.wait()
        except BaseException:
            await self.close()
            raise
        told = self._server.told()
        self._server = None
        raise ServingError(f"`arttrace serve` ended ({how_ended(code)}): {told}")


def _serves(served: _Served, model: TrainableModel) -> bool:
    return served.policy == model.name and Path(served.base_model).absolute() == Path(model.base_model).absolute()


class _Child:
    """A command that runs beside the loop: its stdout line by line, of its stderr the end."""

    def __init__(
        self, process: asyncio.subprocess.Process, out: asyncio.StreamReader, err: asyncio.StreamReader
    ) -> None:
        self._process = process
        self._out = out
        self._end = b""
        self._listening = asyncio.create_task(self._listen(err))
        self._draining: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, *command: str) -> _Child:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        assert process.stderr is not None
        return cls(process, process.stdout, process.stderr)

    async def __aenter__(self) -> _Child:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _listen(self, err: asyncio.StreamReader) -> None:
        while chunk := await err.read(4096):
            self._end = (self._end + chunk)[-_TOLD_BYTES:]

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of stdout until it is closed."""
        async for line in self._out:
            yield line

    def drain(self) -> None:
        """Read the rest of stdout and forget it, so that the command never waits for a reader."""

        async def forget() -> None:
            while await self._out.read(4096):
                pass

        self._draining = asyncio.create_task(forget())

    async def wait(self) -> int:
        """The exit code, with all of stderr read."""
        await self._listening
        return await self._process.wait()

    def told(self) -> str:
        """The end of stderr."""
        return self._end.decode(errors="replace").strip() or "it said nothing"

    async def stop(self) -> None:
        """End the process: asked first, killed after half a minute."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        for task in (self._listening, self._draining):
            if task is not None:
                task.cancel()
