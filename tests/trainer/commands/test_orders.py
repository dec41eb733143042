"""A trainer that stays up: it trains on exactly the groups ordered, as ordered, until its parent ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from one_thread import one_thread as one_thread
from recorded_runs import recorded_group
from simulated_agent import Run, message
from tiny_model import make_base_model

from arttrace.loop.processes.trainer_process import LoggedNumbers, OrderedBatch, TrainerProcess
from arttrace.records.group import Group
from arttrace.records.record import encode_record
from arttrace.records.reward import Reward
from arttrace.records.sequence import NotTrained
from arttrace.store import Store, open_store
from arttrace.system.errors import ServingError, TrainingError
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_trajectories
from trainer.commands.train import orders
from trainer.commands.train.cli import command as train
from trainer.commands.train.orders import OrderedGroup, OrderedTrainer, TrainOrder, parse_settings
from trainer.daemon.config import DaemonConfig
from trainer.gateway.status import PublishReport, ServingFile
from trainer.grpo.selection import Selection
from trainer.learner import LearnerConfig
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.refused_runs import refuse_runs
from trainer.step.reporters import Reporters

LOOSE: dict[str, Any] = {"lora_rank": 8, "max_logprob_difference": 1e9}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append([record for key in "abcd" for record in recorded_group(key, (0.0, 1.0, 0.5))])
    return data


AT_EACH_CHANCE = (
    "from arttrace.commands.shared.progress import Progress; Progress.__init__.__kwdefaults__['every_s'] = 0.0; "
)
"""Its progress is said at each of its chances, however fast it goes."""


def command(data: DataDir, base_model: Path, *, first: str = "") -> list[str]:
    program = first + "from arttrace.commands import main; main()"
    given = ["train", "--orders", "--policy", "policy", "--base-model", str(base_model), "--dir", str(data.root)]
    return [sys.executable, "-c", program, *given]


def consumed(data: DataDir, step: int) -> list[str]:
    return sorted(one.trajectory_id for one in Checkpoints(data.policies, "policy").manifest(step).consumed)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_steps_on_exactly_the_groups_that_are_given_by_one_process_which_says_its_progress(
    data: DataDir, base_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a rate, as `arttrace train` says it."""
    checkpoints = Checkpoints(data.policies, "policy")
    with Store.open(data) as store:
        groups = {group.key: group for group in group_trajectories(store.trajectories())}
    part = Group("b", groups["b"].trajectories[:2])

    async def loop() -> int:
        trainer = TrainerProcess(command(data, base_model, first=AT_EACH_CHANCE))
        alone = Group("d", groups["d"].trajectories[:1])
        [first] = await trainer.train([groups["a"], part, alone], LOOSE)
        assert first.left_out == {"alone in its group": 1}
        lines = capfd.readouterr().err.splitlines()
        assert lines[0] == f"arttrace: loading {base_model}"
        assert "arttrace: left out: 1 trajectory (alone in its group)" in lines
        said = r"arttrace: \d+ of \d+ tokens of the step, [\d.]+ per second.*"
        assert any(re.fullmatch(said, line) for line in lines), lines
        pid = checkpoints.writer()
        assert pid is not None
        assert first.version == "policy@1"
        assert consumed(data, 1) == ["a-0", "a-1", "a-2", "b-0", "b-1"]
        with pytest.raises(TrainingError, match="3 of 3 runs were trained on by grpo already"):
            await trainer.train([groups["a"]], LOOSE)
        with pytest.raises(TrainingError, match=r"(?s)settings.*learning_rat"):
            await trainer.train([groups["c"]], {"learning_rat": 1e-3})
        with open_store(data) as store:  # as the loop does between steps
            assert len(store.summaries(unconsumed_by="policy", method="grpo")) == 7
        [second] = await trainer.train([groups["c"]], {**LOOSE, "learning_rate": 1e-3, "loss": "dapo"})
        assert (second.version, checkpoints.writer()) == ("policy@2", pid)
        rest = await trainer.train(None, {**LOOSE, "steps": 5})
        assert [one.version for one in rest] == ["policy@3"], "the third run of b is alone now"
        assert consumed(data, 3) == ["d-0", "d-1", "d-2"]
        await trainer.stop()
        return pid

    pid = asyncio.run(loop())
    assert gone(pid)
    assert checkpoints.writer() is None


