"""`arttrace train` with a real store and real checkpoints; the learner stands in, since its own tests hold it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_agent import Run, message, research_run

from arttrace.commands.shared.progress import Progress
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.errors import TrainingError
from arttrace.system.paths import DataDir
from trainer.commands.train.cli import command
from trainer.commands.train.orders import OrderedTrainer, TrainOrder
from trainer.commands.train.report import print_step, step_line
from trainer.gateway.status import ServingFile
from trainer.grpo import batch
from trainer.grpo.selection import Chosen
from trainer.grpo.shares import share_out
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample, StepMetrics
from trainer.policies.checkpoints import Checkpoints
from trainer.serving.client import GatewayClient


class StandInLearner:
    base_weights = ""

    def __init__(self, _: Path, config: LearnerConfig) -> None:
        self.config = config

    def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
        return StepMetrics(trajectories=len(samples))

    def save_adapter(self, directory: Path) -> None: ...

    def save_rest(self, directory: Path) -> None: ...

    def load(self, directory: Path) -> str:
        return ""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDir:
    monkeypatch.setattr("trainer.learner.packed.engine.PackedLearner", StandInLearner)
    monkeypatch.setattr("trainer.commands.train.report.read_model", lambda _: None)
    data = DataDir(tmp_path)
    fill(data, "s")
    return data


sampled = partial(research_run, policy="policy@0")


def fill(data: DataDir, *scenarios: str, rewards: tuple[float, ...] = (0.0, 1.0), policy: str = "policy@0") -> None:
    records: list[Record] = []
    for id, scenario, value in ((f"{s}-{n}", s, value) for s in scenarios for n, value in enumerate(rewards)):
        records += sampled(id, scenario=scenario, policy=policy)
        records.append(Reward(id=f"r-{id}", trajectory_id=id, value=value))
    with Store.open(data, create=True) as store:
        store.append(records)


def train(data: DataDir, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["--dir", str(data.root), "--base-model", str(data.root), "--json", *arguments])


def test_what_a_killed_step_consumed_is_not_trained_on_a_second_time(data: DataDir) -> None:
    consumed = (Consumed("s-0", "r"), Consumed("s-1", "r"))
    Checkpoints(data.policies, "policy").write(
        1, lambda directory: None, PolicyStep("policy", 1, "", consumed=consumed)
    )  # and killed before it was recorded in the store
    again = train(data)
    assert isinstance(again.exception, TrainingError)
    fill(data, "later")
    done = train(data)
    assert done.exception is None, done.output
    assert json.loads(done.stdout)["version"] == "policy@2"
    with Store.open(data) as store:
        trained = [one.trajectory_id for step in store.policy_steps("policy") for one in step.consumed]
    assert sorted(trained) == ["later-0", "later-1", "s-0", "s-1"]


def test_a_long_step_says_how_far_it_is(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(StandInLearner):
        progress: Any = None

        def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
            self.progress(4)(2)
            return super().step(samples)

    monkeypatch.setattr("trainer.learner.packed.engine.PackedLearner", Slow)
    monkeypatch.setattr("trainer.commands.train.sampled.steps.Progress", partial(Progress, every_s=0.0))
    assert "2 of 4 tokens of the step, " in train(data).stderr


@pytest.mark.parametrize("experts", [0, 8])
def test_what_is_not_replayed_of_a_mixture_of_experts_is_said_before_the_step(data: DataDir, experts: int) -> None:
    (data.root / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_experts": experts}))
    said = "note: 8 experts: which of them the engine chose is not recorded, the learner routes each token anew"
    done = train(data)
    assert done.exception is None, done.output
    assert (said in done.stderr.splitlines()) is (experts > 0)


@pytest.mark.parametrize(
    ("step", "remedy"),
    [(1, "fork it (`arttrace policies fork policy@1 NAME`)"), (0, "train another policy (--policy)")],
)
def test_that_training_does_not_go_on_from_the_version_rolled_back_to_is_said(
    data: DataDir, step: int, remedy: str
) -> None:
    checkpoints = Checkpoints(data.policies, "policy")
    for scenario in ("t", "u", "v"):
        fill(data, scenario)
        if scenario == "v":
            checkpoints.roll_back(step)
        done = train(data)
        note = (
            f"note: policy is rolled back to policy@{step}, but is trained from policy@2, and what is made is served: "
        )
        said = f"{note}to train from policy@{step}, {remedy}"
        assert (said in done.stderr.splitlines()) is (scenario == "v"), done.stderr
    assert checkpoints.served() == 3


def test_a_policy_is_not_published_under_the_name_of_another_that_is_served(data: DataDir) -> None:
    data.serving.write_bytes(
        msgspec.json.encode(ServingFile("http://127.0.0.1:9", str(data.root), "other", os.getpid(), ""))
    )
    refused = train(data, "--policy", "mine")
    assert isinstance(refused.exception, TrainingError)
    assert "'other'" in refused.exception.message
    assert Checkpoints(data.policies, "mine").latest() is None


@pytest.mark.parametrize("method", ["grpo", "sft", "as ordered"])
def test_connections_to_the_gateway_are_closed(data: DataDir, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[GatewayClient] = []
    make = GatewayClient.__init__

    def noted(client: GatewayClient, url: str) -> None:
        make(client, url)
        opened.append(client)

    monkeypatch.setattr(GatewayClient, "__init__", noted)
    data.serving.write_bytes(
        msgspec.json.encode(ServingFile("http://127.0.0.1:9", str(data.root), "policy", os.getpid(), ""))
    )
    if method == "as ordered":
        with Store.open(data) as store:
            trainer = OrderedTrainer(data, store, Checkpoints(data.policies, "policy"), data.root)
            error = trainer.fill(TrainOrder(1, {})).error
    else:
        error = str(train(data, "--method", method).exception)
    assert "does not answer" in error, "nobody serves there"
    assert [client._client.is_closed for client in opened] == [True] * len(opened) != []


def test_a_person_reads_in_a_dry_run_what_is_left_out_and_why(data: DataDir) -> None:
    fill(data, "equal", rewards=(0.5, 0.5))
    with Store.open(data) as store:
        store.append(sampled("alone-0", scenario="alone"))
        store.append([record for n in range(2) for record in sampled(f"bare-{n}", scenario="bare")])
    options = ["--dir", str(data.root), "--base-model", str(data.root), "--dry-run"]
    plan = json.loads(CliRunner().invoke(command, [*options, "--json"]).stdout)
    lines = CliRunner().invoke(command, options).stdout.splitlines()
    assert lines[:3] == [
        f"policy would be trained on {plan['trajectories']} trajectories in {plan['groups']} groups.",
        "  1 of the groups have equal rewards and teach nothing.",
        f"  {plan['tokens_trained']} of {plan['tokens_captured']} sampled tokens would be trained.",
    ]
    assert lines[3:] == [
        "  left out: 1 trajectory (alone in its group)",
        "  left out: 2 trajectories (no reward)",
    ]
    assert Checkpoints(data.policies, "policy").latest() is None


def test_what_a_step_leaves_out_is_said_before_the_model_is_loaded(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data, "equal", rewards=(0.5, 0.5))
    with Store.open(data) as store:
        store.append(sampled("alone-0", scenario="alone"))
        for n in range(2):
            cut = Run(f"cut-{n}", scenario="cut", policy="policy@0")
            for at, lost in enumerate((None, ["gen_ai.output.messages"])):
                cut.chat(f"m{at}", [message("user", "?")], message("assistant", str(n)), at=at, TRUNCATED=lost)
            store.append([*cut.end(), Reward(id=f"r-{cut.id}", trajectory_id=cut.id, value=float(n))])

    class Loading(StandInLearner):
        def __init__(self, base_model: Path, config: LearnerConfig) -> None:
            print("loading", file=sys.stderr)
            super().__init__(base_model, config)

    monkeypatch.setattr("trainer.learner.packed.engine.PackedLearner", Loading)
    plan = json.loads(train(data, "--dry-run").stdout)
    assert (plan["trajectories_left_out"], plan["calls_quarantined"]) == ({"alone in its group": 1}, {"truncated": 2})
    done = train(data)
    assert json.loads(done.stdout)["version"] == "policy@1"
    assert done.stderr.splitlines() == [
        "left out: 1 trajectory (alone in its group)",
        "quarantined: 2 calls (truncated)",
        f"loading {data.root}",
        "loading",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--min-reward 1", "--min-reward is an option of --method sft, and does nothing for grpo"),
        ("--max-length 99", "--max-length is an option of --method sft and dpo, and does nothing for grpo"),
        ("--again", "--again is an option of --method sft and dpo, and does nothing for grpo"),
        ("--method dpo --min-reward 1", "--min-reward is an option of --method sft, and does nothing for dpo"),
        ("--method sft --min-gap 0.5", "--min-gap is an option of --method dpo, and does nothing for sft"),
        ("--method sft --steps 2", "--steps is an option of --method grpo and distill, and does nothing for sft"),
        ("--method dpo --advantages std", "--advantages is an option of --method grpo, and does nothing for dpo"),
        ("--method sft --loss dapo", "--loss is an option of --method grpo and distill, and does nothing for sft"),
        (
            "--method dpo --kl-weight 0.1",
            "--kl-weight is an option of --method grpo and distill, and does nothing for dpo",
        ),
        ("--daemon --min-reward 1", "--min-reward is an option of --method sft, and does nothing for grpo"),
        ("--daemon --steps 2", "--max-steps"),
        ("--print-config --again", "--again is an option of --method sft and dpo, and does nothing for grpo"),
        ("--learning-rate -1", "learning_rate must be above 0, not -1.0"),
        ("--method sft --seed -1", "seed must be a number of 0 to 4294967295, not -1"),
        ("--method sft --lora-rank 0", "LoRA rank 0 is not supported"),
        ("--print-config --steps 2", "makes one version after the other: --max-steps ends it, not --steps"),
        ("--print-config --method sft", "--print-config prints the daemon's configuration, which trains by GRPO"),
        ("--print-config --dry-run", "and has no --dry-run"),
    ],
)
def test_an_option_that_the_method_does_not_read_is_refused(data: DataDir, arguments: str, said: str) -> None:
    refused = CliRunner().invoke(command, ["--dir", str(data.root), *arguments.split()])
    assert (refused.exit_code, said in refused.output) == (2, True), refused.output


def test_only_the_groups_that_are_taken_are_built(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(data) as store:
        store.append(sampled("alone-0", scenario="alone"))
        store.append([record for n in range(2) for record in sampled(f"bare-{n}", scenario="bare")])
        store.append(sampled("s-2", scenario="s"))  # which belongs to a group that is taken
    left_out = {"alone in its group": 1, "no reward": 3}
    assert json.loads(train(data, "--dry-run").stdout)["trajectories_left_out"] == left_out
    built: list[str] = []
    trajectories = Store.trajectories

    def watched(store: Store, **asked: Any) -> list[Trajectory]:
        found = trajectories(store, **asked)
        built.extend(one.id for one in found)
        return found

    monkeypatch.setattr(Store, "trajectories", watched)
    done = train(data)
    assert done.exception is None, done.output
    assert json.loads(done.stdout)["version"] == "policy@1"
    assert sorted(built) == ["s-0", "s-1", "s-2"]
    built.clear()
    refused = train(data)
    assert isinstance(refused.exception, TrainingError)
    assert "2 no reward, 2 alone in its group" in refused.exception.message
    assert built == []


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_sequences_of_a_run_are_made_once(data: DataDir, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(data, "equal", "same", rewards=(1.0, 1.0))
    fill(data, "t")
    made: Counter[str] = Counter()
    sequences = batch.sequences

    def counted(trajectory: Trajectory, **terms: Any) -> Any:
        made[trajectory.id] += 1
        return sequences(trajectory, **terms)

    monkeypatch.setattr(batch, "sequences", counted)
    done = train(data, "--steps", str(steps))
    assert done.exception is None, done.output
    assert made == Counter({f"{scenario}-{n}": 1 for scenario in ("equal", "same", "s", "t") for n in range(2)})


def test_steps_that_are_not_wanted_any_more_are_left(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(data, "t", "u")

    class Interrupted(StandInLearner):
        def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
            signal.raise_signal(signal.SIGINT)
            return super().step(samples)

    monkeypatch.setattr("trainer.learner.packed.engine.PackedLearner", Interrupted)
    stopped = train(data, "--steps", "3")
    assert stopped.exit_code == 130
    assert "stopped after 1 of 3 steps" in stopped.stderr
    assert Checkpoints(data.policies, "policy").steps() == [1]
    rest = train(data, "--steps", "1")
    assert rest.exit_code == 0, "it was the last step that was asked for"
    trained = [one.trajectory_id for one in Checkpoints(data.policies, "policy").manifest(2).consumed]
    assert sorted(trained) == ["t-0", "t-1", "u-0", "u-1"]


def test_equal_runs_are_trained_on_where_an_agent_of_theirs_was_better(data: DataDir) -> None:
    assert json.loads(train(data).stdout)["version"] == "policy@1"
    fill(data, "equal", rewards=(0.5, 0.5))
    assert json.loads(train(data).stdout).keys() == {"skipped"}
    with Store.open(data) as store:
        for run, value in zip(store.trajectories(groups=["equal"]), (0.2, 0.8), strict=True):
            agent = next(agent for agent in run.agents if agent.parent_id is not None)
            store.append([Reward(id=f"own-{run.id}", trajectory_id=run.id, value=value, agent_id=agent.id)])
    assert json.loads(train(data, "--dry-run").stdout)["groups_with_equal_rewards"] == 0
    assert json.loads(train(data).stdout)["version"] == "policy@2"


def test_equal_runs_are_trained_on_by_a_kl_term_alone(data: DataDir) -> None:
    assert json.loads(train(data).stdout)["version"] == "policy@1"
    fill(data, "equal", rewards=(0.5, 0.5))
    assert json.loads(train(data, "--kl-weight", "0.1").stdout)["version"] == "policy@2"


def test_a_later_share_that_teaches_is_reached(data: DataDir) -> None:
    fill(data, "a", rewards=(0.5, 0.5))
    first, second = map(json.loads, train(data, "--steps", "2").stdout.splitlines())
    assert (first.keys(), second["version"]) == ({"skipped"}, "policy@1")


def test_runs_of_a_version_from_elsewhere_are_left_out_with_what_to_do_about_them(data: DataDir) -> None:
    fill(data, "copied", policy="policy@9")
    line = "left out: 2 trajectories (sampled by a version not made here): Train with the --dir in which "
    assert line in train(data).stderr
    assert line in CliRunner().invoke(command, ["--dir", str(data.root), "--dry-run"]).stdout
    assert sorted(one.trajectory_id for one in Checkpoints(data.policies, "policy").manifest(1).consumed) == [
        "s-0",
        "s-1",
    ]


def test_steps_end_before_the_runs_of_a_later_one_would_be_too_stale(data: DataDir) -> None:
    fill(data, "t", "u")
    planned = train(data, "--steps", "3", "--max-staleness", "1", "--dry-run")
    assert json.loads(planned.stdout)["steps"] == 2
    assert "2 steps instead of 3" in planned.stderr
    done = train(data, "--steps", "3", "--max-staleness", "1")
    assert done.exception is None
    assert done.stderr.startswith("2 steps instead of 3")
    assert [json.loads(line)["version"] for line in done.stdout.splitlines()] == ["policy@1", "policy@2"]
    trained = [
        one.trajectory_id for step in (1, 2) for one in Checkpoints(data.policies, "policy").manifest(step).consumed
    ]
    assert sorted(trained) == ["s-0", "s-1", "t-0", "t-1", "u-0", "u-1"], "none fell out"
    fill(data, "v", "w", policy="policy@1")
    one = train(data, "--steps", "2", "--max-staleness", "1")
    assert "\n1 step instead of 2" in one.stderr, "they were sampled by the version before"


def groups_of(staleness: Sequence[int]) -> list[Chosen]:
    return [Chosen(f"g{n:02}", (), (), (), each) for n, each in enumerate(staleness)]


def test_one_old_group_goes_first_and_leaves_the_others_their_steps() -> None:
    groups = groups_of([0] * 20 + [4] + [0] * 19)
    shares, why = share_out(groups, 5, max_staleness=4)
    assert [len(share) for share in shares] == [8] * 5
    assert groups[20] in shares[0]
    assert why == ""
    shares, why = share_out(groups, 10, max_staleness=4)
    assert [len(share) for share in shares] == [8] * 5
    assert why.startswith("5 steps instead of 10")


@settings(max_examples=60, deadline=None)
@given(staleness=st.lists(st.integers(0, 4), max_size=24), steps=st.integers(1, 12), within=st.none() | st.just(4))
def test_shares_are_even_and_in_time(staleness: list[int], steps: int, within: int | None) -> None:
    groups = groups_of(staleness)
    shares, why = share_out(groups, steps, within)
    assert sorted((group for share in shares for group in share), key=lambda group: group.key) == groups
    sizes = [len(share) for share in shares]
    assert not groups or max(sizes) - min(sizes) <= 1
    assert bool(why) == (len(shares) < min(steps, len(groups)))
    if within is None:
        assert why == ""
    else:
        assert all(group.staleness + n <= within for n, share in enumerate(shares) for group in share)


def test_the_line_of_a_step_says_that_the_floor_held(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"groups": 4.0, "tokens_trained": 1280.0, "reward_mean": 0.5, "reward_spread": 0.26, "loss": 0.0014}
    metrics |= {"grad_norm": 0.005, "groups_floored": 1.0}
    consumed = tuple(Consumed(f"t{n}", "r") for n in range(32))
    done = PolicyStep(policy="policy", step=4, adapter="policy@4", consumed=consumed, metrics=metrics)
    print_step(done, as_json=False)
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == [
        "policy@4: 32 trajectories in 4 groups, 1280 tokens trained, reward 0.500 (spread 0.260), loss 0.0014, "
        "gradient norm 0.005",
        "  1 of 4 groups have rewards so close that they were divided by the floor, and count for less: --std-floor",
    ]
    quiet = msgspec.structs.replace(done, metrics=metrics | {"groups_floored": 0.0})
    print_step(quiet, as_json=False)
    assert "floor" not in capsys.readouterr().out


def test_the_line_of_a_step_counts_the_runs_of_its_groups_and_none_that_were_set_aside_before() -> None:
    metrics = {"groups": 2.0, "trajectories": 8.0, "tokens_trained": 80.0, "reward_mean": 0.5, "reward_spread": 0.2}
    metrics |= {"loss": 0.1, "grad_norm": 0.5}
    consumed = tuple(Consumed(f"t{n}", "r", set_aside=n >= 8) for n in range(8 + 32))
    done = PolicyStep(policy="policy", step=4, adapter="policy@4", consumed=consumed, metrics=metrics)
    unnumbered = msgspec.structs.replace(done, metrics={k: v for k, v in metrics.items() if k != "trajectories"})
    for one in (done, unnumbered):
        assert step_line(one).startswith("policy@4: 8 trajectories in 2 groups, 80 tokens trained")


TERMINATED_WHILE_LOADING = """
import os, signal, sys
from trainer.commands.train import cli
def loading(*given, **options):
    os.kill(os.getpid(), int(os.environ["SENT"]))
    sys.exit("the signal did nothing")
cli.train_grpo = cli.run_offline = loading
from arttrace.commands import main
main()
"""


@pytest.mark.parametrize(("method", "sent"), [("grpo", "SIGTERM"), ("sft", "SIGTERM"), ("dpo", "SIGHUP")])
def test_a_termination_before_the_first_step_closes_the_store(
    method: str, sent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does: nothing is left for the next start to repair."""
    data = DataDir(tmp_path / "data")
    fill(data, "s")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    arguments = ["train", "--method", method, "--base-model", str(model), "--dir", str(data.root)]
    command = [sys.executable, "-c", TERMINATED_WHILE_LOADING, *arguments]
    monkeypatch.setenv("SENT", str(int(signal.Signals[sent])))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (ran.returncode, ran.stderr.strip().splitlines()[-1]) == (130, "interrupted"), ran.stderr
    assert sorted(one.name for one in data.root.iterdir() if one.name.startswith(("owner", "store"))) == [
        "store.duckdb",
        "store.duckdb.lock",
    ]
