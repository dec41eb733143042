"""One policy by several methods: what each consumed, what a fork inherits, and that the weights are carried on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import simulated_agent
import torch
from click.testing import CliRunner, Result
from mlflow_environment import mlflow_holds, mlflow_python
from one_thread import one_thread as one_thread
from safetensors.torch import load_file
from simulated_agent import Run, hexid, message
from tiny_model import make_base_model
from wandb_file import when_written

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.errors import TrainingError
from arttrace.system.paths import DataDir
from trainer.commands.policies import command as policies
from trainer.commands.train.cli import command
from trainer.gateway.engines.vllm.model import read_model
from trainer.policies.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDir:
    """Two groups of two runs, one right and one wrong, whose tokens the base model could have sampled."""

    def small(item: dict[str, Any]) -> list[int]:
        return [3 + int(hexid(word, 6), 16) % 300 for word in json.dumps(item, sort_keys=True).split()] + [2]

    monkeypatch.setattr(simulated_agent, "tokens", small)
    data = DataDir(tmp_path / "data")
    records: list[Record] = []
    for scenario in ("pear", "plum"):
        for n, answer in enumerate(("no idea", f"a {scenario} is 3")):
            run = Run(f"{scenario}-{n}", scenario=scenario)
            run.chat("m", [message("user", f"A {scenario}?")], message("assistant", answer), at=1, policy="policy@0")
            records += [*run.end(), Reward(id=f"r-{run.id}", trajectory_id=run.id, value=float(n))]
    with Store.open(data, create=True) as store:
        store.append(records)
    return data


def train(data: DataDir, base_model: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        command, ["--dir", str(data.root), "--base-model", str(base_model), "--lora-rank", "8", *arguments]
    )


def made(result: Result) -> str:
    assert result.exception is None, result.output
    return str(json.loads(result.stdout.splitlines()[-1])["version"])


def test_the_same_runs_train_a_policy_by_sft_then_dpo_then_grpo(data: DataDir, base_model: Path) -> None:
    first = train(data, base_model, "--method", "sft", "--json")
    assert made(first) == "policy@1"
    assert "1 of 1 optimizer steps" in first.stderr
    preferred = train(data, base_model, "--method", "dpo", "--json")
    assert made(preferred) == "policy@2"
    assert "2 already trained on by sft at policy@1\n" in preferred.stderr
    reinforced = train(data, base_model, "--json")
    assert made(reinforced) == "policy@3"
    assert "4 already trained on by dpo at policy@2\n" in reinforced.stderr

    checkpoints = Checkpoints(data.policies, "policy")
    assert [checkpoints.manifest(n).method for n in (1, 2, 3)] == ["sft", "dpo", "grpo"]
    states = [torch.load(checkpoints.path(n) / "trainer_state.pt", weights_only=True) for n in (1, 2, 3)]
    assert [state["steps"] for state in states] == [1, 2, 3]
    assert [next(iter(s["optimizer"]["state"].values()))["step"].item() for s in states] == [1.0, 1.0, 1.0]
    for done, before in ((first, ""), (preferred, "policy@1 are of sft"), (reinforced, "policy@2 are of dpo")):
        said = [line for line in done.stderr.splitlines() if "moments" in line]
        assert said == ([f"AdamW's moments begin anew: those of {before}"] if before else [])
    one, two, three = (load_file(str(checkpoints.path(n) / "adapter_model.safetensors")) for n in (1, 2, 3))
    for before, after in ((one, two), (two, three)):  # AdamW moves a weight by about the learning rate
        moved = max(float((after[name] - before[name]).abs().max()) for name in before)
        assert 0 < moved < 1e-3


@pytest.mark.parametrize(
    ("method", "hint"),
    [
        (
            "grpo",
            "Score them with `arttrace score`, or reward them in code with arttrace.reward(value). What a function "
            "returns is no reward.",
        ),
        ("sft", "Reward the runs in code or by `arttrace score`"),
        ("dpo", "Reward the runs in code or by `arttrace score`"),
    ],
)
def test_a_dry_run_that_finds_nothing_to_train_on_says_what_to_do(
    tmp_path: Path, base_model: Path, method: str, hint: str
) -> None:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append([record for n in range(2) for record in Run(f"pear-{n}", scenario="pear").end()])
    shown = train(data, base_model, "--method", method, "--dry-run")
    assert shown.exception is None
    assert shown.stdout.splitlines()[-1].startswith(f"  {hint}")
    json.loads(train(data, base_model, "--method", method, "--dry-run", "--json").stdout)


NUMBERS = {
    1: {"loss", "tokens_trained", "step_s"},
    2: {"loss", "accuracy", "tokens_trained", "step_s"},
    3: {
        *("reward_mean", "reward_spread", "tokens_trained", "staleness_mean", "kl", "logprob_difference_mean"),
        "step_s",
    },
}
"""Some of what SFT, DPO and GRPO tell of their steps."""


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_model_that_carries_a_state_is_trained_offline_as_it_is(data: DataDir, method: str, tmp_path: Path) -> None:
    """Of these methods --engine is no option: they share nothing between rows."""
    assert made(train(data, make_base_model(tmp_path, family="lfm2"), "--method", method, "--json")) == "policy@1"


@pytest.mark.usefixtures("offline_wandb")
def test_trackers_hear_of_a_policy_that_learns_by_each_method(
    data: DataDir, base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)  # it reads where to write when it is imported
    pytest.importorskip("trackio")
    folder = data.policies / "policy"
    numbers: dict[int, set[str]] = {}
    for step, method in enumerate(("sft", "dpo", "grpo"), start=1):
        given = ("--method", method, "--json", "--report-to", "tensorboard,wandb,trackio")
        assert made(train(data, base_model, *given)) == f"policy@{step}"
        [written] = folder.glob("wandb/offline-run-*/*.wandb")
        assert when_written(written, 1, 2)[0] == [step], "its adapter and its table too"
        (folder / "wandb").rename(folder / f"wandb-{step}")  # W&B names folders by the second
        numbers[step] = {*Checkpoints(data.policies, "policy").manifest(step).metrics}
        assert numbers[step] >= NUMBERS[step]
    tensors: set[int] = set()
    scalars: dict[int, set[str]] = {}
    for file in (folder / "tensorboard" / "policy").iterdir():
        events = EventAccumulator(str(file))
        events.Reload()
        [at] = {event.step for event in events.Tensors("example/text_summary")}
        tensors.add(at)
        scalars[at] = {*events.Tags()["scalars"]}
    assert (tensors, {*scalars}) == ({1, 2, 3}, {1, 2, 3})
    assert all(scalars[step] >= numbers[step] for step in numbers), "and the seconds of what came after the manifest"
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "arttrace.db")) as kept:
        rows = kept.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
        [versions] = kept.execute("SELECT count(*) FROM artifact_versions").fetchone()
    assert {step: {*json.loads(metrics)} - {"example"} for step, metrics in rows} == scalars
    assert all(json.loads(metrics)["example"]["_value"] for _, metrics in rows)
    assert versions == 3


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_what_libraries_print_as_they_are_imported_is_not_among_the_json(
    data: DataDir, base_model: Path, method: str
) -> None:
    """As transformers does where W&B is offline."""
    made(train(data, base_model, "--method", "dpo", "--json"))  # the runs are stale then, for GRPO
    code = "from arttrace.commands import main; main()"
    given = ["--method", method, "--base-model", str(base_model), "--lora-rank", "8", "--json"]
    environment = {**os.environ, "WANDB_MODE": "offline"}
    command = [sys.executable, "-c", code, "train", "--dir", str(data.root), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] == "policy@2"


@pytest.mark.full
def test_mlflow_hears_of_a_policy_that_learns_by_each_method(data: DataDir, base_model: Path, tmp_path: Path) -> None:
    python = mlflow_python(tmp_path)
    for method in ("sft", "dpo", "grpo"):
        given = ["--method", method, "--base-model", str(base_model), "--lora-rank", "8", "--report-to", "mlflow"]
        code = "from trainer.commands.train.cli import command; command()"
        done = subprocess.run(
            [python, "-c", code, "--dir", str(data.root), *given], capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
    found = mlflow_holds(python, data.policies / "policy")
    assert found["run"] == ["policy", "FINISHED"]
    heard = {step: {name for name, at in found["numbers"].items() if step in dict(at)} for step in (1, 2, 3)}
    made_with = {step: {*Checkpoints(data.policies, "policy").manifest(step).metrics} for step in (1, 2, 3)}
    assert all(heard[step] >= made_with[step] >= NUMBERS[step] for step in heard)
    assert len(found["adapters"]) == 6, "two files of each"
    assert [len(table["data"]) > 0 for table in found["examples"]] == [True] * 3


def test_each_method_has_its_own_account_and_a_fork_inherits_all_of_them(data: DataDir, base_model: Path) -> None:
    assert made(train(data, base_model, "--method", "sft", "--json", "--report-to", "tensorboard")) == "policy@1"
    checkpoints = Checkpoints(data.policies, "policy")
    [events] = (checkpoints.directory / "tensorboard" / "policy").iterdir()
    assert b"example" in events.read_bytes(), "each method reports its numbers, and one of its runs"
    left = train(data, base_model, "--method", "sft")
    assert isinstance(left.exception, TrainingError)
    assert "--again" in (left.exception.hint or "")
    assert made(train(data, base_model, "--method", "sft", "--again", "--json")) == "policy@2"
    assert train(data, base_model, "--again").exit_code == 2, "GRPO takes each run once"
    assert made(train(data, base_model, "--json")) == "policy@3"
    none = train(data, base_model)
    assert isinstance(none.exception, TrainingError)
    assert "2 already trained on by sft at policy@1 to policy@2\n" in none.stderr
    assert "4 already trained on by grpo at policy@3\n" in none.stderr

    forked = CliRunner().invoke(policies, ["--dir", str(data.root), "fork", "policy@3", "other"])
    assert "inherits: 2 trajectories trained on by sft\n" in forked.output
    assert "inherits: 4 trajectories trained on by grpo\n" in forked.output
    with Store.open(data) as store:
        store.append([Checkpoints(data.policies, "other").manifest(3)])
    of_fork = train(data, base_model, "--policy", "other")
    assert isinstance(of_fork.exception, TrainingError)
    assert "4 already trained on by grpo at other@3 (inherited from policy@3)" in of_fork.stderr
    assert made(train(data, base_model, "--policy", "other", "--method", "dpo", "--json")) == "other@4"


def test_versions_of_before_methods_were_kept_count_by_what_their_metrics_tell(data: DataDir) -> None:
    checkpoints = Checkpoints(data.policies, "policy")
    old = {1: {"learned_tokens": 5.0, "accuracy": 0.0}, 2: {"learned_tokens": 5.0, "accuracy": 0.7}, 3: {"loss": 0.1}}
    for step, metrics in old.items():
        consumed = (Consumed(f"pear-{step % 2}", "r"),)
        manifest = PolicyStep("policy", step, "", consumed=consumed, metrics=metrics)
        assert b"method" not in msgspec.json.encode(manifest)
        checkpoints.write(step, lambda _: None, manifest)
        with Store.open(data) as store:
            store.append([manifest])
    wanted = {"sft": {"pear-1"}, "dpo": {"pear-0"}, "grpo": {"pear-1"}}
    all_runs = {"pear-0", "pear-1", "plum-0", "plum-1"}
    with Store.open(data) as store:
        for method, ids in wanted.items():
            assert checkpoints.consumed_ids(method) == ids
            unused = store.summaries(unconsumed_by="policy", method=method)
            assert {one.id for one in unused} == all_runs - ids
            assert {one.id for one in store.trajectories(unconsumed_by="policy", method=method)} == all_runs - ids


@pytest.mark.parametrize("recorded", [True, False], ids=["in the store", "in the manifest alone"])
def test_the_second_best_of_a_group_is_not_imitated_after_the_best(
    data: DataDir, base_model: Path, recorded: bool
) -> None:
    with Store.open(data) as store:
        run = Run("pear-2", scenario="pear")
        run.chat("m", [message("user", "A pear?")], message("assistant", "so so"), at=1, policy="policy@0")
        store.append([*run.end(), Reward(id="r-pear-2", trajectory_id=run.id, value=0.5)])
    first = json.loads(train(data, base_model, "--method", "sft", "--dry-run", "--json").stdout)
    assert (first["trajectories"], first["trajectories_left_out"]) == (2, {"not the best of its group": 3})
    manifest = PolicyStep(
        "policy", 1, "", method="sft", consumed=(Consumed("pear-1", "r"), Consumed("plum-1", "r")), metrics={}
    )
    Checkpoints(data.policies, "policy").write(1, lambda _: None, manifest)
    if recorded:
        with Store.open(data) as store:
            store.append([manifest])
    then = json.loads(train(data, base_model, "--method", "sft", "--dry-run", "--json").stdout)
    assert (then["trajectories"], then["trajectories_left_out"]) == (0, {"not the best of its group": 3})
    again = json.loads(train(data, base_model, "--method", "sft", "--again", "--dry-run", "--json").stdout)
    assert again["trajectories"] == 2


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_what_exceeds_the_model_is_reported_before_anything_is_loaded(
    data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr("trainer.offline.train.OfflineLearner", None)
    short = dataclasses.replace(read_model(base_model), max_positions=8)
    monkeypatch.setattr("trainer.commands.train.offline.read_model", lambda _: short)
    refused = train(data, base_model, "--method", method)
    assert isinstance(refused.exception, TrainingError)
    count = 2 if method == "sft" else 4
    assert f"all {count} conversations are longer than the model's 8 positions" in refused.exception.message
    assert "longer context" in (refused.exception.hint or "")


@pytest.mark.parametrize(("method", "signals", "steps"), [("sft", 1, [1]), ("dpo", 1, [1]), ("sft", 2, [])])
def test_one_signal_lets_a_training_be_completed_and_two_drop_it(
    method: str, signals: int, steps: list[int], data: DataDir, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def progress(_total: int, unit: str, *_: Any, **__: Any) -> Callable[..., None]:
        def tell(_done: int, _note: str = "") -> None:
            for _ in range(signals if unit == "optimizer steps" else 0):
                signal.raise_signal(signal.SIGINT)

        return tell

    monkeypatch.setattr("trainer.commands.train.offline.Progress", progress)
    done = train(data, base_model, "--method", method)
    assert "stopping when the running step is done; once more drops the step" in done.stderr
    assert (Checkpoints(data.policies, "policy").steps(), done.exit_code == 0) == (steps, signals == 1)
