"""The daemon before a request that does not end: it lets others through between its tries, and a stop ends its wait."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from gateway_site import Site
from stand_in_engine import write_adapter

from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from trainer.daemon.gateway import FoundGateway
from trainer.gateway.sleep import Sleeper
from trainer.gateway.status import ServingFile
from trainer.serving.client import GatewayGone
from trainer.step.engines import engines_asleep
from trainer.step.retry import RetryUntilStopped, StopRequested


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


class Tries(Sleeper):
    """Notes when each order to sleep came, how long it was to let requests end, and when it was refused."""

    def __init__(self, site: Site) -> None:
        gateway = site.gateway
        super().__init__(gateway.pool, gateway.publisher, gateway.gate, between_s=0.01)
        self.seen: list[tuple[float, float, float]] = []

    async def fall_asleep(self, timeout_s: float) -> None:
        began = time.monotonic()
        try:
            await super().fall_asleep(timeout_s)
        except BaseException:
            self.seen.append((began, timeout_s, time.monotonic()))
            raise


@pytest.fixture
async def sleepy(site: Site) -> AsyncIterator[Site]:
    """The site, its engine able to sleep and busy with a request that does not end before `release` is set."""
    site.engine.can_sleep = True
    site.gateway.sleeper = Tries(site)
    assert (await site.publish(1, write_adapter(site.directory / "1", b"w1"))).status_code == 200
    site.engine.held = True
    hung = asyncio.create_task(site.chat())
    await until(lambda: site.engine.generations)
    site.engine.log.clear()
    yield site
    site.engine.release.set()
    assert (await hung).status_code == 200


def found(site: Site, folder: Path) -> FoundGateway:
    data = DataDir(folder)
    data.root.mkdir()
    data.serving.write_bytes(msgspec.json.encode(ServingFile(str(site.http.base_url), "", "policy", os.getpid(), "")))
    return FoundGateway(data, "policy")


def step(gateway: FoundGateway, patience: RetryUntilStopped) -> None:
    with engines_asleep(gateway, patience):
        pass


async def test_between_its_tries_requests_pass_for_as_long_as_they_were_held_back(
    sleepy: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.step.retry.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("trainer.step.retry.LONGEST_PAUSE_S", 0.001)
    monkeypatch.setattr("trainer.daemon.gateway.FIRST_DRAIN_S", 0.05)
    monkeypatch.setattr("trainer.daemon.gateway.LONGEST_DRAIN_S", 0.2)
    shown: list[ArttraceError | None] = []
    patience = RetryUntilStopped(threading.Event(), shown.append)
    stepping = asyncio.create_task(asyncio.to_thread(step, found(sleepy, tmp_path / "data"), patience))
    tries = sleepy.gateway.sleeper.seen  # type: ignore[union-attr]
    await until(lambda: len(tries) >= 5)
    assert [asked for _, asked, _ in tries[:5]] == [0.05, 0.1, 0.2, 0.2, 0.2]
    for (began, _, ended), (again, _, _) in pairwise(tries):
        assert again - ended >= ended - began
    sleepy.engine.release.set()
    await stepping
    assert sleepy.engine.log == [("sleep", "1"), ("wake", "")]
    first, *_, last = shown
    assert first is not None
    assert "1 request" in first.message
    assert last is None


async def test_only_requests_that_did_not_end_in_time_are_given_longer(
    sleepy: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.daemon.gateway.FIRST_DRAIN_S", 0.05)
    gateway, replica = found(sleepy, tmp_path / "data"), sleepy.gateway.pool.replicas[0]
    for state in ("lost", "lost", "ready", "lost", "ready"):
        replica.state = state
        with pytest.raises(GatewayGone):
            await asyncio.to_thread(gateway.fall_asleep)
    tries = sleepy.gateway.sleeper.seen  # type: ignore[union-attr]
    assert [asked for _, asked, _ in tries] == [0.05, 0.05, 0.05, 0.1, 0.1]


async def test_a_stop_does_not_wait_for_requests_to_end(sleepy: Site, tmp_path: Path) -> None:
    stop = threading.Event()
    gateway = found(sleepy, tmp_path / "data")
    stepping = asyncio.create_task(asyncio.to_thread(step, gateway, RetryUntilStopped(stop, lambda error: None)))
    await until(lambda: sleepy.gateway.gate.paused)
    stop.set()
    with pytest.raises(StopRequested):
        await stepping
    assert sleepy.gateway.gate.paused, "the requests have not ended yet"
    assert sleepy.engine.log == []
    sleepy.engine.release.set()  # the process would be over by now; here, what it asked for still comes, and is undone
    await until(lambda: sleepy.engine.log == [("sleep", "1"), ("wake", "")])
    await until(lambda: not sleepy.gateway.gate.paused)
