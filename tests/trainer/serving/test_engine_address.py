"""What `serve` says of an engine's address that is none."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from gateway_site import serving
from stand_in_engine import StandInEngine

from arttrace.commands import cli
from arttrace.system.errors import ServingError
from trainer.gateway.app import Gateway
from trainer.gateway.engines.connections import Connections, NotConnected
from trainer.gateway.engines.pool import Pool, Replica
from trainer.gateway.engines.vllm.engine import EngineAddress, EngineOptions
from trainer.gateway.engines.vllm.model import make_probe, read_model
from trainer.gateway.policies import Policies
from trainer.gateway.publish import Publisher
from trainer.serving import supervisor
from trainer.serving.client import GatewayClient
from trainer.serving.supervisor import Supervisor


def test_an_address_without_a_scheme_is_refused_at_once(base_model: Path, tmp_path: Path) -> None:
    asked = ["serve", "--base-model", str(base_model), "--dir", str(tmp_path / "d"), "--vllm-url", "localhost:8001"]
    with pytest.raises(ServingError, match="localhost:8001 is no address of an engine") as refused:
        cli.main(asked, standalone_mode=False)
    assert refused.value.hint == "Write http://HOST:PORT, or unix:PATH for a socket in the file system."


LOGIN = "me:S3CR3T-word@"


@pytest.mark.parametrize(
    "url", [f"{LOGIN}localhost:8001", f"htp://{LOGIN}localhost:8001", "htp://me:S3CR3T/w@localhost"]
)
def test_an_address_that_is_none_is_refused_without_its_login(base_model: Path, tmp_path: Path, url: str) -> None:
    asked = ["serve", "--base-model", str(base_model), "--dir", str(tmp_path / "d"), "--vllm-url", url]
    with pytest.raises(ServingError, match=r"localhost.* is no address of an engine") as refused:
        cli.main(asked, standalone_mode=False)
    assert "S3CR3T" not in str(refused.value)


async def test_an_engine_that_is_asked_with_a_login_is_named_without_it(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log, in the errors and in what anybody may ask the gateway for."""
    said: list[str] = []
    shape = read_model(base_model)
    pool = Pool([Replica()])
    publisher = Publisher(Policies("policy", shape.name), make_probe(shape), pool)
    gateway = Gateway(publisher._policies, publisher, pool)

    def watchdog(url: str, *, sleep: bool = False) -> Supervisor:
        options = EngineOptions(base_model, shape, sleep=sleep)
        return Supervisor(pool.replicas[0], publisher, options, tmp_path / "log", said.append, url)

    async with StandInEngine(shape.name) as engine:
        login = engine.url.replace("//", f"//{LOGIN}")
        await watchdog(f"{login}/v1").bring_up()
        async with serving(gateway) as url, httpx.AsyncClient() as client:
            status = (await client.get(f"{url}/arttrace/status")).json()
        assert status["engine"]["url"] == status["replicas"][0]["url"] == engine.url
        with pytest.raises(ServingError, match=f"the engine at {engine.url} cannot sleep") as raised:
            await watchdog(login, sleep=True).bring_up()
        said.append(str(raised.value))
        engine.base_model = "another"
        with pytest.raises(ServingError, match=f"the server at {engine.url} is not the expected engine") as raised:
            await watchdog(login).bring_up()
        said.append(str(raised.value))
    clock = iter(range(0, 10**6, 20))
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(ServingError, match=f"the engine at {engine.url} does not answer /health") as raised:
        await watchdog(login).bring_up()
    assert f"using the engine at {engine.url}" in said
    assert "S3CR3T" not in "".join((*said, str(raised.value), repr(EngineAddress(login))))


def test_a_gateway_that_is_asked_with_a_login_is_named_without_it(tmp_path: Path) -> None:
    client = GatewayClient(f"http://{LOGIN}127.0.0.1:9")
    with pytest.raises(ServingError, match=r"the gateway at http://127.0.0.1:9 does not answer") as raised:
        client.status()
    client.close()
    assert "S3CR3T" not in str(raised.value)


async def test_a_socket_is_one_however_its_scheme_is_written(tmp_path: Path) -> None:
    connections = Connections(f"UNIX:{tmp_path / 'none'}", {})
    try:
        with pytest.raises(NotConnected, match="FileNotFoundError"):
            await connections.request("GET", "/health")
    finally:
        await connections.close()