def test_batches_are_imitated_by_no_other_method(data: DataDir, base_model: Path) -> None:
    async def loop() -> None:
        trainer = TrainerProcess(command(data, base_model))
        try:
            for method in ("dpo", "grpo"):
                with pytest.raises(TrainingError, match=f"Batches are imitated by sft, not by {method}") as refused:
                    await trainer.imitate([OrderedBatch(("a-0",), 1e-4)], {"method": method})
                assert refused.value.hint == "Leave method out."
        finally:
            await trainer.stop()

    asyncio.run(loop())


ABANDONED = """
import asyncio, os, signal, sys
from arttrace.loop.processes.trainer_process import TrainerProcess

async def loop():
    trainer = TrainerProcess(sys.argv[1:])
    ordered = asyncio.create_task(trainer.train(None, {"steps": 1, "max_logprob_difference": 1e9}))
    print(await asyncio.wait_for(ordered, 300), flush=True)
    if (worker := os.fork()) == 0:  # holds all that is open
        signal.pause()
    print(worker, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(loop())
"""


def test_it_ends_when_the_process_that_orders_is_killed(data: DataDir, base_model: Path) -> None:
    checkpoints = Checkpoints(data.policies, "policy")
    parent = subprocess.Popen(
        [sys.executable, "-c", ABANDONED, *command(data, base_model)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert "policy@1" in parent.stdout.readline()
    worker = int(parent.stdout.readline())
    try:
        assert parent.wait(60) == -signal.SIGKILL
        until(lambda: checkpoints.writer() is None)
    finally:
        os.kill(worker, signal.SIGKILL)
    assert checkpoints.steps() == [1]


class Learners:
    """Counts how often a model is loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        make = orders.make_learner

        def counted(base_model: Path, config: LearnerConfig) -> Any:
            self.made += 1
            return make(base_model, config)

        monkeypatch.setattr(orders, "make_learner", counted)


def test_the_model_is_loaded_once_for_all_that_one_learner_can_do(
    data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners = Learners(monkeypatch)
    checkpoints = Checkpoints(data.policies, "policy")
    with Store.open(data) as store:
        trainer = OrderedTrainer(data, store, checkpoints, base_model)

        def order(key: str, **settings: Any) -> Any:
            given = OrderedGroup(key, tuple(f"{key}-{n}" for n in range(3)))
            answer = trainer.fill(TrainOrder(1, {**LOOSE, **settings}, (given,)))
            assert not answer.error, answer.error
            return answer

        order("a")
        order("b", learning_rate=1e-3, epochs=2, loss="grpo", advantages="std")
        assert learners.made == 1
        by_sft = order("a", method="sft", report_to="tensorboard", max_logprob_difference=None)
        assert by_sft.steps[0]["version"] == "policy@3"
        assert order("c").steps[0]["version"] == "policy@4"
        assert learners.made == 2, "SFT had the memory, and what it made was loaded into it"
        state = torch.load(checkpoints.path(4) / "trainer_state.pt", weights_only=True)
        assert state["steps"] == 4
        order("d", gradient_checkpointing=True)
        assert learners.made == 3
        trainer.close()
    assert list((checkpoints.directory / "tensorboard" / "policy").iterdir())


def test_a_policy_goes_on_with_the_rank_and_scale_that_it_was_begun_with(
    data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever left them out, later or in another program, was refused: the usual ones were taken for asked for."""
    learners = Learners(monkeypatch)
    checkpoints = Checkpoints(data.policies, "policy")
    open_to_all = {"max_logprob_difference": 1e9}
    with Store.open(data) as store:

        def ordered(trainer: OrderedTrainer, key: str, **settings: Any) -> str:
            group = OrderedGroup(key, tuple(f"{key}-{n}" for n in range(3)))
            return trainer.fill(TrainOrder(1, settings, (group,))).error

        first = OrderedTrainer(data, store, checkpoints, base_model)
        assert not ordered(first, "a", lora_rank=8, lora_alpha=8, **open_to_all)
        assert not ordered(first, "b", **open_to_all)
        assert learners.made == 1, "it is the same learner"
        assert not ordered(OrderedTrainer(data, store, checkpoints, base_model), "a", method="sft")
        asked = ordered(OrderedTrainer(data, store, checkpoints, base_model), "c", lora_rank=16, **open_to_all)
        assert "lora_rank 8, not 16" in asked
    shapes = [json.loads((checkpoints.path(n) / "adapter_config.json").read_bytes()) for n in (1, 2, 3)]
    assert [(one["r"], one["lora_alpha"]) for one in shapes] == [(8, 8)] * 3
    shown = CliRunner().invoke(train, ["--print-config", "--json", "--dir", str(data.root)])
    learner = json.loads(shown.output)["config"]["learner"]
    assert (learner["lora_rank"], learner["lora_alpha"]) == (8, 8)


def test_a_step_by_order_is_made_where_the_learner_is(
    data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device was left open: it is chosen when the model is loaded, and stays chosen in every order."""
    made: list[Any] = []
    make = orders.make_learner
    monkeypatch.setattr(orders, "make_learner", lambda *given: made.append(make(*given)) or made[-1])
    with Store.open(data) as store:
        trainer = OrderedTrainer(data, store, Checkpoints(data.policies, "policy"), base_model)
        for settings in (LOOSE, {**LOOSE, "learning_rate": 1e-3}):
            config = parse_settings(settings).learner
            assert config.device is None
            assert trainer.prepare(config) is made[0]
            assert made[0].config.device == next(made[0].model.parameters()).device.type


def test_refused_runs_are_judged_by_the_bound_of_the_precision_that_is_served(
    data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step's bound: with another one they would be taken and refused at every order, or left out for ever."""
    bounds: list[float] = []
    served = ServingFile("http://127.0.0.1:9", str(base_model), "policy", 1, "", dtype="bfloat16")

    def none_refused(_directory: Path, bound: float, _say: object) -> frozenset[str]:
        bounds.append(bound)
        return frozenset()

    monkeypatch.setattr(orders, "find_serving", lambda _: served)
    monkeypatch.setattr(orders, "refused_runs", none_refused)
    monkeypatch.setattr(orders, "choose_groups", lambda *_: Selection((), {}))
    with Store.open(data) as store:
        trainer = OrderedTrainer(data, store, Checkpoints(data.policies, "policy"), base_model)
        answer = trainer.fill(TrainOrder(1, {}))
        assert answer.error == "There is nothing to train on."
        assert bounds == [trainer.prepare(parse_settings({}).learner).config.logprob_bound] == [1.0]


def test_every_setting_of_the_command_is_known() -> None:
    elsewhere = {"dir", "policy", "base_model", "dry_run", "as_json", "orders", "help"}  # the backend's, or no setting
    daemons = {"daemon", "config_file", "print_config", "log_format"}
    of_daemon = set(DaemonConfig.model_fields) - {"report_to", "advantages", "max_staleness"}
    known = set(orders.TrainSettings.__struct_fields__) | set(LearnerConfig.__dataclass_fields__)
    names = {parameter.name or "" for parameter in train.params}
    names = {name for name in names if not name.startswith("keep__")}
    assert names - elsewhere - daemons - of_daemon - {"data"} <= known
    with pytest.raises(TrainingError, match="no method 'ppo'"):
        parse_settings({"method": "ppo"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"min_reward": 1.0}, "min_reward is a setting of sft, and does nothing for grpo"),
        ({"method": "sft", "loss": "dapo"}, "loss is a setting of grpo and distill, and does nothing for sft"),
        ({"method": "dpo", "steps": 2}, "steps is a setting of grpo and distill, and does nothing for dpo"),
        ({"max_staleness": -1}, "max_staleness must be at least 0, not -1"),
        ({"keep_states": -1}, "keep_states must be at least 0, not -1"),
        ({"method": "sft", "max_length": 1}, "max_length must be at least 2, not 1"),
        ({"method": "dpo", "min_gap": -0.1}, "min_gap must be at least 0, not -0.1"),
        ({"method": "dpo", "min_gap": math.nan}, "min_gap must be at least 0, not nan"),
    ],
)
def test_a_setting_that_the_method_does_not_take_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        parse_settings(given)


def test_what_each_method_leaves_out_is_said_before_the_model_is_loaded(
    data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that waits, and of groups that are given; one conversation is longer than what it is bound to."""
    long = Run("d-3", scenario="d")
    long.chat("m", [message("user", "task d")], message("assistant", "word " * 300), at=1, policy="policy@0")
    with Store.open(data) as store:
        store.append([*long.end(), Reward(id="r-d-3", trajectory_id="d-3", value=2.0)])
        store.append(recorded_group("alone", (1.0,)))
        said: list[str] = []
        monkeypatch.setattr(orders, "train_offline", lambda *_, **__: said.append("trains") or None)
        trainer = OrderedTrainer(
            data, store, Checkpoints(data.policies, "policy"), base_model, lambda one: said.append(one.said)
        )
        two = tuple(OrderedGroup(key, tuple(f"{key}-{n}" for n in range(last))) for key, last in (("c", 3), ("d", 4)))
        for group in (None, two):
            said.clear()
            assert trainer.fill(TrainOrder(1, {"method": "sft"}, group)).error == ""
            found = [line for line in said if "runs rendered" not in line]
            assert "left out: 1 conversation (longer than the model's 512 positions)" in found[:-2]
            assert any(line.startswith("left out: ") and "not the best of its group" in line for line in found[:-2])
            assert found[-2:] == [f"loading {base_model}", "trains"]
        said.clear()
        monkeypatch.setattr(orders.PolicyTrainer, "train_on", lambda *_, **__: said.append("trains") or None)
        assert trainer.fill(TrainOrder(2, LOOSE)).error == ""
        assert "left out: 1 trajectory (alone in its group)" in said
        assert said.index("left out: 1 trajectory (alone in its group)") < said.index("trains")


def test_no_two_base_models_are_in_memory_at_once(
    data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card they take twice the memory: the one before is freed when another is loaded, whatever it is for."""
    from transformers import AutoModelForCausalLM

    load: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
    models: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def loading(*given: Any, **more: Any) -> Any:
        alive.append(sum(model() is not None for model in models))
        made = load(*given, **more)
        models.append(weakref.ref(made))
        return made

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loading)
    with Store.open(data) as store:
        trainer = OrderedTrainer(data, store, Checkpoints(data.policies, "policy"), base_model)
        orders_of = [LOOSE, {**LOOSE, "seed": 7}, {"method": "sft", "lora_rank": 8}, {**LOOSE, "epochs": 2}]
        for number, (key, settings) in enumerate(zip("abcd", orders_of, strict=True), 1):
            group = OrderedGroup(key, tuple(f"{key}-{run}" for run in range(3)))
            assert trainer.fill(TrainOrder(number, settings, (group,))).error == ""
    assert alive == [0, 0, 0, 0]


def test_runs_of_a_version_that_could_not_be_published_are_not_trained_on_again(
    data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is on disk: they are consumed, although the order has failed."""

    class Lost:
        def publish(self, step: int, path: Path) -> PublishReport:
            raise ServingError("the gateway is gone")

        def status(self) -> None:
            return None

        def fall_asleep(self) -> Callable[[], None]:
            return lambda: None

    checkpoints = Checkpoints(data.policies, "policy")
    with Store.open(data) as store:
        trainer = OrderedTrainer(data, store, checkpoints, base_model)
        first, lost = (
            TrainOrder(n, LOOSE, (OrderedGroup(key, tuple(f"{key}-{run}" for run in range(3))),))
            for n, key in enumerate("ab")
        )
        assert trainer.fill(first).error == ""
        with monkeypatch.context() as patched:
            patched.setattr(trainer, "gateway", Lost)
            assert trainer.fill(lost).error == "policy@2 was made and is not served yet: the gateway is gone"
        assert [done.step for done in store.policy_steps("policy")] == [1, 2], "disk and ledger agree"
        assert "3 of 3 runs were trained on by grpo already" in trainer.fill(lost).error
    assert checkpoints.all_steps() == [1, 2]


def test_numbers_go_to_the_trackers_and_nothing_is_trained(data: DataDir, base_model: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    checkpoints = Checkpoints(data.policies, "policy")
    with Store.open(data) as store:
        trainer = OrderedTrainer(data, store, checkpoints, base_model)
        log = LoggedNumbers(4, {"val/reward": 0.75})
        assert trainer.fill(TrainOrder(1, {"report_to": ["tensorboard"]}, log=log)) == orders.OrderResult(1)
        assert "sent to 'nothing'" in trainer.fill(TrainOrder(2, {"report_to": ["nothing"]}, log=log)).error
        trainer.close()
    events = EventAccumulator(str(checkpoints.directory / "tensorboard" / "policy"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("val/reward")] == [(4, 0.75)]
    assert checkpoints.latest() is None


@pytest.mark.parametrize("beside", [{"groups": (OrderedGroup("a", ("a-0", "a-1")),)}, {"batches": ()}])
def test_numbers_beside_something_to_train_on_are_refused(data: DataDir, base_model: Path, beside: Any) -> None:
    """Which was left out in silence."""
    sent = LoggedNumbers(4, {"val/reward": 0.75})
    with Store.open(data) as store:
        trainer = OrderedTrainer(data, store, Checkpoints(data.policies, "policy"), base_model)
        answer = trainer.fill(TrainOrder(1, {"report_to": ["nothing"]}, log=sent, **beside))
    assert answer.error == f"The order has both log and {next(iter(beside))}."
    assert answer.hint == "Order the step, and send the numbers by another order."


def test_runs_that_a_step_was_refused_for_are_left_out_of_groups_that_are_given(
    data: DataDir, base_model: Path
) -> None:
    """They are of a version before the newest by then, of which no step looks at the log-probabilities again."""
    checkpoints = Checkpoints(data.policies, "policy")
    given = tuple(OrderedGroup(key, tuple(f"{key}-{run}" for run in range(3))) for key in "abc")
    refuse_runs(checkpoints.directory, ["a-0", "b-0", "b-1", "d-0"])
    refuse_runs(checkpoints.directory, ["c-0"], 0.5)  # below the bound that is asked for
    said: list[str] = []
    with Store.open(data) as store:
        trainer = OrderedTrainer(data, store, checkpoints, base_model, lambda one: said.append(one.said))
        [step] = trainer.fill(TrainOrder(1, LOOSE, given)).steps
        assert step["left_out"] == {NotTrained.OTHER_WEIGHTS: 3, NotTrained.ALONE: 1}
        assert [one for one in said if NotTrained.OTHER_WEIGHTS in one and "Restart `arttrace serve`" in one] != []
        assert consumed(data, 1) == ["a-1", "a-2", "c-0", "c-1", "c-2"]
        nothing = trainer.fill(TrainOrder(2, LOOSE, (OrderedGroup("d", ("d-0", "b-2")),)))
        assert nothing.error.startswith("There is nothing to train on. Trajectories left out: ")
        assert "Restart `arttrace serve`" in str(nothing.hint)
        assert trainer.fill(TrainOrder(3, {"method": "sft", "min_reward": 0.0, "lora_rank": 8}, given[1:2])).error == ""


def test_settings_of_the_learner_in_a_mapping_of_their_own_are_refused() -> None:
    with pytest.raises(TrainingError, match="no setting 'learner'"):
        parse_settings({"learner": {"learning_rate": 1e-3}})


def test_runs_that_came_since_the_last_order_are_found(
    data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's gateway writes them to the spool while the trainer holds the store."""
    stepped: list[list[Group]] = []

    def step(_self: Any, _settings: Any, groups: list[Group], *_: Any) -> tuple[None, dict[Any, int]]:
        stepped.append(groups)
        return None, {}

    monkeypatch.setattr(OrderedTrainer, "_step", step)
    with open_store(data) as store:
        trainer = OrderedTrainer(data, store, Checkpoints(data.policies, "policy"), base_model)
        with contextlib.closing(JournalWriter(data.spool)) as spool:
            for record in recorded_group("late", (0.0, 1.0)):
                spool.append(encode_record(record))
        answer = trainer.fill(TrainOrder(1, {}, (OrderedGroup("late", ("late-0", "late-1")),)))
    assert (answer.error, answer.skipped) == ("", 1)
    assert [run.id for run in stepped[0][0].trajectories] == ["late-0", "late-1"]


def test_a_run_is_in_a_step_once(data: DataDir, base_model: Path) -> None:
    with open_store(data) as store:
        trainer = OrderedTrainer(data, store, Checkpoints(data.policies, "policy"), base_model)
        twice = (OrderedGroup("a", ("a-0", "a-1")), OrderedGroup("b", ("b-0", "a-1")))
        assert trainer.fill(TrainOrder(1, {}, twice)).error == "1 of the 3 runs is in the step twice."
        twice = (OrderedGroup("a", ("a-0", "a-1")),) * 2
        assert trainer.fill(TrainOrder(2, {}, twice)).error == "2 of the 2 runs are in the step twice."


def test_a_step_that_died_before_its_report_is_reported_by_the_next_start(
    data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    checkpoints = Checkpoints(data.policies, "policy")
    first, second = (
        TrainOrder(
            n, {**LOOSE, "report_to": "tensorboard"}, (OrderedGroup(key, tuple(f"{key}-{run}" for run in range(3))),)
        )
        for n, key in enumerate("ab")
    )
    with Store.open(data) as store:
        with monkeypatch.context() as patched:
            patched.setattr(Reporters, "catch_up", dies)
            killed = OrderedTrainer(data, store, checkpoints, base_model)
            with pytest.raises(KeyboardInterrupt):
                killed.fill(first)
        assert checkpoints.latest() == 1
        trainer = OrderedTrainer(data, store, checkpoints, base_model)
        assert trainer.fill(second).error == ""
        trainer.close()
    events = EventAccumulator(str(checkpoints.directory / "tensorboard" / "policy"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2]
