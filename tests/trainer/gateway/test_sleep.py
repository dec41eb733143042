"""Sleep and waking, before a stand-in for vLLM with its sleep endpoints: their order, and every death in between.

No memory is freed here, and nothing of this has seen a GPU: what is shown is who may ask what when.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
from gateway_site import Site
from stand_in_engine import write_adapter

from arttrace.system.errors import ServingError
from trainer.gateway.engines.pool import Replica
from trainer.gateway.publish import require_same
from trainer.gateway.sleep import Sleeper
from trainer.output.log import Problem


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def sleepy(site: Site) -> Site:
    """The site, its engine able to sleep, version 1 served."""
    gateway = site.gateway
    site.engine.can_sleep = True
    gateway.sleeper = Sleeper(gateway.pool, gateway.publisher, gateway.gate, between_s=0.01)
    assert (await site.publish(1, write_adapter(site.directory / "1", b"w1"))).status_code == 200
    site.engine.log.clear()
    return site


@contextlib.asynccontextmanager
async def asleep(site: Site, timeout_s: float = 20.0) -> AsyncIterator[httpx.Response]:
    """A trainer's order to sleep, held open."""
    async with site.http.stream("POST", "/admin/sleep", json={"timeout_s": timeout_s}, timeout=60) as held:
        assert held.status_code == 200, await held.aread()
        yield held


def state(site: Site) -> str:
    return site.gateway.pool.replicas[0].state


async def test_requests_end_before_the_sleep_and_wait_until_it_is_over(sleepy: Site) -> None:
    sleepy.engine.held = True
    under_way = asyncio.create_task(sleepy.chat())
    await until(lambda: sleepy.engine.generations)
    trainer = asleep(sleepy)
    order = asyncio.create_task(trainer.__aenter__())
    await until(lambda: sleepy.gateway.gate.paused)
    assert not sleepy.engine.asleep  # not before the last answer
    sleepy.engine.release.set()
    assert (await under_way).status_code == 200
    held = await order
    assert (sleepy.engine.asleep, state(sleepy)) == (True, "asleep")
    waiting = [asyncio.create_task(sleepy.chat()) for _ in range(3)]
    await until(lambda: sleepy.gateway.gate.waiting == 3)
    status = (await sleepy.http.get("/arttrace/status")).json()
    assert (status["sleeps"], status["engine"]["state"], status["gate"]["paused"]) == (True, "asleep", True)
    assert (await sleepy.http.post("/admin/wake")).json()["paused"] is False
    assert await held.aread() == b"asleep\nasked to wake\n"
    await trainer.__aexit__(None, None, None)
    assert {answer.headers["x-arttrace-policy-version"] for answer in await asyncio.gather(*waiting)} == {"policy@1"}
    assert sleepy.engine.asked_asleep == 0
    assert sleepy.engine.log == [("sleep", "1"), ("wake", "")]


async def test_a_trainer_that_dies_leaves_an_engine_that_serves(sleepy: Site) -> None:
    async with asleep(sleepy):
        waiting = asyncio.create_task(sleepy.chat())
        await until(lambda: sleepy.gateway.gate.waiting)
    assert (await waiting).status_code == 200
    assert (state(sleepy), sleepy.engine.asleep, sleepy.gateway.gate.paused) == ("ready", False, False)


async def test_a_trainer_that_dies_while_requests_end_leaves_an_engine_that_serves(sleepy: Site) -> None:
    sleepy.engine.held = True
    under_way = asyncio.create_task(sleepy.chat())
    await until(lambda: sleepy.engine.generations)
    asleep_soon = asyncio.create_task(sleepy.http.post("/admin/sleep", json={}))
    await until(lambda: sleepy.gateway.gate.paused)
    asleep_soon.cancel()
    await until(lambda: not sleepy.gateway.gate.paused)
    sleepy.engine.release.set()
    assert (await under_way).status_code == 200
    assert sleepy.engine.log == []
    async with asleep(sleepy):
        assert sleepy.engine.asleep


async def test_requests_that_do_not_end_in_time_are_not_cut_short(
    sleepy: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(sleepy.gateway.sleeper, "_say", said.append)
    sleepy.engine.held = True
    under_way = asyncio.create_task(sleepy.chat())
    await until(lambda: sleepy.engine.generations)
    answer = await sleepy.http.post("/admin/sleep", json={"timeout_s": 0.05})
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "not_drained")
    assert said == ["the engines stay awake: 1 request is still being answered after 0.05 s"]
    assert isinstance(said[0], Problem), "its level is WARNING"
    await until(lambda: not sleepy.gateway.gate.paused)
    sleepy.engine.release.set()
    assert (await under_way).status_code == 200


@pytest.mark.parametrize("bound", [-1, 1e9, "x"])
async def test_a_bound_on_the_waiting_is_one(sleepy: Site, bound: object) -> None:
    assert (await sleepy.http.post("/admin/sleep", json={"timeout_s": bound})).status_code == 400
    assert (state(sleepy), sleepy.gateway.gate.paused) == ("ready", False)


async def test_an_engine_that_dies_while_requests_end_is_not_said_to_sleep(sleepy: Site) -> None:
    sleepy.engine.held = True
    under_way = asyncio.create_task(sleepy.chat())
    await until(lambda: sleepy.engine.generations)
    order = asyncio.create_task(sleepy.http.post("/admin/sleep", json={"timeout_s": 20}))
    await until(lambda: sleepy.gateway.gate.paused)
    sleepy.gateway.pool.replicas[0].state = "restarting"
    sleepy.engine.release.set()
    assert (await under_way).status_code == 200
    answer = await order
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "engine_unavailable")
    assert "restarting" in answer.json()["error"]["message"]
    sleepy.gateway.pool.replicas[0].state = "ready"
    assert (await sleepy.chat()).status_code == 200
    assert sleepy.engine.log == []


