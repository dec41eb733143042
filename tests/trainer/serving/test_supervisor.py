"""The watchdog of one engine, before an engine and a publisher that only note what they are asked."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from arttrace.system.errors import ServingError
from trainer.gateway.engines.pool import Pool, Replica
from trainer.gateway.engines.upstream import Upstream
from trainer.gateway.engines.vllm.engine import EngineAddress, EngineOptions
from trainer.gateway.engines.vllm.model import read_model
from trainer.serving import supervisor
from trainer.serving.supervisor import Supervisor


class Watched(Replica):
    """Counts how often its watchdog looks whether it sleeps: at least once a turn."""

    looks = 0

    @property
    def sleeping(self) -> bool:
        self.looks += 1
        return super().sleeping


class Engine:
    """Answers that it is well, which takes it some time; `meanwhile` is the state of its replica by then."""

    def __init__(self, replica: Replica, meanwhile: str, base_model: str) -> None:
        self._replica = replica
        self._meanwhile = meanwhile
        self._base_model = base_model

    async def healthy(self) -> bool:
        await asyncio.sleep(0.01)
        self._replica.state = self._meanwhile
        return True

    async def models(self) -> dict[str, str]:
        return {self._base_model: ""}


class Publisher:
    """Notes which replicas it was to adopt."""

    def __init__(self) -> None:
        self.adopted: list[Replica] = []

    async def adopt(self, replica: Replica, upstream: Any) -> None:
        self.adopted.append(replica)
        replica.state = "ready"


@pytest.mark.parametrize(("meanwhile", "adopts"), [("asleep", False), ("waking", False), ("lost", True)])
async def test_an_engine_that_falls_asleep_while_it_is_asked_is_left_alone(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str, adopts: bool
) -> None:
    monkeypatch.setattr(supervisor, "_LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(supervisor, "_ASK_EVERY_S", 0.0)
    replica, publisher = Watched(), Publisher()
    shape = read_model(base_model)
    watchdog = Supervisor(
        replica, publisher, EngineOptions(base_model, shape), tmp_path / "log", lambda _: None, "http://engine"
    )
    replica.upstream, replica.state = Engine(replica, meanwhile, shape.name), "ready"
    watching = asyncio.create_task(watchdog.keep_alive())
    async with asyncio.timeout(120):
        while replica.state == "ready" and not publisher.adopted:
            await asyncio.sleep(0.001)
        by_then = replica.looks
        while replica.looks < by_then + 5 and not publisher.adopted:
            await asyncio.sleep(0.001)
    watching.cancel()
    await asyncio.wait((watching,))
    assert bool(publisher.adopted) == adopts


async def test_why_an_engine_is_not_taken_back_is_said_once(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LOOK_EVERY_S", 0.001)
    replica, said = Watched(), list[str]()
    options = EngineOptions(base_model, read_model(base_model))
    watchdog = Supervisor(replica, Publisher(), options, tmp_path / "log", said.append, "http://engine")  # type: ignore[arg-type]
    monkeypatch.setattr(Upstream, "models", lambda _: asyncio.sleep(0, {"another": ""}))
    monkeypatch.setattr(Upstream, "healthy", lambda _: asyncio.sleep(0, True))
    replica.upstream, replica.state = Upstream(EngineAddress("http://engine")), "lost"
    watching = asyncio.create_task(watchdog.keep_alive())
    async with asyncio.timeout(120):
        while replica.looks < 20:
            await asyncio.sleep(0.001)
    watching.cancel()
    await asyncio.wait((watching,))
    await replica.upstream.close()
    assert len(said) == 1
    assert "is not the expected engine: it serves ['another']" in said[0]


class Dying:
    """A process that is found dead when it has been looked at a few times."""

    looks = 0

    @property
    def alive(self) -> bool:
        self.looks += 1
        return self.looks < 6

    def failure(self) -> ServingError:
        return ServingError("vLLM's CPU build has no attention for heads of this size", "Choose another.")


async def test_what_an_engine_answers_while_it_dies_is_not_given_as_the_cause(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(Publisher):
        async def adopt(self, replica: Replica, upstream: Any) -> None:
            raise ServingError("the serving engine refused /v1/completions (500): See stack trace (above)")

    class Silent:
        async def healthy(self) -> bool:
            return False

    monkeypatch.setattr(supervisor, "_LOOK_EVERY_S", 0.01)
    engine = EngineOptions(base_model, read_model(base_model))
    watched = Supervisor(Replica("engine"), Refused(), engine, tmp_path / "log", print)  # type: ignore[arg-type]
    watched._process = Dying()  # type: ignore[assignment]
    with pytest.raises(ServingError, match="no attention for heads"):
        await watched._adopted(Silent())  # type: ignore[arg-type]


async def test_a_version_that_cannot_be_published_is_refused_with_the_last_words_of_the_dead_engine(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Dying):
        def stop(self) -> None: ...

    async def not_yet() -> None:
        raise ServingError("it does not start")

    replica = Replica("engine")
    engine = EngineOptions(base_model, read_model(base_model))
    watched = Supervisor(replica, Publisher(), engine, tmp_path / "log", lambda _: None)
    watched._process = Stopped()  # type: ignore[assignment]
    monkeypatch.setattr(watched, "bring_up", not_yet)
    assert str(Pool([replica]).cannot_publish()).endswith("no version can be published")
    await watched._restart([])
    refused = str(Pool([replica]).cannot_publish())
    assert refused.endswith("\nengine died: vLLM's CPU build has no attention for heads of this size")


async def test_a_machine_that_lets_no_engine_start_now_leaves_the_other_engines_alone(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Dying):
        def stop(self) -> None: ...

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left", "/tmp/arttrace-x")

    said: list[str] = []
    engine = EngineOptions(base_model, read_model(base_model))
    watched = Supervisor(Replica("engine"), Publisher(), engine, tmp_path / "log", said.append)  # type: ignore[arg-type]
    watched._process = Stopped()  # type: ignore[assignment]
    monkeypatch.setattr(supervisor, "VllmProcess", full)
    await watched._restart([])
    assert said[-1] == "the restart failed: vLLM cannot be started: [Errno 28] No space left: '/tmp/arttrace-x'"
