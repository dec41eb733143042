"""`arttrace policies` and `arttrace status` on real checkpoints of a tiny model."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from recorded_runs import recorded_group
from reserved_port import reserved_port
from tiny_model import make_adapter, make_base_model

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.store import Store
from arttrace.system.errors import TrainingError
from arttrace.system.evaluations import add_evaluation
from arttrace.system.paths import DataDir
from trainer.commands.policies import command as policies
from trainer.commands.status import command as status
from trainer.commands.train.cli import command as train
from trainer.daemon.state import DaemonState, PlannedGroup, Queue, StepPlan, write_state
from trainer.gateway.status import ServingFile
from trainer.grpo.batch import TrainingBatch
from trainer.grpo.metrics import GroupReward, step_numbers
from trainer.learner.interface import StepMetrics
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.retention import Keep, to_prune
from trainer.serving.base_models import is_base

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def data(tmp_path: Path, base_model: Path) -> DataDir:
    """Five versions; the last one's adapter is real."""
    data = DataDir(tmp_path / "data")
    checkpoints = Checkpoints(data.policies, "policy")
    for step, reward in enumerate((0.1, 0.2, 0.9, 0.3, 0.4), start=1):

        def save(directory: Path, step: int = step) -> None:
            if step == 5:
                make_adapter(base_model, directory, step)
            else:
                (directory / "adapter_model.safetensors").write_text(str(step))
                (directory / "trainer_state.pt").write_text(str(step))

        manifest = PolicyStep(
            policy="policy",
            step=step,
            adapter="",
            consumed=(Consumed(f"t{step}", "r"), Consumed(f"equal{step}", "r", set_aside=True)),
            metrics={"reward_mean": reward, "tokens_trained": 10.0 * step},
            base_model=str(base_model),
            time_ns=step,
        )
        checkpoints.write(step, save, manifest)
    return data


def run(data: DataDir, *arguments: str, command: Any = policies) -> Result:
    return CliRunner().invoke(command, ["--dir", str(data.root), *arguments])


def test_versions_are_listed_with_the_reward_of_the_runs_they_answered(data: DataDir) -> None:
    lines = json.loads(run(data, "--json").stdout)
    assert [line["version"] for line in lines] == [f"policy@{n}" for n in range(1, 6)]
    assert [line["reward"] for line in lines] == [0.2, 0.9, 0.3, 0.4, None]
    assert {line["served"] for line in lines} == {False}
    assert {line["trajectories"] for line in lines} == {1}, "without the one that was set aside"
    assert "policy@5" in run(data).stdout


@pytest.mark.parametrize("step", [3, 0])
def test_the_list_says_which_version_a_rolled_back_policy_is_served_from(data: DataDir, step: int) -> None:
    assert "rolled back" not in run(data).stdout
    assert run(data, "rollback", f"policy@{step}").exit_code == 0
    assert f"policy is rolled back: `arttrace serve` begins with policy@{step}\n" in run(data).stdout
    assert run(data, "rollback", "policy@5").exit_code == 0
    assert "rolled back" not in run(data).stdout


def test_a_version_is_listed_with_its_evaluations(data: DataDir) -> None:
    assert "evaluation" not in run(data).stdout
    add_evaluation(data, "policy", 0, {"val/reward": 0.25, "val/runs": 8.0})
    add_evaluation(data, "policy", 3, {"val/reward": 0.5})
    add_evaluation(data, "policy", 3, {"val/reward": 0.75, "val/turns": 2.0})
    lines = {line["version"]: line for line in json.loads(run(data, "--json").stdout)}
    assert next(iter(lines)) == "policy@0", "the base model was evaluated too"
    assert lines["policy@0"]["evaluation"] == {"val/reward": 0.25}
    assert lines["policy@3"]["evaluation"] == {"val/reward": 0.75, "val/turns": 2.0}
    assert lines["policy@5"]["evaluation"] == {}
    shown = run(data).stdout
    assert "base model" in shown
    assert "val/reward 0.75" in shown
    add_evaluation(data, "policy", 3, {f"val/{name}_of_all_tasks": 0.125 for name in ("reward", "turns", "cost")})
    [line] = [line for line in run(data).stdout.splitlines() if line.startswith("policy@3")]
    assert all(f"val/{name}_of_all_tasks 0.125" in line for name in ("reward", "turns", "cost"))


def test_two_versions_are_compared_number_by_number(data: DataDir) -> None:
    compared = json.loads(run(data, "compare", "policy@1", "policy@3", "--json").stdout)
    assert compared == {"reward_mean": [0.1, 0.9], "tokens_trained": [10.0, 30.0]}
    assert "+0.8" in run(data, "compare", "policy@1", "policy@3").stdout
    for wrong in ("policy", "policy@9"):
        assert isinstance(run(data, "compare", "policy@1", wrong).exception, TrainingError)


