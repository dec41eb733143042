"""`arttrace demo` as a user runs it: interrupted or killed, started again, and better at its end.

Everything is real but the model's size, the teacher and the judge, which are the demo's named stand-ins.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pytest

from arttrace.records.policy import PolicyStep
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import Store
from arttrace.system.evaluations import read_evaluations
from arttrace.system.paths import DataDir
from trainer.demo import recipe
from trainer.demo.pipeline import is_sure
from trainer.demo.state import DemoState
from trainer.policies.checkpoints import Checkpoints

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

DEMO = (sys.executable, "-u", "-c", "from arttrace.commands import main; main()", "demo")
KILLED = {
    "demonstrations": signal.SIGKILL,
    "serving comes up": signal.SIGKILL,
    "first rollouts": signal.SIGKILL,
    "steps": signal.SIGINT,
}
INTERRUPTED = {"demonstrations": signal.SIGINT}


def state(data: DataDir) -> DemoState:

    return msgspec.json.decode((data.root / "demo.json").read_bytes(), type=DemoState)


def of_directory(data: DataDir) -> list[psutil.Process]:
    """Every living process that works for the demo in this directory."""
    found = []
    for process in psutil.process_iter():
        try:
            env, line = process.environ(), process.cmdline()
        except psutil.Error:
            continue
        if process.status() != psutil.STATUS_ZOMBIE and (
            str(data.root) in line or env.get("ARTTRACE_DIR") == str(data.root)
        ):
            found.append(process)
    return found


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], within_s: float = 900.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the demo did not get there in time"
        time.sleep(0.05)


def gone(data: DataDir, within_s: float = 120.0) -> bool:
    deadline = time.monotonic() + within_s
    while of_directory(data):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def assert_it_learned(data: DataDir) -> list[PolicyStep]:
    success = state(data).held_out
    evaluated = read_evaluations(data, "policy")
    with Store.open(data) as store:
        steps = store.policy_steps("policy")
        rewards: dict[str, list[float]] = {}
        for run in store.summaries():
            if "held-out" in run.tags:
                _, version, mode, _ = str(run.group).split("/", 3)
                rewards.setdefault(f"{version} {mode}", []).append(trajectory_reward(run))
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    assert len(steps) == recipe.STEPS or (is_sure(steps) and not is_sure(steps[:-1])), len(steps)
    assert {label: (sum(each), len(each)) for label, each in rewards.items()} == {
        label: (of.right, of.asked) for label, of in success.items()
    }
    assert evaluated[0]["held-out/greedy"] == success["policy@0 greedy"].rate
    assert evaluated[len(steps)]["held-out/sampled"] == success[f"policy@{len(steps)} sampled"].rate
    assert 0.2 <= success["policy@0 sampled"].rate <= 0.6
    assert 0.2 <= success["policy@0 greedy"].rate <= 0.6
    assert success[f"policy@{len(steps)} sampled"].rate >= 0.9
    assert success[f"policy@{len(steps)} greedy"].rate >= max(0.9, success["policy@0 greedy"].rate + 0.2)
    return steps


@pytest.mark.full
@pytest.mark.parametrize("seed", [2, 3])
def test_the_demo_learns_from_further_seeds(seed: int, demo_cache: Path, tmp_path: Path) -> None:
    data = DataDir(tmp_path / "run")
    printed = subprocess.run([*DEMO, "--seed", str(seed), "--dir", str(data.root)], capture_output=True, text=True)
    print(printed.stdout)
    assert printed.returncode == 0, printed.stdout + printed.stderr
    assert_it_learned(data)


@pytest.mark.full
def test_killed_again_and_again_it_finishes(demo_cache: Path, tmp_path: Path) -> None:
    data, dice = DataDir(tmp_path / "run"), random.Random(7)
    kills = 0
    while True:
        demo = subprocess.Popen([*DEMO, "--steps", "6", "--dir", str(data.root)], stdout=subprocess.PIPE, text=True)
        try:
            # Longer and longer, so that it gets through its longest phase in the end.
            printed, _ = demo.communicate(timeout=dice.uniform(10, 60) + 4 * kills)
        except subprocess.TimeoutExpired:
            demo.kill()
            demo.communicate()
            kills += 1
            assert gone(data)
            continue
        break
    print(f"{kills} kills\n{printed}")
    assert demo.returncode == 0
    assert kills > 2
    with Store.open(data) as store:
        steps = store.policy_steps("policy")
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    times = Counter(run.trajectory_id for step in steps for run in step.consumed)
    assert set(times.values()) == {1}


@pytest.mark.parametrize(
    "ended_in", [INTERRUPTED, pytest.param(KILLED, marks=pytest.mark.full)], ids=["interrupted", "killed"]
)
def test_the_demo_learns_though_it_is_ended_in_its_phases(
    ended_in: dict[str, signal.Signals], building_demo: ExitStack, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = DataDir(tmp_path_factory.mktemp("demo") / "run")
    checkpoints = Checkpoints(data.policies, "policy")
    command = [*DEMO, "--seed", "1", "--dir", str(data.root)]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    built = recipe.base_model_path(1)
    phases: dict[str, Callable[[], bool]] = {
        "demonstrations": lambda: any(data.spool.glob("*")),
        "serving comes up": lambda: (data.root / "logs" / "vllm.log").exists(),
        "first rollouts": lambda: len(state(data).held_out) == 2,
        "steps": lambda: (checkpoints.latest() or 0) >= 3,
    }
    for name, how in ended_in.items():
        if name == "demonstrations" and built.exists():
            continue
        demo = start()
        if name != "demonstrations":
            wait_for(built.exists, demo)
            building_demo.close()
        wait_for(phases[name], demo)
        demo.send_signal(how)
        printed, _ = demo.communicate(timeout=300)
        assert demo.returncode == (130 if how is signal.SIGINT else -how), f"{name}: {printed}"
        assert how is signal.SIGKILL or "Run the same command to continue" in printed, printed
        assert gone(data), f"{name}: {[p.cmdline() for p in of_directory(data)]}"

    demo = start()
    wait_for(built.exists, demo)
    building_demo.close()
    printed, _ = demo.communicate(timeout=2400)
    print(printed)
    assert demo.returncode == 0, printed
    assert gone(data)

    steps = assert_it_learned(data)
    assert (data.root / "report.md").read_text().count("policy@") >= 2

    with Store.open(data) as store:
        times = Counter(run.trajectory_id for step in steps for run in step.consumed)
        assert set(times.values()) == {1}
        run = store.trajectory(steps[-1].consumed[0].trajectory_id)
    assert [agent.name for agent in run.agents] == ["answer", "ask_checker", "ask_checker"]
    assert {agent.parent_id for agent in run.agents[1:]} == {run.agents[0].id}
    assert {reward.source for reward in run.rewards} == {"judge"}

    shown = subprocess.run(
        [*DEMO[:-1], "ls", "--json", "--limit", "5", "--dir", str(data.root)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(shown.stdout)) == 5
    assert Path(steps[0].base_model) == built
