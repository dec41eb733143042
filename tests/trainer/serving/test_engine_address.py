"""What `serve` says of an engine's address that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from arttrace.commands import cli
from arttrace.system.errors import ServingError
from trainer.gateway.engines.connections import Connections, NotConnected


def test_an_address_without_a_scheme_is_refused_at_once(base_model: Path, tmp_path: Path) -> None:
    asked = ["serve", "--base-model", str(base_model), "--dir", str(tmp_path / "d"), "--vllm-url", "localhost:8001"]
    with pytest.raises(ServingError, match="localhost:8001 is no address of an engine") as refused:
        cli.main(asked, standalone_mode=False)
    assert refused.value.hint == "Write http://HOST:PORT, or unix:PATH for a socket in the file system."


async def test_a_socket_is_one_however_its_scheme_is_written(tmp_path: Path) -> None:
    connections = Connections(f"UNIX:{tmp_path / 'none'}", {})
    try:
        with pytest.raises(NotConnected, match="FileNotFoundError"):
            await connections.request("GET", "/health")
    finally:
        await connections.close()
