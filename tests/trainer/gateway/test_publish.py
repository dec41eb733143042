"""Publishing: the aliases move only to a version that was loaded and seen to change the model."""

import asyncio
import contextlib
from functools import partialmethod
from pathlib import Path

import pytest
from gateway_site import Site
from stand_in_engine import StandInEngine, write_adapter

from arttrace.system.errors import ServingError
from trainer.gateway.engines.pool import Pool, Replica
from trainer.gateway.engines.upstream import Upstream
from trainer.gateway.engines.vllm.engine import EngineAddress
from trainer.gateway.engines.vllm.model import Probe
from trainer.gateway.policies import Policies, Version
from trainer.gateway.publish import Publisher, read_adapter


async def test_a_new_version_answers_the_next_call_and_the_old_one_is_unloaded(site: Site) -> None:
    one, two = (write_adapter(site.directory / f"policy@{n}", b"w%d" % n) for n in (1, 2))
    first = (await site.publish(1, one)).json()
    assert (first["version"], first["previous"], first["already_served"]) == ("policy@1", "policy@0", False)
    assert first["max_logprob_change"] > 0
    answer = await site.chat("lora:latest")
    assert answer.headers["x-arttrace-policy-version"] == "policy@1"
    assert answer.json()["model"] == "policy@1"
    assert (await site.publish(2, two)).status_code == 200
    await site.until_unloaded("policy@1")
    assert list(site.engine.adapters) == ["policy@2"]
    assert (await site.chat("policy@1")).status_code == 404
    assert (await site.chat("policy@0")).json()["model"] == "base"
    status = (await site.http.get("/arttrace/status")).json()
    assert (status["current"], status["step"]) == ("policy@2", 2)
    assert status["requests"] == {"policy@0": 0, "policy@2": 0}


async def test_a_request_under_way_ends_on_the_version_it_began_with(site: Site) -> None:
    await site.publish(1, write_adapter(site.directory / "a", b"w1"))
    site.engine.held = True
    under_way = asyncio.create_task(site.chat())
    while not site.engine.generations:
        await asyncio.sleep(0.005)
    await site.publish(2, write_adapter(site.directory / "b", b"w2"))
    assert "policy@1" in site.engine.adapters
    assert (await site.http.get("/arttrace/status")).json()["requests"]["policy@1"] == 1
    site.engine.release.set()
    answer = await under_way
    assert answer.status_code == 200
    assert answer.headers["x-arttrace-policy-version"] == "policy@1"
    await site.until_unloaded("policy@1")


async def test_who_waits_for_a_version_to_be_unloaded_may_give_up(site: Site) -> None:
    await site.publish(1, write_adapter(site.directory / "a", b"w1"))
    publisher = site.gateway.publisher
    with site.gateway.policies.current.answering():
        await site.publish(2, write_adapter(site.directory / "b", b"w2"))
        waiting = asyncio.create_task(publisher.settled().__aenter__())
        async with asyncio.timeout(60):
            while not publisher._lock.locked():
                await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert "policy@1" in site.engine.adapters
    await site.until_unloaded("policy@1")
    async with publisher.settled():
        assert list(site.engine.adapters) == ["policy@2"]


@pytest.mark.parametrize(("moved", "taken"), [(0.02, True), (0.2, False)])
async def test_an_engine_is_taken_back_whose_kernels_do_not_repeat_themselves_exactly(
    site: Site, moved: float, taken: bool
) -> None:
    replica = site.gateway.pool.replicas[0]
    replica.lose()
    replica.probes["policy@0"] = tuple(each + moved for each in replica.probes["policy@0"])
    assert replica.upstream is not None
    with contextlib.nullcontext() if taken else pytest.raises(ServingError, match="is not what it was"):
        await site.gateway.publisher.adopt(replica, replica.upstream)
    assert replica.ready == taken


async def test_an_engine_that_does_not_apply_the_adapter_is_found_out(site: Site) -> None:
    site.engine.deaf = True
    answer = await site.publish(1, write_adapter(site.directory / "a", b"w1"))
    assert answer.status_code == 409
    assert "the served policy did not change" in answer.json()["error"]["message"]
    assert (await site.chat()).headers["x-arttrace-policy-version"] == "policy@0"
    assert site.engine.adapters == {}


