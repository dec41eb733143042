"""Pause, drain and bounds; and who may ask at all where no key is asked for."""

import asyncio

import pytest
from engine_answers import chunks
from gateway_site import Site
from spool import read_spans
from stand_in_engine import write_adapter

from arttrace.records import semconv
from trainer.gateway.gate import Gate


async def until(condition) -> None:
    async with asyncio.timeout(60):
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
    leaving = asyncio.create_task(site.chat())
    await until(lambda: site.gateway.gate.waiting == 1)
    leaving.cancel()
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


async def test_a_request_that_is_sent_to_another_engine_is_still_waited_for() -> None:
    gate = Gate()

    async def twice() -> None:
        with gate.passing():
            await asyncio.sleep(0.02)
        with gate.passing():
            await asyncio.sleep(0.02)

    trying = asyncio.create_task(twice())
    await asyncio.sleep(0)
    assert await gate.drained(20)
    await trying


async def test_an_order_to_refuse_ends_with_its_pause() -> None:
    gate = Gate()
    gate.pause(refuse=True)
    gate.pause(reason="sleep")
    gate.pause()  # the same pause goes on
    assert gate.refusing
    gate.resume()
    assert (gate.paused, gate.refusing) == (True, False)
    waiting = asyncio.create_task(gate.opened())
    await until(lambda: gate.waiting)
    gate.resume(reason="sleep")
    await waiting
    assert not gate.paused


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
        assert "--api-key" in answer.json()["error"]["hint"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]", "[::1]:8000", "a.localhost:80"]
)
async def test_the_names_of_the_loopback_are_answered(site: Site, host: str) -> None:
    assert (await site.http.get("/v1/models", headers={"host": host})).status_code == 200


FOREIGN_PAGES = [
    "https://evil.example",
    "null",  # a sandboxed frame, or a page that sends no referrer
    "http://localhost.evil.example:8000",
    "http://evil.example:80@localhost",
    "localhost",
    "",
]


@pytest.mark.parametrize("origin", FOREIGN_PAGES)
async def test_without_a_key_no_web_page_from_elsewhere_is_answered(site: Site, origin: str) -> None:
    """A browser sends these without asking first, and says where the page is from."""
    orders = ["/admin/pause", "/admin/drain", "/admin/sleep", "/r/t/end", "/r/t/reward", "/r/t/v1/chat/completions"]
    for path in orders:
        answer = await site.http.post(path, headers={"origin": origin})
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "foreign_page")
    for content in (b"", b'{"model":"policy","messages":[]}'):
        headers = {"origin": origin, "content-type": "text/plain"}
        assert (await site.http.post("/r/t/v1/chat/completions", content=content, headers=headers)).status_code == 403
    assert not site.gateway.gate.paused
    assert site.engine.generations == []
    assert site.gateway.recorder.trajectories.open == 0


@pytest.mark.parametrize(
    "origin", ["http://localhost:5173", "http://127.0.0.1", "https://[::1]:3000", "http://a.localhost"]
)
async def test_pages_of_this_machine_are_answered(site: Site, origin: str) -> None:
    headers = {"origin": origin}
    body = {"model": "policy", "messages": []}
    assert (await site.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
    assert (await site.http.post("/admin/drain", headers=headers)).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain; x=application/json", "text/plain", "application/json-seq", ""])
async def test_orders_are_json_by_their_type(site: Site, kind: str) -> None:
    answer = await site.http.post("/admin/pause", content=b"{}", headers={"content-type": kind})
    assert (answer.status_code, site.gateway.gate.paused) == (415, False)


async def test_the_type_of_an_order_may_name_its_charset(site: Site) -> None:
    headers = {"content-type": "Application/JSON ; charset=utf-8"}
    assert (await site.http.post("/admin/pause", content=b"{}", headers=headers)).status_code == 200


@pytest.mark.parametrize("site", ["secret"], indirect=True)
async def test_with_a_key_a_page_that_knows_it_is_answered(site: Site) -> None:
    headers = {"origin": "https://console.example", "authorization": "Bearer secret"}
    assert (await site.http.post("/admin/pause", headers=headers)).status_code == 200


@pytest.mark.parametrize("site", ["secret"], indirect=True)
async def test_with_a_key_any_name_will_do_and_every_order_asks_for_it(site: Site) -> None:
    headers = {"host": "gpu-7.example", "authorization": "Bearer secret"}
    assert (await site.http.get("/v1/models", headers=headers)).status_code == 200
    for path in ("/admin/pause", "/admin/resume", "/admin/drain", "/r/x/end", "/r/x/reward", "/r/x/v1/responses"):
        assert (await site.http.post(path)).status_code == 401


async def test_recorded_streams_count_too_and_are_cut_where_there_is_no_room(site: Site) -> None:
    def stream() -> tuple[int, str, bytes]:
        return chunks(*({"content": "x" * 100} for _ in range(30)))

    room, needed = site.gateway.gate.max_held_bytes, len(stream()[2])
    for name, bound in (("whole", room), ("cut", needed // 2), ("not-recorded", needed // 2)):
        site.gateway.gate.max_held_bytes = bound
        site.engine.scripted = [stream()]
        path = "/v1/chat/completions" if name == "not-recorded" else f"/r/{name}/v1/chat/completions"
        answer = await site.http.post(path, json={"model": "policy", "messages": []})
        assert (answer.status_code, answer.content) == (200, stream()[2]), "the client gets all of it"
        assert site.gateway.gate.held_bytes == 0
    assert site.gateway.recorder is not None
    site.gateway.recorder.close()
    calls = [span.attributes for span in read_spans(site.directory) if span.name.startswith("chat")]
    cut = {call[semconv.TRAJECTORY_ID]: semconv.TRUNCATED in call for call in calls}
    assert cut == {"whole": False, "cut": True}
