"""What a gateway test works with: the stand-in engine, the gateway behind real HTTP, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from stand_in_engine import StandInEngine

from trainer.gateway.app import Gateway
from trainer.gateway.http.server import gateway_server


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
