"""One engine kept alive: brought up, watched, and brought back with the current version when it dies."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from arttrace.records.values.units import quantity
from arttrace.system.errors import ServingError
from trainer.gateway.engines.pool import Replica
from trainer.gateway.engines.upstream import Upstream
from trainer.gateway.engines.vllm.engine import (
    EngineAddress,
    EngineOptions,
    VllmProcess,
    serves_on_cpu,
    shortened_context,
)
from trainer.gateway.publish import Publisher
from trainer.output.log import Problem, make_room

Say = Callable[[str], None]

_READY_WITHIN_S = 900.0
_RESTARTS, _RESTARTS_WITHIN_S = 3, 600.0
_LOOK_EVERY_S = 0.2
_ASK_EVERY_S, _SILENT_TIMES = 2.0, 3
_DIES_WITHIN_S = 30.0


class Supervisor:
    """Keeps the engine of one replica alive: a vLLM process of its own, or the engine at `url`, which is only asked.

    A process that dies is started again. An engine at a URL that falls silent, and any that requests could not reach,
    gets no more of them until it answers. $VLLM_API_KEY goes along to a URL. `on_return` is awaited whenever it is
    back.
    """

    def __init__(
        self,
        replica: Replica,
        publisher: Publisher,
        engine: EngineOptions,
        log: Path,
        say: Say,
        url: str | None = None,
        on_return: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.replica = replica
        self._publisher = publisher
        self._engine = engine
        self._log = log
        self._say = say
        self._on_return = on_return
        self._url = None if url is None else url.rstrip("/").removesuffix("/v1")
        self._process: VllmProcess | None = None
        self._shown = ""

    async def bring_up(self) -> None:
        """Start the engine, or find it; returns when it is warm and requests reach it.

        Raises ServingError with the cause: it died, or did not answer in time, or is not the expected one.
        """
        if self._url is None:
            self.replica.renew()
            make_room(self._log)
            try:
                self._process = VllmProcess(self._engine, self._log)
            except OSError as error:
                raise ServingError(
                    f"vLLM cannot be started: {error}",
                    f"It needs room in {self._log.parent} and in the directory for temporary files (TMPDIR).",
                ) from error
            address = self._process.address
            self._say(f"starting vLLM with {self._engine.base_model} (log: {self._log})")
            if shorter := shortened_context(self._engine, cpu=serves_on_cpu()):
                self._say(shorter)
        else:
            address = EngineAddress(self._url, os.environ.get("VLLM_API_KEY"))
            self._say(f"using the engine at {address.shown}")
        upstream = Upstream(address)
        try:
            await self._until_healthy(upstream)
            await self._check_identity(upstream)
            if self._engine.sleep and await upstream.sleeps() is None:
                raise ServingError(
                    f"the engine at {address.shown} cannot sleep",
                    "Start it with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, or serve without "
                    "--sleep-while-training.",
                )
            self._say("warming up")
            await self._adopted(upstream)
        except BaseException:
            await upstream.close()
            raise

    async def keep_alive(self) -> None:
        """Watch it for ever. Raises its failure when its process dies too often."""
        deaths: list[float] = []
        silent, asked = 0, time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self.replica.sleeping:
                continue  # dead or alive: it would take memory that a learner uses; whoever wakes it finds out
            if self._process is not None and (self.replica.state == "broken" or not self._process.alive):
                await self._stop_process()
                await self._restart(deaths)
                silent = 0
                continue
            upstream = self.replica.upstream
            if upstream is None or (self.replica.ready and time.monotonic() - asked < _ASK_EVERY_S):
                continue
            asked = time.monotonic()
            healthy = await upstream.healthy()
            silent = 0 if healthy else silent + 1
            # A process of ours is judged by whether it lives: on a CPU a long prefill may keep it from answering.
            if self.replica.ready and self._process is None and silent >= _SILENT_TIMES:
                self._say(Problem(f"{self.replica.name} does not answer; requests go elsewhere"))
                self.replica.lose()
            elif self.replica.away and healthy:
                await self._welcome(upstream)

    async def stop(self) -> None:
        """Close the connections to it, and stop the process if it is ours."""
        if self.replica.upstream is not None:
            await self.replica.upstream.close()
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    async def _adopted(self, upstream: Upstream) -> None:
        warming = asyncio.create_task(self._publisher.adopt(self.replica, upstream))
        try:
            while not warming.done():
                await asyncio.wait((warming,), timeout=0.5)
                self._raise_if_dead()
            warming.result()
        except ServingError:
            if self._process is not None and not await upstream.healthy():
                await self._explain_death()  # what it answered while it died is not the cause
            raise
        finally:
            warming.cancel()

    async def _explain_death(self) -> None:
        """Raises its failure when a process that answers no more dies within a while."""
        until = time.monotonic() + _DIES_WITHIN_S
        while time.monotonic() < until:
            self._raise_if_dead()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _welcome(self, upstream: Upstream) -> None:
        """It answers again: give it the current version, and let requests reach it."""
        try:
            await self._check_identity(upstream)
            await self._adopted(upstream)
            self._shown = ""
            self._say(f"{self.replica.name} answers again")
            await self._returned()
        except ServingError as error:
            if error.message != self._shown:  # it is tried again at once, for as long as it takes
                self._shown = error.message
                self._say(Problem(f"{self.replica.name} is not taken back yet: {error.message}"))

    async def _restart(self, deaths: list[float]) -> None:
        failure = self._process.failure() if self._process is not None else ServingError("vLLM died")
        self.replica.death = failure.message
        upstream, self.replica.upstream, self.replica.state = self.replica.upstream, None, "restarting"
        if upstream is not None:
            await upstream.close()
        await self._stop_process()
        now = time.monotonic()
        deaths[:] = [*(at for at in deaths if now - at < _RESTARTS_WITHIN_S), now]
        if len(deaths) > _RESTARTS:
            self.replica.state = "failed"
            raise ServingError(
                f"vLLM died {quantity(len(deaths), 'time')}; the last time: {failure.message}", failure.hint
            )
        self.replica.restarts += 1
        self._say(Problem(f"vLLM died ({failure.message.splitlines()[0]}); restart {len(deaths)} of {_RESTARTS}"))
        try:
            await self.bring_up()
            self._say("serving again")
            await self._returned()
        except ServingError as error:
            self._say(Problem(f"the restart failed: {error.message}"))
            await self._stop_process()

    async def _returned(self) -> None:
        if self._on_return is not None:
            await self._on_return()

    async def _stop_process(self) -> None:
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    def _raise_if_dead(self) -> None:
        if self._process is not None and not self._process.alive:
            raise self._process.failure()

    async def _until_healthy(self, upstream: Upstream) -> None:
        deadline = time.monotonic() + (_READY_WITHIN_S if self._process else 10.0)
        while not await upstream.healthy():
            self._raise_if_dead()
            if time.monotonic() > deadline:
                raise ServingError(
                    f"the engine at {upstream.address.shown} does not answer /health",
                    f"See {self._log}." if self._process else "Start it, or leave --vllm-url out.",
                )
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _check_identity(self, upstream: Upstream) -> None:
        served = await upstream.models()
        expected = self._engine.shape.name if self._process is None else self._process.marker
        if expected not in served:
            raise ServingError(
                f"the server at {upstream.address.shown} is not the expected engine: it serves {sorted(served)}",
                "Start it with --served-model-name and the base model's directory name."
                if self._process is None
                else "Something else listens at vLLM's socket; start again.",
            )
