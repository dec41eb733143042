"""A gateway behind real HTTP in front of the stand-in engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gateway_site import Site, gateway_at


@pytest.fixture
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """Parametrised indirectly it is the API key that the gateway asks for."""
    async with gateway_at(tmp_path, api_key=getattr(request, "param", None)) as site:
        yield site
