"""Pause, drain and bounds; and who may ask at all where no key is asked for."""

import asyncio

import httpx
import pytest
from gateway_site import Site
from stand_in_engine import write_adapter

from trainer.gateway.gate import Gate


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_requests_wait_while_paused_and_get_the_version_of_then(site: Site) -> None:
    assert (await site.http.post("/admin/pause")).json() == {"paused": True, "waiting": 0, "answering": 0}
    waiting = [asyncio.create_task(site.chat()) for _ in range(3)]
    await until(lambda: site.gateway.gate.waiting == 3)
    assert site.engine.generations == []
    await site.publish(1, write_adapter(site.directory / "a", b"w1"))
    status = (await site.http.get("/arttrace/status")).json()
    assert status["gate"] == {"paused": True, "waiting": 3, "answering": 0}
    assert not (await site.http.post("/admin/resume")).json()["paused"]
    answers = await asyncio.gather(*waiting)
    assert {answer.headers["x-arttrace-policy-version"] for answer in answers} == {"policy@1"}


async def test_a_pause_may_refuse(site: Site) -> None:
    await site.http.post("/admin/pause", json={"refuse": True})
    answer = await site.chat()
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "paused")
    assert int(answer.headers["retry-after"]) > 0
    await site.http.post("/admin/resume")
    assert (await site.chat()).status_code == 200


async def test_who_waits_too_long_is_refused(site: Site) -> None:
    site.gateway.gate.max_wait_s = 0.01
    await site.http.post("/admin/pause")
    assert (await site.chat()).status_code == 503


async def test_a_client_that_leaves_while_it_waits_is_forgotten(site: Site) -> None:
    await site.http.post("/admin/pause")
    with pytest.raises(httpx.ReadTimeout):
        await site.http.post("/v1/chat/completions", json={"model": "policy", "messages": []}, timeout=0.2)
    await until(lambda: site.gateway.gate.inside == 0)
    assert site.engine.generations == []


async def test_drain_waits_for_the_requests_under_way(site: Site) -> None:
    site.engine.held = True
    under_way = asyncio.create_task(site.chat())
    await until(lambda: site.engine.generations)
    late = await site.http.post("/admin/drain", json={"timeout_s": 0.01})
    assert (late.status_code, late.json()["error"]["type"]) == (409, "not_drained")
    draining = asyncio.create_task(site.http.post("/admin/drain", json={"refuse": True}))
    await asyncio.sleep(0.05)
    assert not draining.done()
    site.engine.release.set()
    assert (await draining).json() == {"paused": True, "waiting": 0, "answering": 0}
    assert (await under_way).status_code == 200


async def test_orders_that_are_none_are_refused(site: Site) -> None:
    assert (await site.http.post("/admin/pause", json={"refuze": True})).status_code == 400
    from_a_web_page = await site.http.post("/admin/drain", content=b"{}", headers={"content-type": "text/plain"})
    assert from_a_web_page.status_code == 415
    assert not site.gateway.gate.paused


async def test_no_more_requests_than_the_bound_are_held(site: Site) -> None:
    site.gateway.gate.max_requests = 2
    site.engine.held = True
    held = [asyncio.create_task(site.chat()) for _ in range(2)]
    await until(lambda: len(site.engine.generations) == 2)
    refused = await site.chat()
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) > 0
    site.engine.release.set()
    assert [answer.status_code for answer in await asyncio.gather(*held)] == [200, 200]
    site.engine.held = False
    assert (await site.chat()).status_code == 200


async def test_all_bodies_together_are_bounded(site: Site) -> None:
    site.gateway.gate.max_held_bytes = 1000
    assert (await site.chat(user="x" * 2000)).status_code == 503
    assert (await site.chat(user="x" * 500)).status_code == 200
    assert site.gateway.gate.held_bytes == 0


async def test_a_gate_that_opens_and_closes_lets_nobody_through_twice() -> None:
    gate = Gate()
    gate.pause()
    passed = asyncio.create_task(gate.opened())
    await asyncio.sleep(0)
    gate.resume()
    gate.pause()
    await asyncio.sleep(0.01)
    assert not passed.done()
    gate.resume()
    await passed


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "10.0.0.1", "[::2]:80", ""])
async def test_without_a_key_a_foreign_name_for_this_machine_is_refused(site: Site, host: str) -> None:
    for path in ("/v1/models", "/health", "/arttrace/status"):
        answer = await site.http.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert "--api-key" in answer.json()["error"]["mend"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]", "[::1]:8000", "a.localhost:80"]
)
async def test_the_names_of_the_loopback_are_answered(site: Site, host: str) -> None:
    assert (await site.http.get("/v1/models", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("site", ["secret"], indirect=True)
async def test_with_a_key_any_name_will_do_and_every_order_asks_for_it(site: Site) -> None:
    headers = {"host": "gpu-7.example", "authorization": "Bearer secret"}
    assert (await site.http.get("/v1/models", headers=headers)).status_code == 200
    for path in ("/admin/pause", "/admin/resume", "/admin/drain", "/r/x/end", "/r/x/reward", "/r/x/v1/responses"):
        assert (await site.http.post(path)).status_code == 401
