"""What a gateway test works with: the stand-in engine, the gateway behind real HTTP, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from stand_in_engine import StandInEngine

from trainer.gateway.app import Gateway
from trainer.gateway.engines.pool import Pool, Replica
from trainer.gateway.engines.upstream import Upstream
from trainer.gateway.engines.vllm.engine import EngineAddress
from trainer.gateway.engines.vllm.model import Probe
from trainer.gateway.gate import Gate
from trainer.gateway.http.server import gateway_server
from trainer.gateway.policies import Policies
from trainer.gateway.publish import Publisher
from trainer.gateway.recording.recorder import GatewayRecorder
from trainer.serving.training import TrainingDesk


@dataclass
class Site:
    """The engine, the gateway before it, and a client of the gateway."""

    engine: StandInEngine
    gateway: Gateway
    http: httpx.AsyncClient
    directory: Path

    async def chat(self, model: str = "policy:latest", **more: object) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json={"model": model, "messages": [], **more})

    async def publish(self, step: int, path: Path) -> httpx.Response:
        return await self.http.post("/arttrace/policies", json={"version": step, "path": str(path)})

    async def until_unloaded(self, name: str) -> None:
        async with asyncio.timeout(60):
            while name in self.engine.adapters:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def serving(gateway: Gateway) -> AsyncIterator[str]:
    """The gateway behind the server that `arttrace serve` puts before it; its URL."""
    server = gateway_server(gateway.app())
    server.config.port = 0
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def gateway_at(
    directory: Path, *, api_key: str | None = None, desk: Callable[[GatewayRecorder, Gate], TrainingDesk] | None = None
) -> AsyncIterator[Site]:
    """A gateway in front of a stand-in engine, with the desk of one that trains."""
    async with StandInEngine() as engine:
        pool = Pool([Replica()])
        policies = Policies("policy", "base")
        publisher = Publisher(policies, Probe([[3, 1], [4, 1]], 5), pool)
        recorder, gate = GatewayRecorder(directory / "spool"), Gate()
        gateway = Gateway(
            policies,
            publisher,
            pool,
            api_key=api_key,
            gate=gate,
            recorder=recorder,
            reads_run_names=desk is not None,
            routes=desk(recorder, gate).routes() if desk is not None else None,
        )
        upstream = Upstream(EngineAddress(engine.url, "engine-key"))
        await publisher.adopt(pool.replicas[0], upstream)
        async with serving(gateway) as url, httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as http:
            yield Site(engine, gateway, http, directory)
        await upstream.close()
        recorder.close()
