"""One backend ordered from several tasks, event loops and threads, and two backends in one process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from backend_commands import rewarded

import arttrace
from arttrace.loop import LocalBackend, TrainableModel, gather_trajectories
from arttrace.store import Store


async def train_at_once(backend: LocalBackend, model: TrainableModel, number: int) -> set[int]:
    """The processes that made this number of steps."""
    made = await asyncio.gather(*(backend.train(model) for _ in range(number)))
    return {int(step.metrics["pid"]) for [step] in made}


def test_orders_at_once_are_carried_out_in_each_event_loop(backend: LocalBackend, model: TrainableModel) -> None:
    """As in a script of several `asyncio.run`."""

    async def begin() -> None:
        await backend.register(model)
        await gather_trajectories([rewarded(), rewarded()])

    asyncio.run(begin())
    pids = [asyncio.run(train_at_once(backend, model, 3)) for _ in range(3)]
    assert [len(made) for made in pids] == [1, 1, 1]
    asyncio.run(backend.close())


def test_an_order_of_another_thread_waits_for_the_running_step(backend: LocalBackend, model: TrainableModel) -> None:
    made: list[Any] = []

    def train_elsewhere() -> None:
        made.append(asyncio.run(backend.train(model)))

    async def loop() -> None:
        async with backend:
            await backend.register(model)
            await gather_trajectories([rewarded(), rewarded()])
            slow = asyncio.create_task(backend.train(model, loss="slow"))
            while not (backend.data.root / "began").exists():
                await asyncio.sleep(0.01)
            other = threading.Thread(target=train_elsewhere)
            other.start()
            await asyncio.sleep(0.3)
            assert not made
            (backend.data.root / "go-on").touch()
            assert await slow == [], "the running step was not broken off"
            await asyncio.to_thread(other.join)
            [[step]] = made
            assert step.version == "policy@1"

    asyncio.run(loop())


def test_two_models_are_trained_in_one_process(backend: LocalBackend, model: TrainableModel, tmp_path: Path) -> None:
    """Each has a backend and a directory of its own; runs go to the directory that was named last."""
    opponent = TrainableModel("opponent", tmp_path / "base")

    async def loop() -> None:
        async with backend:
            await backend.register(model)
            first = [await gather_trajectories([rewarded(), rewarded()])]
            [step] = await backend.train(model, first)
            assert (step.version, step.metrics["runs"]) == ("policy@1", 2)
            async with LocalBackend(tmp_path / "other") as other:
                other._program = backend._program
                await other.register(opponent)
                second = [await gather_trajectories([rewarded(), rewarded(), rewarded()])]
                [step] = await other.train(opponent, second)
                assert (step.version, step.metrics["runs"]) == ("opponent@1", 3)
        arttrace.flush()
        for data, number in ((backend.data, 2), (other.data, 3)):
            with Store.open(data) as store:
                assert len(store.trajectories()) == number

    asyncio.run(loop())
