"""Training stopped on its way, with the real command, learner and store: the curve is that of an undisturbed one.

The daemon is killed (SIGKILL) in every state, with a judge over real HTTP; Ctrl-C finishes the step or drops it, by one
or two presses, with and without --daemon.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import recorded_group, recorded_groups
from stopped_training import INTERRUPTED, Start, killed_at, run
from tiny_model import make_base_model

from arttrace.records.reward import Reward
from arttrace.rewards.judge_prompt import parse_prompt
from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.daemon.state import read_state
from trainer.policies.checkpoints import Checkpoints

pytest.importorskip("torch")
pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="no fork on Windows"), pytest.mark.timeout(3600)]

KILLS = ["starting:1", "wait:1", "score:2", "batch:2", "step:3", "half:3", "checkpoint:4", "publish:4"]
KILLS += ["handed:5", "record:5"]
STEPS, GROUPS_PER_STEP = 5, 2
_ITS_OWN = ("_s", "tokens_per_second")  # seconds differ, and so do the judge's when a kill lost a judgement


def learned(checkpoints: Checkpoints) -> list[dict[str, float]]:
    """The curve: every number of every version that is no time."""
    return [
        {name: value for name, value in checkpoints.manifest(step).metrics.items() if not name.endswith(_ITS_OWN)}
        for step in checkpoints.steps()
    ]


def assert_as_undisturbed(undisturbed: Checkpoints, ours: Checkpoints, steps: int, ids: list[str]) -> None:
    """The same versions of the same weights, and each of the runs was trained on once."""
    assert ours.steps() == list(range(1, steps + 1))
    assert learned(ours) == learned(undisturbed)
    assert len({numbers["loss"] for numbers in learned(ours)}) == steps
    for step in ours.steps():
        mine, theirs = (one.path(step) / "adapter_model.safetensors" for one in (ours, undisturbed))
        assert mine.read_bytes() == theirs.read_bytes(), f"the adapter of version {step}"
    assert not [path for path in ours.directory.iterdir() if path.name.startswith(".policy@")]
    consumed = [one.trajectory_id for step in ours.steps() for one in ours.manifest(step).consumed]
    assert sorted(consumed) == sorted(ids)


def scores(request: dict[str, Any]) -> list[dict[str, Any]]:
    """A stand-in judge's: arbitrary, but the same for the same run whatever its place."""
    found = []
    for id, shown in parse_prompt(request["messages"][1]["content"]).items():
        digest = hashlib.sha256(str(shown["result"]).encode()).digest()
        found.append({"trajectory_id": id, "explanation": "", "score": digest[0] / 255})
    return found


@pytest.mark.full  # tests/e2e/test_daemon.py kills it in every state but "score", beside a real vLLM
def test_the_curve_with_a_kill_in_every_state_is_the_curve_without(
    tmp_path: Path, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(judge_server), "scores", staticmethod(scores))
    records = recorded_groups(STEPS * GROUPS_PER_STEP, size=3)
    for name in ("undisturbed", "killed"):
        with Store.open(DataDir(tmp_path / name), create=True) as store:
            store.append([record for record in records if not isinstance(record, Reward)])
    base_model = make_base_model(tmp_path / "base")
    config = tmp_path / "config.toml"
    config.write_text(
        f"""base_model = {str(base_model)!r}
        min_groups = {GROUPS_PER_STEP}
        group_size = 3
        max_steps = {STEPS}
        poll = 0.05
        judge = "openai/stand-in"
        judge_base_url = "{judge_server.url}"
        [learner]
        learning_rate = 0.01
        lora_rank = 8
        kl_weight = 0.1
        max_logprob_difference = 1000.0
        """
    )
    arguments = ("--daemon", "--config", str(config), "--json", "--dir")
    in_peace, disturbed = (*arguments, str(tmp_path / "undisturbed")), (*arguments, str(tmp_path / "killed"))
    run([Start(in_peace), *(killed_at(stop, disturbed) for stop in KILLS), Start(disturbed)], timeout=800, judge=True)

    undisturbed, ours = (Checkpoints(DataDir(tmp_path / name).policies, "policy") for name in ("undisturbed", "killed"))
    ids = [record.trajectory_id for record in records if isinstance(record, Reward)]
    assert_as_undisturbed(undisturbed, ours, STEPS, ids)
    with Store.open(DataDir(tmp_path / "killed")) as store:
        assert [step.step for step in store.policy_steps("policy")] == ours.steps()
        assert store.trajectories(unconsumed_by="policy") == []
    state = read_state(ours.directory)
    assert state is not None
    assert (state.state, state.step, state.plan, state.set_aside) == ("stopped", STEPS, None, ())