async def test_equal_weights_are_reported_and_accepted(site: Site) -> None:
    zero = (await site.publish(1, write_adapter(site.directory / "a", b"\0\0\0\0"))).json()
    assert (zero["unchanged_weights"], zero["max_logprob_change"]) == (True, 0.0)
    await site.publish(2, write_adapter(site.directory / "b", b"w"))
    same = (await site.publish(3, write_adapter(site.directory / "c", b"w"))).json()
    assert (same["unchanged_weights"], same["version"]) == (True, "policy@3")


async def test_publishing_again_what_is_served_changes_nothing(site: Site) -> None:
    path = write_adapter(site.directory / "a", b"w1")
    await site.publish(1, path)
    again = await site.publish(1, path)
    assert again.json()["already_served"]
    assert site.engine.log == [("load", "policy@1")]


async def test_an_older_version_is_served_again(site: Site) -> None:
    paths = {step: write_adapter(site.directory / f"{step}", b"w%d" % step) for step in (1, 2)}
    for step in (1, 2):
        assert (await site.publish(step, paths[step])).status_code == 200
    await site.until_unloaded("policy@1")
    back = (await site.publish(1, paths[1])).json()
    assert (back["version"], back["previous"], back["max_logprob_change"] > 0) == ("policy@1", "policy@2", True)
    assert (await site.chat()).json()["model"] == "policy@1"
    await site.until_unloaded("policy@2")
    base = (await site.publish(0, site.directory)).json()
    assert (base["version"], (await site.chat()).json()["model"]) == ("policy@0", "base")
    await site.until_unloaded("policy@1")
    assert (await site.publish(2, paths[2])).json()["previous"] == "policy@0"


async def test_a_version_that_still_answers_requests_is_served_again_and_stays(site: Site) -> None:
    paths = {step: write_adapter(site.directory / f"{step}", b"w%d" % step) for step in (1, 2)}
    await site.publish(1, paths[1])
    site.engine.held = True
    under_way = asyncio.create_task(site.chat())
    async with asyncio.timeout(60):
        while not site.engine.generations:
            await asyncio.sleep(0.005)
        await site.publish(2, paths[2])
        assert (await site.publish(1, paths[1])).json()["already_served"]
        site.engine.held = False
        site.engine.release.set()
        assert (await under_way).json()["model"] == "policy@1"
        await site.until_unloaded("policy@2")
        assert (await site.chat()).json()["model"] == "policy@1"
        assert (await site.publish(2, paths[2])).status_code == 200
        await site.until_unloaded("policy@1")


async def test_a_name_is_never_given_to_other_weights(site: Site) -> None:
    await site.publish(1, write_adapter(site.directory / "a", b"w1"))
    other = write_adapter(site.directory / "other", b"w9")
    assert "already served" in (await site.publish(1, other)).json()["error"]["message"]
    await site.publish(2, write_adapter(site.directory / "b", b"w2"))
    await site.until_unloaded("policy@1")
    assert "other weights before" in (await site.publish(1, other)).json()["error"]["message"]
    assert (await site.chat()).headers["x-arttrace-policy-version"] == "policy@2"


async def test_a_version_that_cannot_be_loaded_leaves_the_old_one_serving(site: Site) -> None:
    await site.publish(1, write_adapter(site.directory / "a", b"w1"))
    refused = await site.publish(2, write_adapter(site.directory / "b", b"refuse me"))
    assert refused.status_code == 409
    assert "--max-lora-rank" in refused.json()["error"]["hint"]
    missing = await site.publish(2, site.directory / "nowhere")
    assert "is no adapter" in missing.json()["error"]["message"]
    assert (await site.publish(-1, site.directory / "a")).status_code == 409
    assert (await site.chat()).headers["x-arttrace-policy-version"] == "policy@1"
    assert (await site.publish(2, write_adapter(site.directory / "c", b"w2"))).status_code == 200


async def test_a_version_that_cannot_be_loaded_in_place_of_what_the_engine_holds_is_named_with_what_to_do(
    site: Site,
) -> None:
    """An engine that outlived its gateway holds the name already: it is loaded a second time, and refused then."""
    site.engine.adapters["policy@2"] = "/where/it/was"
    refused = (await site.publish(2, write_adapter(site.directory / "b", b"refuse me"))).json()["error"]
    assert ("load", "policy@2") in site.engine.log[site.engine.log.index(("unload", "policy@2")) :]
    assert refused["message"].startswith("policy@2 could not be loaded: the serving engine refused /v1/load_lora")
    assert "--max-lora-rank" in refused["hint"]


