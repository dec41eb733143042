"""Orders that were cancelled or failed: nothing is trained by them, and the same runs are trained by the next."""

from __future__ import annotations

import asyncio
import sys
import weakref
from pathlib import Path
from typing import Any, cast

import pytest
from one_thread import one_thread as one_thread
from recorded_runs import recorded_group
from tiny_model import make_base_model

from arttrace.loop.processes.trainer_process import OrderedGroup as Ordered
from arttrace.loop.processes.trainer_process import TrainerProcess
from arttrace.store import Store
from arttrace.system.errors import TrainingError
from arttrace.system.paths import DataDir
from trainer.commands.train.orders import OrderedGroup, OrderedTrainer, TrainOrder, parse_settings
from trainer.offline import train
from trainer.policies.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures("one_thread")

LOOSE: dict[str, Any] = {"lora_rank": 8, "max_logprob_difference": 1e9}
RUNS = ("a-0", "a-1", "a-2")

HELD = """
import select
from arttrace.commands.shared.progress import Progress
from trainer.commands.train.orders import OrderedTrainer
tell, fill, orders, held = Progress.__call__, OrderedTrainer.fill, [], set()
def filled(self, order):
    orders.append(order)
    return fill(self, order)
def reported(self, done, note=""):
    self._wait_s = 0.0
    tell(self, done, note)
    if len(orders) % 2 and len(orders) not in held:
        held.add(len(orders))
        select.select([0], [], [], 300)
OrderedTrainer.fill, Progress.__call__ = filled, reported
from arttrace.commands import main
main()
"""
"""`arttrace`, which goes on after the first report on every other order only when something more was ordered."""

LATE = """
import json, sys, time
from pathlib import Path
reads, seen = map(Path, sys.argv[1:])
while not reads.exists():
    time.sleep(0.01)
for line in sys.stdin:
    order = json.loads(line)
    with seen.open("a") as file:
        print(*(f"{name}={order[name]}" for name in ("id", "cancel") if name in order), file=file)
    if "id" in order:
        print(json.dumps({"id": order["id"]}), flush=True)
"""
"""A trainer that reads no order until a file is there, notes the lines that come, and makes nothing."""


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append(recorded_group("a", (0.0, 1.0, 0.5)))
    return data


async def test_a_cancelled_step_is_not_made(data: DataDir, base_model: Path) -> None:
    """By either engine."""
    with Store.open(data) as store:
        store.append(recorded_group("b", (0.0, 1.0, 0.5)))
    given = ("train", "--orders", "--policy", "policy", "--base-model", str(base_model), "--dir", str(data.root))
    computing = asyncio.Event()
    trainer = TrainerProcess(
        [sys.executable, "-c", HELD, *given], say=lambda line: computing.set() if "tokens of the step" in line else None
    )
    checkpoints = Checkpoints(data.policies, "policy")
    for made, (key, engine) in enumerate((("a", "packed"), ("b", "trl")), 1):
        settings = {**LOOSE, "engine": engine}
        runs = tuple(f"{key}-{number}" for number in range(3))
        computing.clear()
        training = asyncio.create_task(trainer.order([Ordered(key, runs)], settings))
        waiting = asyncio.create_task(computing.wait())
        await asyncio.wait((training, waiting), return_when=asyncio.FIRST_COMPLETED, timeout=300)
        assert computing.is_set(), training
        assert training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        [step] = await trainer.order([Ordered(key, runs)], settings)
        assert step.version == f"policy@{made}"
        assert checkpoints.all_steps() == [*range(1, made + 1)]
        assert sorted(one.trajectory_id for one in checkpoints.manifest(made).consumed) == list(runs)
    await trainer.stop()
    with Store.open(data) as store:
        assert [done.step for done in store.policy_steps("policy")] == [1, 2]