@pytest.mark.parametrize("other", ["lost", "failed"])
async def test_all_engines_that_may_still_live_sleep_or_none(sleepy: Site, other: str) -> None:
    second = Replica("second")
    second.state = other
    sleepy.gateway.pool.replicas.append(second)
    if other == "failed":  # for good: it holds no memory
        async with asleep(sleepy):
            assert sleepy.engine.asleep
        return
    answer = await sleepy.http.post("/admin/sleep", json={})
    heard = answer.json()["error"]
    assert (answer.status_code, "second is lost" in heard["message"], "left out" in heard["hint"]) == (503, True, True)
    assert sleepy.engine.log == []
    assert (await sleepy.chat()).status_code == 200


async def test_one_step_at_a_time_may_have_them_asleep(sleepy: Site) -> None:
    async with asleep(sleepy):
        second = await sleepy.http.post("/admin/sleep", json={})
        assert (second.status_code, second.json()["error"]["type"]) == (503, "asleep")
        assert (sleepy.engine.asleep, state(sleepy)) == (True, "asleep")
        adapter = write_adapter(sleepy.directory / "2", b"w2")
        assert (await sleepy.publish(2, adapter)).status_code == 503
        await sleepy.http.post("/admin/wake")
    assert (await sleepy.publish(2, adapter)).status_code == 200
    async with asleep(sleepy):
        assert sleepy.engine.asleep


async def test_an_engine_that_finds_no_memory_yet_is_woken_again(sleepy: Site) -> None:
    async with asleep(sleepy):
        sleepy.engine.fail_to_wake = 3
        assert (await sleepy.http.post("/admin/wake")).status_code == 200
    assert state(sleepy) == "ready"
    assert (await sleepy.chat()).status_code == 200


@pytest.mark.parametrize("how", ["it stays asleep", "it forgets", "it dies"])
async def test_an_engine_that_does_not_wake_as_it_was_gets_no_requests(sleepy: Site, how: str) -> None:
    async with asleep(sleepy):
        waiting = asyncio.create_task(sleepy.chat())
        await until(lambda: sleepy.gateway.gate.waiting)
        sleepy.engine.fail_to_wake = 100 if how == "it stays asleep" else 0
        sleepy.engine.forgets = how == "it forgets"
        if how == "it dies":
            await sleepy.engine.__aexit__()
        assert (await sleepy.http.post("/admin/wake")).json()["paused"]
    assert state(sleepy) == "broken"
    assert not waiting.done()
    before = len(sleepy.engine.generations)
    # What the supervisor does with a broken engine: here, the stand-in is repaired and taken back.
    sleepy.engine.fail_to_wake = 0
    replica = sleepy.gateway.pool.replicas[0]
    assert replica.upstream is not None
    if how == "it dies":
        replica.state = "failed"
        assert (await waiting).status_code == 503
    elif how == "it forgets":
        with pytest.raises(ServingError, match="is not what it was"):
            await sleepy.gateway.publisher.adopt(replica, replica.upstream)
        sleepy.engine.adapters.clear()
        await sleepy.gateway.publisher.adopt(replica, replica.upstream)
        assert (await waiting).headers["x-arttrace-policy-version"] == "policy@1"
    else:
        await sleepy.gateway.publisher.adopt(replica, replica.upstream)
        assert (await waiting).status_code == 200
    assert before == 0
    assert sleepy.engine.asked_asleep == 0


async def test_a_pause_by_a_person_outlasts_the_sleep(sleepy: Site) -> None:
    async with asleep(sleepy):
        await sleepy.http.post("/admin/pause")
        await sleepy.http.post("/admin/wake")
    assert sleepy.gateway.gate.paused
    await sleepy.http.post("/admin/resume")
    assert (await sleepy.chat()).status_code == 200


async def test_waking_what_is_awake_changes_nothing(sleepy: Site) -> None:
    assert (await sleepy.http.post("/admin/wake")).json() == {"paused": False, "waiting": 0, "answering": 0}
    assert sleepy.engine.log == []


async def test_without_the_option_nothing_sleeps(site: Site) -> None:
    answer = await site.http.post("/admin/sleep", json={})
    assert (answer.status_code, "--sleep-while-training" in answer.json()["error"]["hint"]) == (409, True)


@pytest.mark.parametrize(
    ("now", "before", "base", "same"),
    [
        ([-1.0, -2.0], [-1.0, -2.0], [-1.5, -2.5], True),
        ([-1.005, -2.0], [-1.0, -2.0], [-1.005, -2.0], True),  # too near to tell apart
        ([-1.05, -2.0], [-1.0, -2.0], [-1.05, -2.0], False),  # the base model
        ([-1.05, -2.0], [-1.0, -2.0], [-1.5, -2.5], True),
        ([-1.2, -2.0], [-1.0, -2.0], [-1.0, -2.0], False),
        ([float("nan"), -2.0], [-1.0, -2.0], [-1.0, -2.0], False),
    ],
)
def test_what_is_the_same_policy(now: list[float], before: list[float], base: list[float], same: bool) -> None:
    with contextlib.nullcontext() if same else pytest.raises(ServingError, match="is not what it was"):
        require_same("policy@1", now, before, base)