async def test_an_engine_that_dies_while_it_loads_a_version_is_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that has died before is: who publishes tries again where the answer is 503."""

    def die(_: object) -> tuple[int, object]:
        raise ConnectionResetError

    path = write_adapter(site.directory / "a", b"w1")
    with monkeypatch.context() as dying:
        dying.setattr(site.engine, "_load", die)
        answers = [await site.publish(1, path), await site.publish(1, path)]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert [answer.json()["error"]["type"] for answer in answers] == ["engine_unavailable"] * 2


async def test_an_order_that_is_none_is_refused(site: Site) -> None:
    bad = await site.http.post("/arttrace/policies", json={"version": "x"})
    from_a_web_page = await site.http.post("/arttrace/policies", content=b"{}", headers={"content-type": "text/plain"})
    assert (bad.status_code, from_a_web_page.status_code) == (400, 415)


async def test_a_version_is_loaded_without_a_question_beforehand(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which adapters an engine holds is asked where it refuses one: the list took a third as long as the loading."""
    asked = []
    models = Upstream.models

    async def counted(upstream: Upstream) -> dict[str, str]:
        asked.append(upstream)
        return await models(upstream)

    monkeypatch.setattr(Upstream, "models", counted)
    path = write_adapter(site.directory / "1", b"w1")
    assert (await site.publish(1, path)).status_code == 200
    assert asked == []
    second, third = write_adapter(site.directory / "2", b"w2"), write_adapter(site.directory / "3", b"w3")
    site.engine.adapters |= {"policy@2": str(second), "policy@3": str(path)}  # by an earlier gateway
    assert [(await site.publish(2, second)).status_code, (await site.publish(3, third)).status_code] == [200, 200]
    assert len(asked) == 2
    await site.until_unloaded("policy@2")
    assert site.engine.adapters == {"policy@3": str(third)}


async def test_a_fresh_engine_gets_the_current_version(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a", b"w7")
    policies = Policies("policy", "base")
    policies.switch(Version(7, "policy@7", "policy@7", path, read_adapter(path).digest))
    async with StandInEngine() as engine:
        upstream = Upstream(EngineAddress(engine.url))
        pool = Pool([Replica()])
        publisher = Publisher(policies, Probe([[1, 2], [3]], 4), pool)
        await publisher.adopt(pool.replicas[0], upstream)
        assert engine.adapters == {"policy@7": str(path)}
        await publisher.adopt(pool.replicas[0], upstream)  # an engine that still holds it
        assert engine.log == [("load", "policy@7")]
        probes = pool.replicas[0].probes
        assert probes["policy@7"] != probes["policy@0"]
        await upstream.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"",
        lambda data: b"x" * 9,
        *(
            lambda data, header=header: len(header).to_bytes(8, "little") + header
            for header in (
                b"[]",
                b"7",
                b'{"lora_B": []}',
                b'{"lora_B": {"data_offsets": [0.5, 1]}}',
                b'{"lora_B": {"data_offsets": [0, %d]}}' % 10**30,
                b'{"lora_B": {"data_offsets": [-4, 0]}}',
                b'{"lora_B": {"data_offsets": [4, 0]}}',
                b'{"lora_B": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
                b"\xff{}",
            )
        ),
    ],
)
def test_a_damaged_adapter_is_reported(tmp_path: Path, damage) -> None:
    path = write_adapter(tmp_path / "a", b"weights!")
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(ServingError, match="damaged"):
        read_adapter(path)


def test_zero_adapters_have_no_digest(tmp_path: Path) -> None:
    assert read_adapter(write_adapter(tmp_path / "a", b"\0" * 8)).digest == ""
    digests = {read_adapter(write_adapter(tmp_path / f"{n}", b"%d" % n)).digest for n in range(3)}
    assert len(digests) == 3


async def test_an_engine_that_is_busy_when_a_version_comes_goes_on_serving(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = write_adapter(site.directory / "a", b"w1")
    site.engine.grow_cold()
    with monkeypatch.context() as hurried:
        hurried.setattr(Upstream, "probe", partialmethod(Upstream.probe, timeout_s=0.2))
        refused = await site.publish(1, adapter)
    assert refused.status_code >= 400
    assert "did not answer" in refused.json()["error"]["message"]
    site.engine.grow_warm()
    answer = await site.chat()
    assert (answer.status_code, answer.headers["x-arttrace-policy-version"]) == (200, "policy@0")
    assert (await site.publish(1, adapter)).status_code == 200
    assert (await site.chat()).headers["x-arttrace-policy-version"] == "policy@1"