async def test_an_order_is_cancelled_also_while_it_is_written(tmp_path: Path) -> None:
    reads, seen = tmp_path / "reads", tmp_path / "seen"
    trainer = TrainerProcess([sys.executable, "-c", LATE, str(reads), str(seen)])
    long = [Ordered("a", tuple(f"run-{number}" for number in range(100_000)))]  # more than a pipe holds
    ordering = asyncio.create_task(trainer.order(long, {}))
    while not trainer.works:
        await asyncio.sleep(0.01)
    assert ordering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ordering
    reads.touch()
    assert await trainer.order(None, {}) == []
    await trainer.stop()
    assert seen.read_text().split() == ["id=1", "cancel=1", "id=2"]


def test_an_order_that_is_cancelled_before_its_turn_is_not_begun(
    data: DataDir,
    base_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OrderedTrainer, "prepare", lambda *_: pytest.fail("no learner is needed"))
    with Store.open(data) as store:
        trainer = OrderedTrainer(
            data, store, Checkpoints(data.policies, "policy"), base_model, cancelled=lambda id: id == 3
        )
        assert "was cancelled" in trainer.fill(TrainOrder(3, LOOSE, (OrderedGroup("a", RUNS),))).error


def test_a_step_after_a_first_one_that_failed_begins_at_the_base_model(
    data: DataDir,
    base_model: Path,
) -> None:
    checkpoints = Checkpoints(data.policies, "policy")
    groups = (OrderedGroup("a", RUNS),)
    strict: dict[str, Any] = {**LOOSE, "max_logprob_difference": 1e-9}
    with Store.open(data) as store:
        trainer = OrderedTrainer(data, store, checkpoints, base_model)
        assert "log-probabilities" in trainer.fill(TrainOrder(1, strict, groups)).error
        done = trainer.fill(TrainOrder(2, LOOSE, groups))
    assert (done.error, [step["version"] for step in done.steps]) == ("", ["policy@1"])


def test_an_order_of_several_steps_that_fails_says_which_versions_it_made(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDir(tmp_path)
    said: list[str] = []
    with Store.open(data, create=True) as store:
        store.append([record for key in "abc" for record in recorded_group(key, (0.0, 1.0, 0.5))])
        checkpoints = Checkpoints(data.policies, "policy")
        trainer = OrderedTrainer(data, store, checkpoints, base_model, lambda one: said.append(one.said))
        prepare = trainer.prepare

        def full(config: Any) -> Any:
            if checkpoints.latest() == 2:
                raise TrainingError("The disk is full.", "Make room.")
            return prepare(config)

        monkeypatch.setattr(trainer, "prepare", full)
        answer = trainer.fill(TrainOrder(1, {**LOOSE, "steps": 3}))
        assert answer.error == "The disk is full. Before that, this order made policy@1 and policy@2."
        assert answer.hint == "Make room."
        assert [step["version"] for step in answer.steps] == ["policy@1", "policy@2"]
        assert said[-2:] == ["policy@1 is made, 1 of 3 steps", "policy@2 is made, 2 of 3 steps"]
        assert trainer.fill(TrainOrder(2, LOOSE)).error == "The disk is full."


def test_an_offline_order_holds_one_base_model(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of GRPO's learner is let go before another is loaded: two at once may not fit into memory."""
    held: list[bool] = []
    load = train.load_policy
    data = DataDir(tmp_path)
    with Store.open(data, create=True) as store:
        store.append([record for key in "ab" for record in recorded_group(key, (0.0, 1.0, 0.5))])
        trainer = OrderedTrainer(data, store, Checkpoints(data.policies, "policy"), base_model)
        model = weakref.ref(cast("Any", trainer.prepare(parse_settings(LOOSE).learner)).model)

        def loaded(*given: Any) -> Any:
            held.append(model() is not None)
            return load(*given)

        monkeypatch.setattr(train, "load_policy", loaded)
        answer = trainer.fill(TrainOrder(1, {**LOOSE, "method": "sft", "max_logprob_difference": None}))
        assert not answer.error, answer.error
        assert held == [False]
        [step] = trainer.fill(TrainOrder(2, LOOSE)).steps
        assert step["version"] == "policy@2", "it goes on from what SFT made"