def test_ctrl_c_finishes_the_step_and_a_second_one_drops_it(tmp_path: Path) -> None:
    values = itertools.cycle([0.1, 0.9, 0.4, 0.7, 0.2])
    records = [
        record
        for n in range(3 * GROUPS_PER_STEP)
        for record in recorded_group(f"g{n}", [next(values), next(values)], at=n * 2000)
    ]
    base_model = make_base_model(tmp_path / "base")
    common = ["--base-model", str(base_model), "--lora-rank", "8", "--learning-rate", "0.01"]
    common += ["--max-logprob-difference", "1e6", "--json", "--dir"]
    wanted = ["--daemon", "--min-groups", str(GROUPS_PER_STEP), "--group-size", "2", "--poll", "0.05"]

    def start(name: str, made: int, stop: str | None = None, presses: int = 0, exit: int = 0) -> Start:
        """As a person would go on: the daemon to version 3, the other by as many steps as are still missing."""
        steps = [*wanted, "--max-steps", "3"] if "daemon" in name else ["--steps", str(3 - made)]
        return Start((*common, str(tmp_path / name), *steps), stop, presses, exit)

    def starts(name: str, once: int) -> list[Start]:
        return [
            start(f"{name}-undisturbed", 0),
            start(name, 0, "optimizer:1", presses=2, exit=INTERRUPTED),
            start(name, 0, "optimizer:1", presses=1, exit=once),
            start(name, 1, "half:2", presses=2, exit=INTERRUPTED),
            start(name, 1, "half:2", presses=1, exit=once),
            start(name, 2, "optimizer:3", presses=1),
        ]

    for name in ("daemon", "steps"):
        for folder in (name, f"{name}-undisturbed"):
            with Store.open(DataDir(tmp_path / folder), create=True) as store:
                store.append(records)
    done = run([*starts("daemon", 0), *starts("steps", INTERRUPTED)], timeout=2400)  # which did not make all its steps
    assert "Traceback" not in done.stderr
    assert done.stderr.count("once more drops the step") == 10
    assert done.stderr.count("interrupted") == 4
    heard = [json.loads(line)["version"] for line in done.stdout.splitlines()]
    assert heard == ["policy@1", "policy@2", "policy@3"] * 4
    assert not re.search(r"policy@\d: \d+ trajectories", done.stderr), "standard output has it"
    logged = (tmp_path / "daemon" / "logs" / "daemon.log").read_text()
    assert re.findall(r"INFO    (policy@\d): \d+ trajectories in \d+ groups, ", logged) == heard[:3]
    ids = [one.trajectory_id for one in records if isinstance(one, Reward)]
    for name in ("daemon", "steps"):
        undisturbed, ours = (
            Checkpoints(DataDir(tmp_path / folder).policies, "policy") for folder in (f"{name}-undisturbed", name)
        )
        assert_as_undisturbed(undisturbed, ours, 3, ids)
        with Store.open(DataDir(tmp_path / name)) as store:
            assert [step.step for step in store.policy_steps("policy")] == [1, 2, 3]


def test_a_step_whose_start_was_killed_before_its_report_is_reported_once_by_the_next(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append(recorded_group("first", [0.0, 1.0]))
    base_model = make_base_model(tmp_path / "base")
    common = ["--base-model", str(base_model), "--lora-rank", "8", "--dir", str(data.root), "--json"]
    common += ["--max-logprob-difference", "1e6"]
    reported = [*common, "--report-to", "tensorboard"]
    nothing_left = Start(tuple(reported), exit=1)

    def steps() -> list[int]:
        events = EventAccumulator(str(data.policies / "policy" / "tensorboard" / "policy"))
        events.Reload()
        assert len(events.Tensors("example/text_summary")) == len(events.Scalars("step_s"))
        return [event.step for event in events.Scalars("step_s")]

    def three_more() -> None:
        assert steps() == [1], "with the seconds, which the store has and the manifest has not"
        assert not [path for path in data.policies.joinpath("policy").iterdir() if path.name.startswith(".")]
        with Store.open(data) as store:
            for n, key in enumerate(("second", "third", "fourth"), start=1):
                store.append(recorded_group(key, [0.0, 1.0], at=n * 2000))

    def a_fifth() -> None:
        assert steps() == [1, 2, 3]
        with Store.open(data) as store:
            store.append(recorded_group("fifth", [0.0, 1.0], at=9000))

    one_step = ["--min-groups", "1", "--group-size", "2", "--poll", "0.05", "--max-steps", "4"]
    started = [
        *(killed_at("report:1", reported), nothing_left, nothing_left, three_more),
        *(killed_at("report:2", [*reported, "--steps", "3"]), Start(tuple(reported)), a_fifth),
        Start(("--daemon", *one_step, *reported)),
    ]
    run(started, timeout=1200)
    assert steps() == [1, 2, 3, 4], "the daemon knows what the others have reported"