def test_tokens_have_one_name_whatever_made_the_version_and_whenever(data: DataDir) -> None:
    stored = {"grpo": {"tokens_trained": 7.0, "trained_tokens": 7.0}, "sft": {"learned_tokens": 5.0, "loss": 0.5}}
    for name, metrics in stored.items():
        Checkpoints(data.policies, name).write(1, lambda _: None, PolicyStep(name, 1, "", metrics=metrics))
    compared = json.loads(run(data, "compare", "grpo@1", "sft@1", "--json").stdout)
    assert compared == {"loss": [None, 0.5], "tokens_trained": [7.0, 5.0]}
    listed = {line["version"]: line["tokens_trained"] for line in json.loads(run(data, "--json").stdout)}
    assert (listed["grpo@1"], listed["sft@1"]) == (7.0, 5.0)
    batch, learned = TrainingBatch(trained_tokens=3), StepMetrics(trained_tokens=3)
    made = step_numbers(batch, learned)
    assert (made["tokens_trained"], "trained_tokens" in made) == (3.0, False)


def test_counts_are_compared_in_all_their_digits(data: DataDir) -> None:
    for step, metrics in {1: {"tokens_trained": 16384.0, "loss": 0.123456}, 2: {"tokens_trained": 123456.0}}.items():
        Checkpoints(data.policies, "whole").write(step, lambda _: None, PolicyStep("whole", step, "", metrics=metrics))
    shown = [line.split() for line in run(data, "compare", "whole@1", "whole@2").stdout.splitlines()[1:]]
    assert shown == [["loss", "0.1235", "-"], ["tokens_trained", "16384", "123456", "+107072"]]


@pytest.mark.parametrize("arguments", ["compare policy@0 policy@1", "export policy@0 here", "fork policy@0 mine"])
def test_the_base_model_is_distinguished_from_a_version_that_is_missing(data: DataDir, arguments: str) -> None:
    """Runs, `status` and `serve` call it policy@0."""
    error = run(data, *arguments.split()).exception
    assert isinstance(error, TrainingError)
    assert error.message == "policy@0 is the base model: it has no step's metrics, adapter or optimizer state."


@pytest.mark.parametrize("version", ["policy@9", "polcy@1"])
def test_a_version_that_is_not_there_is_named_without_a_path(data: DataDir, version: str) -> None:
    error = run(data, "compare", version, "policy@1").exception
    assert isinstance(error, TrainingError)
    assert error.message == f"There is no version {version}."


def test_a_pruned_version_keeps_its_manifest_and_its_number(data: DataDir) -> None:
    checkpoints = Checkpoints(data.policies, "policy")
    arguments = ("prune", "--keep-best", "1", "--keep-latest", "1")
    would = run(data, *arguments, "--dry-run").stdout
    assert would == "would be pruned: policy@1, policy@3; 3 versions left with weights\n"
    assert checkpoints.steps() == [1, 2, 3, 4, 5]
    assert run(data, *arguments).stdout == "pruned: policy@1, policy@3; 3 versions left with weights\n"
    assert (checkpoints.steps(), checkpoints.all_steps()) == ([2, 4, 5], [1, 2, 3, 4, 5])
    assert [path.name for path in checkpoints.path(1).iterdir()] == ["pruned.json"]
    assert checkpoints.consumed_ids() == {f"{taken}{step}" for step in range(1, 6) for taken in ("t", "equal")}
    assert [line["pruned"] for line in json.loads(run(data, "--json").stdout)] == [True, False, True, False, False]
    with pytest.raises(TrainingError, match="exists already"):
        checkpoints.write(1, lambda directory: None, checkpoints.manifest(1))
    assert isinstance(run(data, "export", "policy@1", str(data.root / "x")).exception, TrainingError)


def test_a_version_that_answers_stays_though_the_gateway_says_nothing(data: DataDir) -> None:
    """As where its key is not known here."""
    with reserved_port() as port:
        record = ServingFile(f"http://127.0.0.1:{port}", "base", "policy", os.getpid(), "", version="policy@1")
        data.serving.write_bytes(msgspec.json.encode(record))
        assert run(data, "prune", "--keep-best", "0", "--keep-latest", "2").stdout.startswith(
            "pruned: policy@2, policy@3;"
        )
        assert [line["served"] for line in json.loads(run(data, "--json").stdout)] == [True, *[False] * 4]


def test_a_policy_that_was_never_trained_is_not_pruned_in_silence(data: DataDir) -> None:
    refused = run(data, "prune", "polcy").exception
    assert isinstance(refused, TrainingError)
    assert refused.message == f"polcy has no version in {data.root}."


