"""What the daemon tells trackers: every step, its example and its adapter, and after a restart in the same run."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_site import Site
from mlflow_environment import ROOT, mlflow_holds, mlflow_python
from wandb_file import logged, when_written

from arttrace.records.reward import Reward
from trainer.step.example import COLUMNS
from trainer.step.reporters import open_reporters

LOGGED = {
    "reward_mean", "reward_spread", "advantage_mean", "tokens_captured", "tokens_trained", "kl", "staleness_mean",
    "logprob_difference_mean", "logprob_difference_max", "step_s", "publish_s", "reward_mean/planner",
}  # fmt: skip
"""Of what the documentation says that every step sends."""


def two_starts(site: Site, tracker: str) -> None:
    """Two steps, and after a restart two more."""
    for n in range(4):
        site.group(f"g{n}", 0.0, 1.0, at=n * 2000)
        for id, value in ((f"g{n}-0", 0.25), (f"g{n}-1", 0.75)):
            [planner] = site.store.trajectory(id).agents
            site.store.append([Reward(id=f"own-{id}", trajectory_id=id, value=value, agent_id=planner.id)])
    folder = site.checkpoints.directory
    for steps in (2, 4):
        if steps == 4 and (folder / "wandb").exists():
            (folder / "wandb").rename(folder / "before")  # W&B names folders by the second
        daemon = site.daemon(max_steps=steps)
        daemon._reporters = open_reporters([tracker], folder, "policy", {}, site.said.append)
        daemon.run()
    assert site.said == []
    assert daemon.state.reported == {tracker: 4}


@pytest.mark.usefixtures("offline_wandb")
def test_wandb_gets_every_step_of_two_starts_in_one_run(site: Site) -> None:
    two_starts(site, "wandb")
    folder = site.checkpoints.directory
    [first], [second] = (list((folder / name).glob("offline-run-*/*.wandb")) for name in ("before", "wandb"))
    assert first.name == second.name, "one run"
    steps_of = []
    for file in (first, second):
        shown, artifacts = when_written(file, 2, 4)
        steps_of.append(shown)
        for name in LOGGED:
            assert [*logged(file.read_bytes(), name)] == shown, name
        assert len(artifacts) == 4, "of each step its adapter and its table"
    assert steps_of == [[1, 2], [3, 4]]


def test_tensorboard_gets_every_step_of_two_starts_and_an_example_of_each(site: Site) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    two_starts(site, "tensorboard")
    shown: dict[str, list[int]] = {"reward_mean": [], "example": []}
    for file in sorted((site.checkpoints.directory / "tensorboard" / "policy").iterdir()):
        events = EventAccumulator(str(file))
        events.Reload()
        assert {*events.Tags()["scalars"]} >= LOGGED
        shown["reward_mean"] += [event.step for event in events.Scalars("reward_mean")]
        shown["example"] += [event.step for event in events.Tensors("example/text_summary")]
    assert {name: sorted(steps) for name, steps in shown.items()} == {name: [1, 2, 3, 4] for name in shown}


_TWO_STARTS = """
import sys
from pathlib import Path
from daemon_site import Site
from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.policies.checkpoints import Checkpoints
sys.path.insert(0, sys.argv[3])
from test_trackers import two_starts
data = DataDir(Path(sys.argv[2]))
with Store.open(data, create=True) as store, Checkpoints(data.policies, "policy").only_writer():
    two_starts(Site(data, store), sys.argv[1])
"""
"""In a process of its own: these trackers keep what they know in the process."""


def in_a_process(python: str, tracker: str, folder: Path, **variables: str) -> None:
    done = subprocess.run(
        [python, "-c", _TWO_STARTS, tracker, str(folder), str(Path(__file__).parent)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}", **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_trackio_gets_every_step_of_two_starts_in_one_run(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    in_a_process(sys.executable, "trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1")
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "arttrace.db")) as written:
        rows = written.execute("SELECT run_id, step, metrics FROM metrics ORDER BY id").fetchall()
        [versions] = written.execute("SELECT count(*) FROM artifact_versions").fetchone()
    assert len({run for run, *_ in rows}) == 1
    assert [step for _, step, _ in rows] == [1, 2, 3, 4]
    assert all({*LOGGED, "example"} <= json.loads(metrics).keys() for *_, metrics in rows)
    assert versions == 4


@pytest.mark.full
def test_mlflow_gets_every_step_of_two_starts_in_one_run(tmp_path: Path) -> None:
    python = mlflow_python(tmp_path)
    in_a_process(python, "mlflow", tmp_path)
    found = mlflow_holds(python, tmp_path / "policies" / "policy")
    assert found["run"] == ["policy", "FINISHED"]
    assert {name for name, shown in found["numbers"].items() if [step for step, _ in shown] == [1, 2, 3, 4]} >= LOGGED
    assert len(found["adapters"]) == 8, "two files of each"
    assert [table["columns"] for table in found["examples"]] == [list(COLUMNS)] * 4
