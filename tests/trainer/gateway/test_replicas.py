"""Several engines behind one gateway: who answers, and publishing to all of them at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_site import serving
from stand_in_engine import StandInEngine, write_adapter

from trainer.gateway.app import Gateway
from trainer.gateway.engines.pool import Pool, Replica
from trainer.gateway.engines.upstream import Upstream
from trainer.gateway.engines.vllm.engine import EngineAddress
from trainer.gateway.engines.vllm.model import Probe
from trainer.gateway.errors import Refusal
from trainer.gateway.policies import Policies, Version
from trainer.gateway.publish import Publisher


class Cluster:
    """Three engines, the gateway before them, and a client."""

    def __init__(self, engines: list[StandInEngine], gateway: Gateway, http: httpx.AsyncClient) -> None:
        self.engines = engines
        self.gateway = gateway
        self.http = http
        self.pool = gateway.pool

    async def chat(self, trajectory: str | None = None) -> httpx.Response:
        headers = {} if trajectory is None else {"x-arttrace-trajectory-id": trajectory}
        body = {"model": "policy:latest", "messages": []}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)

    async def publish(self, step: int, path: Path) -> httpx.Response:
        return await self.http.post("/arttrace/policies", json={"version": step, "path": str(path)})

    def answered(self) -> list[int]:
        return [len(engine.generations) for engine in self.engines]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(StandInEngine()) for _ in range(3)]
        policies, pool = Policies("policy", "base"), Pool([Replica(str(n)) for n in range(3)])
        publisher = Publisher(policies, Probe([[3, 1], [4, 1]], 5), pool)
        for replica, engine in zip(pool.replicas, engines, strict=True):
            upstream = Upstream(EngineAddress(engine.url))
            stack.push_async_callback(upstream.close)
            await publisher.adopt(replica, upstream)
        gateway = Gateway(policies, publisher, pool)
        url = await stack.enter_async_context(serving(gateway))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False))
        yield Cluster(engines, gateway, http)


async def test_a_trajectory_stays_with_one_engine_and_trajectories_are_spread(cluster: Cluster) -> None:
    for _ in range(4):
        for name in ("a", "b", "c", "d", "e", "f"):
            assert (await cluster.chat(name)).status_code == 200
    assert cluster.answered() == [8, 8, 8]


async def test_calls_of_no_trajectory_go_where_the_load_is_least(cluster: Cluster) -> None:
    for engine in cluster.engines:
        engine.held = True
    calls = [asyncio.create_task(cluster.chat()) for _ in range(9)]
    async with asyncio.timeout(60):
        while sum(cluster.answered()) < 9:
            await asyncio.sleep(0.005)
    assert cluster.answered() == [3, 3, 3]
    for engine in cluster.engines:
        engine.release.set()
    assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}


async def test_a_version_is_on_every_engine_before_the_alias_means_it(cluster: Cluster, tmp_path: Path) -> None:
    report = await cluster.publish(1, write_adapter(tmp_path / "a", b"w1"))
    assert report.json()["max_logprob_change"] > 0
    assert [list(engine.adapters) for engine in cluster.engines] == [["policy@1"]] * 3
    answers = [await cluster.chat() for _ in range(6)]
    assert Counter(answer.json()["model"] for answer in answers) == {"policy@1": 6}
    assert cluster.answered() == [2, 2, 2]


async def test_one_engine_that_does_not_apply_it_stops_the_publication(cluster: Cluster, tmp_path: Path) -> None:
    cluster.engines[1].deaf = True
    answer = await cluster.publish(1, write_adapter(tmp_path / "a", b"w1"))
    assert answer.status_code == 409
    assert "did not change" in answer.json()["error"]["message"]
    assert [list(engine.adapters) for engine in cluster.engines] == [[]] * 3
    assert (await cluster.chat()).headers["x-arttrace-policy-version"] == "policy@0"


async def test_an_engine_that_is_gone_is_noticed_without_a_failed_request(cluster: Cluster, tmp_path: Path) -> None:
    assert (await cluster.chat("a")).status_code == 200
    home = cluster.answered().index(1)
    await cluster.engines[home].__aexit__()
    async with asyncio.timeout(60):  # until the gateway's side has seen the connection close
        while (answer := await cluster.chat("a")).status_code != 200:
            pass
    assert {(await cluster.chat(name)).status_code for name in "abcdef"} == {200}
    report = await cluster.publish(1, write_adapter(tmp_path / "a", b"w1"))
    assert report.status_code == 200, answer.text
    states = [each["state"] for each in (await cluster.http.get("/arttrace/status")).json()["replicas"]]
    assert states.count("ready") == 2
    assert states[home] == "lost"


async def test_an_engine_that_dies_while_it_is_published_to_is_left_out(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.engines[2].__aexit__()
    assert (await cluster.publish(1, write_adapter(tmp_path / "a", b"w1"))).status_code == 200
    assert [replica.state for replica in cluster.pool.replicas] == ["ready", "ready", "lost"]
    assert {(await cluster.chat()).json()["model"] for _ in range(4)} == {"policy@1"}


async def test_an_engine_that_comes_back_gets_the_current_version_and_loses_old_ones(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.publish(1, write_adapter(tmp_path / "a", b"w1"))
    away = cluster.pool.replicas[0]
    away.lose()
    await cluster.publish(2, write_adapter(tmp_path / "b", b"w2"))
    assert "policy@2" not in cluster.engines[0].adapters
    assert away.upstream is not None
    await cluster.gateway.publisher.adopt(away, away.upstream)
    assert list(cluster.engines[0].adapters) == ["policy@2"]
    assert away.ready


async def test_adopting_and_publishing_at_once_leave_no_engine_behind(cluster: Cluster, tmp_path: Path) -> None:
    """Whoever comes first: in the end every engine that requests reach holds what the alias means."""
    for step in range(1, 13):
        replica = cluster.pool.replicas[step % 3]
        replica.lose()
        assert replica.upstream is not None
        publishing = asyncio.create_task(cluster.publish(step, write_adapter(tmp_path / f"{step}", b"w%d" % step)))
        for _ in range(step * 3):  # step by step further into the publication
            await asyncio.sleep(0)
        adopting = asyncio.create_task(cluster.gateway.publisher.adopt(replica, replica.upstream))
        calls = [asyncio.create_task(cluster.chat()) for _ in range(6)]
        assert (await publishing).status_code == 200
        await adopting
        assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}
        assert all(each.ready and f"policy@{step}" in each.loaded for each in cluster.pool.replicas)
        assert all(f"policy@{step}" in engine.adapters for engine in cluster.engines)


def test_a_version_is_asked_of_those_that_hold_it() -> None:
    pool, policies = Pool([Replica("a"), Replica("b")]), Policies("policy", "base")
    with pytest.raises(Refusal, match="starting, starting"):
        pool.pick(policies.base)
    first, second = pool.replicas
    upstream: Any = object()
    first.upstream, first.state, second.state = upstream, "ready", "restarting"
    version = Version(3, "policy@3", "policy@3", Path("adapter"), "")
    assert pool.pick(policies.base) == (first, upstream)
    with pytest.raises(Refusal, match="policy@3 is on no engine that is ready; b is restarting"):
        pool.pick(version)
    second.upstream, second.state = upstream, "ready"
    with pytest.raises(Refusal, match=r"policy@3 is on no engine that is ready$"):
        pool.pick(version)
    second.loaded.add("policy@3")
    assert pool.pick(version) == (second, upstream)
