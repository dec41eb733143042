"""The gateway's connection to an engine that is being replaced."""

from __future__ import annotations

import asyncio

import pytest

from arttrace.errors import ServingError
from trainer.gateway.upstream import NotReached, Upstream
from trainer.serving.engine import EngineAddress


def test_a_closed_engine_is_an_engine_that_does_not_answer() -> None:
    async def use() -> None:
        upstream = Upstream(EngineAddress("http://127.0.0.1:9", None))
        await upstream.close()
        with pytest.raises(NotReached):
            async with upstream.forward("/v1/chat/completions", b"{}"):
                pass
        with pytest.raises(ServingError, match="did not answer /v1/models"):
            await upstream.models()
        assert not await upstream.healthy()

    asyncio.run(use())
