"""The turn of one request: it waits at the gate and for an engine, and goes to another where one did not take it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from trainer.gateway.engines.connections import EngineResponse, NotConnected
from trainer.gateway.engines.pool import Pool, Replica
from trainer.gateway.errors import EngineDown
from trainer.gateway.gate import Gate
from trainer.gateway.policies import Policies, Version


class TurnDependencies(Protocol):
    """What a turn needs of the gateway."""

    gate: Gate
    policies: Policies
    pool: Pool


@asynccontextmanager
async def engine_answer(
    needs: TurnDependencies, model: str, path: str, body: Callable[[Version], bytes], trajectory: str | None = None
) -> AsyncIterator[tuple[EngineResponse, Version, Replica]]:
    """An engine's answer, its body not yet read, by the version that `model` means, and the engine. `trajectory` says
    which engine knows the request's history. Raises Refusal (404, 503)."""
    until = asyncio.get_running_loop().time() + needs.gate.max_hold_s
    while True:
        await needs.gate.opened()
        # Nothing is awaited from here until the version and the replica know of the request.
        version = needs.policies.resolve(model)
        try:
            replica, upstream = needs.pool.pick(version, trajectory)
        except EngineDown:
            # No engine has seen anything of the request: it may wait for one that is being restarted.
            if needs.pool.ready():
                raise
            with needs.gate.holding():
                if await needs.pool.one_ready(until):
                    continue
            raise needs.pool.down() from None
        with needs.gate.passing(), version.answering(), replica.answering():
            try:
                answer = await upstream.forward(path, body(version))
            except NotConnected:  # it has seen nothing of the request, so that another may answer
                replica.lose()
                continue
            with answer:
                yield answer, version, replica
                return
