"""`arttrace score --reward` on a real store: each run once per version of the function, nothing lost to an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from simulated_agent import Run, message

from arttrace.commands.scoring.score import command
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.rewards import trajectory_reward
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

EXACT = """
calls = []

def exact(run):
    print("looking at", run.id)
    calls.append(run.id)
    return float("6" in run.nodes[-1].message.text)
"""


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    """Three complete runs, the last rewarded in code with 0.25, and one that is still going."""
    data = DataDir(tmp_path / "data")
    records: list[Record] = [Reward(id="own", trajectory_id="run-2", value=0.25)]
    for n, answer in enumerate(("6", "9", "6")):
        run = Run(f"run-{n}", scenario="pears")
        run.chat("m", [message("user", "?")], message("assistant", answer), at=n)
        records += run.end()
    half = Run("half", scenario="pears")
    half.chat("m", [message("user", "?")], message("assistant", "6"), at=9)
    records += half.end()[:1]
    with Store.open(data, create=True) as store:
        store.append(records)
    return data


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "rewards.py"
    path.write_text(EXACT)
    return path


def score(data: DataDir, rewards: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["--dir", str(data.root), "--reward", f"{rewards}:exact", *arguments])


def now(result: Result) -> tuple[int, int]:
    assert result.exception is None, result.output
    document = json.loads(result.stdout)
    return document["rewarded_now"], document["rewarded_before"]


def given(data: DataDir) -> dict[str, float | None]:
    with Store.open(data) as store:
        return {run.id: trajectory_reward(run) for run in store.trajectories() if not run.incomplete}


def test_each_run_is_rewarded_once_per_version_of_the_function(data: DataDir, rewards: Path) -> None:
    planned = score(data, rewards, "--dry-run")
    assert planned.stdout.startswith("3 runs would be rewarded by rewards.py:exact (version ")
    assert given(data) == {"run-0": None, "run-1": None, "run-2": 0.25}
    first = score(data, rewards)
    assert first.stdout.startswith("3 runs rewarded by rewards.py:exact (version ")
    assert "mean 0.667, 0.00 to 1.00; 0 before; 1 incomplete run left out." in first.stdout
    assert "3 of 3 runs" in first.stderr
    assert "looking at run-0" in first.stderr, "what it prints is not in the way of ours"
    assert given(data) == {"run-0": 1.0, "run-1": 0.0, "run-2": 1.25}
    assert now(score(data, rewards, "--json")) == (0, 3)

    rewards.write_text(EXACT.replace("return float(", "return 2 * float("))
    assert now(score(data, rewards, "--json")) == (3, 0)
    assert given(data) == {"run-0": 2.0, "run-1": 0.0, "run-2": 2.25}, "the later version's takes the place"
    assert now(score(data, rewards, "--json", "--reward-version", "2")) == (3, 0)
    rewards.write_text(EXACT)
    assert now(score(data, rewards, "--json", "--reward-version", "2")) == (0, 3), "the version given is what counts"

    with Store.open(data) as store:
        late = Run("run-3", scenario="plums")
        late.chat("m", [message("user", "?")], message("assistant", "6"), at=1)
        store.append(late.end())
    assert now(score(data, rewards, "--json", "--reward-version", "2", "--group", "plums")) == (1, 0)


def test_a_version_that_gives_none_takes_the_earlier_versions_reward_back(data: DataDir, rewards: Path) -> None:
    assert now(score(data, rewards, "--json")) == (3, 0)
    rewards.write_text(EXACT.replace("return float(", 'return None if run.id != "run-1" else float('))
    later = score(data, rewards)
    assert later.exception is None
    assert "; 0 before; 2 given none, and the earlier version's taken back from 2; 1 incomplete" in later.stdout
    assert given(data) == {"run-0": None, "run-1": 0.0, "run-2": 0.25}
    rewards.write_text(EXACT)
    assert now(score(data, rewards, "--json")) == (3, 0)
    assert given(data) == {"run-0": 1.0, "run-1": 0.0, "run-2": 1.25}


@pytest.mark.parametrize("first", ["file", "module"])
def test_a_function_rewards_once_however_it_is_named(
    data: DataDir, rewards: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.syspath_prepend(str(rewards.parent.parent))
    names = {"file": f"{rewards}:exact", "module": f"{rewards.parent.name}.rewards:exact"}
    second = "module" if first == "file" else "file"

    def scored(spelling: str) -> tuple[int, int]:
        return now(CliRunner().invoke(command, ["--dir", str(data.root), "--reward", names[spelling], "--json"]))

    assert (scored(first), scored(second), scored(first)) == ((3, 0), (0, 3), (0, 3))
    rewards.write_text(EXACT.replace('"6"', '"9" '))  # of another size: within a second Python takes it for unchanged
    for name in ("rewards", f"{rewards.parent.name}.rewards"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert scored(second) == (3, 0)
    assert given(data) == {"run-0": 0.0, "run-1": 1.0, "run-2": 0.25}


def test_functions_of_two_modules_reward_beside_each_other(
    data: DataDir, rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(rewards.parent.parent))
    monkeypatch.syspath_prepend(str(rewards.parent))
    for module in ("rewards", f"{rewards.parent.name}.rewards"):
        outcome = CliRunner().invoke(command, ["--dir", str(data.root), "--reward", f"{module}:exact", "--json"])
        assert now(outcome) == (3, 0)
        monkeypatch.delitem(sys.modules, module)
    assert given(data) == {"run-0": 2.0, "run-1": 0.0, "run-2": 2.25}


def test_a_run_that_cannot_be_rewarded_is_reported_and_the_others_are_stored(data: DataDir, rewards: Path) -> None:
    rewards.write_text(
        "def exact(run):\n    return {'run-0': None, 'run-1': 1.0, 'run-2': float('nan')}[run.id]\n", encoding="utf-8"
    )
    failed = score(data, rewards)
    assert isinstance(failed.exception, ArttraceError)
    assert "1 of 3 runs could not be rewarded; ValueError: nan" in failed.exception.message
    assert "1 given none" in failed.stdout
    assert given(data) == {"run-0": None, "run-1": 1.0, "run-2": 0.25}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def other(run): ...\n", "has no attribute 'exact'"),
        ("import nowhere_at_all\n", "No module named"),
        ("async def exact(run): ...\n", "coroutine function"),
        ("def exact(completions, **kwargs): ...\n", "takes completions, as TRL's reward functions do"),
        ("def exact(run, answer): ...\n", "cannot be called with one argument (missing a required argument: 'answer')"),
        ("exact = max\n", "--reward-version"),
        ("import sys\nsys.exit(0)\n", "cannot be loaded: SystemExit: 0"),
    ],
)
def test_a_function_that_cannot_be_used_is_named(data: DataDir, rewards: Path, source: str, said: str) -> None:
    rewards.write_text(source)
    refused = score(data, rewards)
    assert isinstance(refused.exception, ArttraceError)
    assert said in str(refused.exception)


def test_either_a_judge_or_a_function(data: DataDir, rewards: Path) -> None:
    assert score(data, rewards, "--judge", "openai/o3").exit_code == 2
    assert CliRunner().invoke(command, ["--dir", str(data.root)]).exit_code == 2


SILENT = "class Silent(Exception):\n    def __str__(self):\n        raise RuntimeError\n"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("Silent", "Silent: <Silent>"),
        ("SystemExit(0)", "SystemExit: 0"),
        ("ValueError(os.fsdecode(bytes([255])))", "ValueError: \ufffd"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_error_without_a_readable_text_is_one_of_its_run(
    data: DataDir, rewards: Path, raised: str, said: str, options: tuple[str, ...]
) -> None:
    rewards.write_text(
        f"import os\n{SILENT}def exact(run):\n    if run.id == 'run-1':\n        raise {raised}\n    return 1.0\n"
    )
    done = score(data, rewards, *options)
    assert isinstance(done.exception, ArttraceError), done.exception
    assert f"1 of 3 runs could not be rewarded; {said}" in done.exception.message
    if options:
        assert json.loads(done.stdout)["failed"] == [{"trajectory_id": "run-1", "error": said}]
    with Store.open(data) as store:
        assert [trajectory_reward(store.trajectory(f"run-{n}")) for n in (0, 2)] == [1.0, 1.25]


def test_a_reward_function_that_raises_such_an_error_as_it_is_loaded_is_named(data: DataDir, rewards: Path) -> None:
    rewards.write_text(f"{SILENT}raise Silent\n")
    done = score(data, rewards)
    assert isinstance(done.exception, ArttraceError), done.exception
    assert "cannot be loaded: Silent: <Silent>" in done.exception.message