def test_a_prune_that_was_killed_half_way_is_finished_by_the_next(data: DataDir) -> None:
    checkpoints = Checkpoints(data.policies, "policy")
    (checkpoints.path(1) / "manifest.json").rename(checkpoints.path(1) / "pruned.json")
    assert 1 not in checkpoints.steps()
    checkpoints.prune([])
    assert [path.name for path in checkpoints.path(1).iterdir()] == ["pruned.json"]


@pytest.mark.parametrize(
    ("keep", "served", "gone"),
    [
        (Keep(best=0, latest=0, every=0), (), []),
        (Keep(best=0, latest=1, every=0), (), [1, 2, 3, 4, 5, 6, 7, 8]),
        (Keep(best=1, latest=3, every=5), (), [1, 2, 4, 6, 7]),
        (Keep(best=2, latest=2, every=0), (1,), [2, 4, 5, 6, 7, 8]),
    ],
)
def test_what_is_kept(keep: Keep, served: tuple[int, ...], gone: list[int]) -> None:
    rewards = {3: 0.9, 7: 0.2, 1: 0.5, 9: 0.8}
    assert to_prune(range(1, 11), rewards, keep, served) == gone


def test_an_exported_adapter_is_one_that_peft_loads_and_the_merged_model_computes_the_same(
    data: DataDir, base_model: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    adapter, merged = data.root / "adapter", data.root / "merged"
    assert run(data, "export", "policy@5", str(adapter)).exception is None
    done = run(data, "export", "policy@5", str(merged), "--merged")
    assert done.exception is None
    assert re.search(r"Writing.* 100%.*\d+/\d+ \[.*(it/s|s/it)", done.stderr), "how far it is, and at what rate"
    assert done.stdout == f"policy@5 -> {merged}\n"
    assert sorted(path.name for path in adapter.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    ids = torch.arange(3, 40)[None]
    base = AutoModelForCausalLM.from_pretrained(base_model)
    with torch.no_grad():
        unadapted = base(ids).logits
        expected = PeftModel.from_pretrained(base, adapter)(ids).logits
        got = AutoModelForCausalLM.from_pretrained(merged)(ids).logits
    assert torch.allclose(got, expected, atol=1e-4)
    assert not torch.allclose(got, unadapted, atol=1e-2)
    assert AutoTokenizer.from_pretrained(merged).chat_template
    assert isinstance(run(data, "export", "policy@5", str(merged)).exception, TrainingError)


def test_a_fork_goes_on_from_its_version_and_from_what_that_consumed(data: DataDir) -> None:
    forked = run(data, "fork", "policy@3", "mine").stdout
    assert forked.startswith("policy@3 -> mine@3")
    assert "inherits: 3 trajectories trained on by grpo" in forked
    kept = run(data, "prune", "--keep-best", "1", "--keep-latest", "1", "--dry-run")
    assert kept.stdout.startswith("would be pruned: policy@1;"), "the base of a fork stays"
    mine = Checkpoints(data.policies, "mine")
    assert mine.steps() == [3]
    assert mine.consumed_ids() == {f"{taken}{step}" for step in range(1, 4) for taken in ("t", "equal")}
    assert (mine.path(3) / "trainer_state.pt").read_text() == "3"
    assert mine.manifest(3).version == "mine@3"
    assert isinstance(run(data, "fork", "policy@4", "mine").exception, TrainingError)


def test_what_a_version_was_trained_on_does_not_count_again_for_its_fork(data: DataDir) -> None:
    def counted() -> tuple[int, float]:
        lines = json.loads(run(data, "--json").stdout)
        return sum(line["trajectories"] for line in lines), sum(line["tokens_trained"] for line in lines)

    before = counted()
    assert min(before) > 0
    run(data, "fork", "policy@3", "mine")
    assert counted() == before
    mine = Checkpoints(data.policies, "mine").manifest(3)
    assert not mine.metrics
    with Store.open(data, create=True) as store:
        store.append([mine])
        _, rows = store.sql("SELECT version, trajectories FROM policy_steps WHERE policy = 'mine'")
    assert [tuple(row) for row in rows] == [("mine@3", 0)]


@pytest.fixture(scope="module")
def other_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same shape, so that its weights alone tell it apart."""
    return make_base_model(tmp_path_factory.mktemp("other"), seed=1)


def test_a_fork_for_another_base_model_is_refused_and_leaves_nothing(
    data: DataDir, base_model: Path, other_base: Path
) -> None:
    error = run(data, "fork", "policy@3", "mine", "--base-model", str(other_base)).exception
    assert isinstance(error, TrainingError)
    assert error.message == f"policy@3 is a LoRA on {base_model}, not on {other_base}."
    assert str(base_model) in str(error.hint)
    assert Checkpoints(data.policies, "mine").all_steps() == []
    assert run(data, "fork", "policy@3", "mine", "--base-model", str(base_model)).exit_code == 0


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_a_policy_is_not_trained_on_another_base_model(
    data: DataDir, base_model: Path, other_base: Path, method: str
) -> None:
    with Store.open(data, create=True) as store:
        store.append(recorded_group("a", (0.0, 1.0)))
    refused = run(data, "--method", method, "--base-model", str(other_base), command=train).exception
    assert isinstance(refused, TrainingError)
    assert refused.message == f"policy@5 is a LoRA on {base_model}, not on {other_base}."


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_other_weights_put_into_the_base_model_s_directory_are_noticed(
    base_model: Path, other_base: Path, tmp_path: Path, method: str
) -> None:
    """By whoever would lay the version's LoRA on them: it was trained on those that were there."""
    data, base = DataDir(tmp_path / "data"), tmp_path / "base"
    shutil.copytree(base_model, base)
    with Store.open(data, create=True) as store:
        store.append(recorded_group("a", (0.0, 1.0)))
    training = ["--base-model", str(base), "--method", method]
    bounds = ["--max-logprob-difference", "1e6"] if method == "grpo" else []
    made = run(data, *training, *bounds, command=train)
    assert made.exit_code == 0, made.output
    assert run(data, "fork", "policy@1", "first", "--base-model", str(base)).exit_code == 0
    shutil.copy(other_base / "model.safetensors", base / "model.safetensors")
    error = run(data, *training, command=train).exception
    assert isinstance(error, TrainingError)
    assert error.message == f"policy@1 is a LoRA on other weights than are in {base} now."
    for command in (("export", "policy@1", str(tmp_path / "merged"), "--merged"), ("fork", "policy@1", "second")):
        arguments = (*command, "--base-model", str(base)) if command[0] == "fork" else command
        refused = run(data, *arguments).exception
        assert isinstance(refused, TrainingError)
        assert refused.message == error.message
    assert isinstance(run(data, "fork", "first@1", "second", "--base-model", str(base)).exception, TrainingError)
    moved = run(data, "fork", "policy@1", "moved", "--base-model", str(base_model))
    assert moved.exit_code == 0, "the same weights in another place"


def test_what_base_model_a_version_was_made_for(base_model: Path, other_base: Path, tmp_path: Path) -> None:
    """A path may change; weights, and the name where the weights are gone, do not."""
    copy = tmp_path / "copy"
    shutil.copytree(base_model, copy)
    linked = tmp_path / "linked"
    linked.symlink_to(base_model)
    cached = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    assert is_base(str(base_model), str(base_model))
    assert is_base(str(base_model), str(copy))
    assert is_base(str(base_model), str(linked))
    assert not is_base(str(base_model), str(other_base))
    assert is_base("/gone/Qwen3-0.6B", str(cached))
    assert is_base(str(cached), "Qwen/Qwen3-0.6B")
    assert is_base(str(cached), "qwen3-0.6b")
    assert not is_base(str(cached), "Qwen/Qwen3-1.7B")
    assert not is_base("/gone/Qwen3-0.6B", str(base_model))
    assert is_base("", str(base_model)), "a version that does not say"


def test_status_tells_a_running_daemon_from_one_that_was_killed(data: DataDir) -> None:
    assert isinstance(run(data, command=status).exception, TrainingError)
    checkpoints = Checkpoints(data.policies, "policy")
    state = DaemonState(
        policy="policy",
        pid=os.getpid(),
        state="step",
        step=5,
        queue=Queue(2, 1, {"too stale": 3}),
        plan=StepPlan(6, (PlannedGroup("g", ("a", "b")),)),
        last={"reward_mean": 0.5, "step_s": 1.5},
        last_groups=(GroupReward("g", 2, 0.5, 1.0),),
        reason="the gateway does not answer",
    )
    with checkpoints.only_writer():
        write_state(checkpoints.directory, state)
        [shown] = json.loads(run(data, "--json", command=status).stdout)
        assert (shown["running"], shown["state"], shown["queue"]["ready"], shown["gateway"]) == (True, "step", 2, None)
        text = " ".join(run(data, command=status).stdout.split())
        assert f"process {os.getpid()}" in text
        assert "2 ready, 1 waiting" in text
        assert "reason the gateway does not answer" in text
    assert re.search("killed while in step, which began .* ago", " ".join(run(data, command=status).stdout.split()))
    assert json.loads(run(data, "--json", command=status).stdout)[0]["running"] is False
