"""Where a step's numbers go: the real W&B and trackio (offline) and the real TensorBoard, read back from what they
wrote."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from mlflow_environment import mlflow_holds, mlflow_python
from recorded_runs import recorded_group
from simulated_agent import Run, message
from wandb_file import logged, when_written

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.errors import TrainingError
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories
from trainer.output.log import Problem
from trainer.policies.checkpoints import Checkpoints
from trainer.step.example import COLUMNS, ExampleTable, example, example_of
from trainer.step.reporters import Reporters, open_reporters
from trainer.step.trackers import run_id


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    found = Checkpoints(tmp_path, "policy")

    def save(step: int, directory: Path) -> None:
        (directory / "adapter_config.json").write_text("{}")
        (directory / "adapter_model.safetensors").write_bytes(b"weights %d" % step)

    for done in made(3):
        found.write(done.step, partial(save, done.step), done)
    return found


def made(count: int) -> list[PolicyStep]:
    metrics = {"loss": 0.5, "reward_mean/help er_": 0.25}
    runs = tuple(Consumed(f"g-{number}", "r") for number in range(2))
    return [
        PolicyStep("policy", n, "", runs, metrics={**metrics, "reward_mean": float(n)}, time_ns=n * 10**9)
        for n in range(1, count + 1)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """The runs that the steps were trained on."""
    with Store.open(DataDir(tmp_path / "data"), create=True) as opened:
        opened.append(recorded_group("g", [0.0, 1.0]))
        yield opened


def heard(
    reporters: Reporters, checkpoints: Checkpoints, known: dict[str, int] | None = None, store: Store | None = None
) -> dict[str, int]:
    try:
        return reporters.catch_up(made(3), known or {}, checkpoints, store)
    finally:
        reporters.close()


def test_an_example_is_a_run_of_the_step_as_a_table(store: Store) -> None:
    shown = [example_of(store, done) for done in made(2)]
    assert [{row[0] for row in one.rows} for one in shown if one] == [{"g-1"}, {"g-0"}], "another one for each step"
    (first, _) = shown
    assert first is not None
    assert first.cells()[:2] == [
        ["g-1", 1.0, "planner", None, "user", "task g"],
        ["g-1", 1.0, "planner", None, "assistant", "answer 0 of g-1"],
    ]
    assert first.markdown().splitlines()[:3] == [
        "| trajectory | reward | agent | agent reward | role | content |",
        "| --- | --- | --- | --- | --- | --- |",
        "| g-1 | 1.000 | planner |  | user | task g |",
    ]
    assert example_of(store, PolicyStep("policy", 1, "")) is None


def test_long_runs_and_long_messages_are_cut() -> None:
    run = Run("long")
    for turn in range(120):
        said = "x" * 10_000 if turn == 0 else "one | line\nanother"
        run.chat(f"c{turn}", [message("user", f"{turn} {said}")], message("assistant", "yes"), at=turn + 1)
    (trajectory,) = build_trajectories([one for one in run.end(at=500) if isinstance(one, SpanRow)])
    shown = example(trajectory)
    assert len(shown.rows) == 100
    assert max(len(row[5]) for row in shown.rows) == 4000
    assert all(line.replace("\\|", "").count("|") == 7 for line in shown.markdown().splitlines())


def test_tensorboard_holds_every_number_at_its_step(tmp_path: Path, checkpoints: Checkpoints, store: Store) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reporters = open_reporters(["tensorboard"], tmp_path / "out", "policy", {}, print)
    reporters.log({"val/reward": 0.75}, 1)
    assert heard(reporters, checkpoints, {"tensorboard": 1}, store) == {"tensorboard": 3}
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard" / "policy"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward_mean")] == [(2, 2.0), (3, 3.0)]
    assert [(event.step, event.value) for event in events.Scalars("val/reward")] == [(1, 0.75)]
    shown = events.Tensors("example/text_summary")
    assert [event.step for event in shown] == [2, 3]
    assert b"answer 1 of g-1" in shown[1].tensor_proto.string_val[0]


@pytest.mark.usefixtures("offline_wandb")
def test_wandb_holds_the_numbers_and_each_adapter_as_a_version(
    tmp_path: Path, checkpoints: Checkpoints, store: Store
) -> None:
    said: list[str] = []
    reporters = open_reporters(["wandb"], tmp_path / "out", "policy", {"min_groups": 2}, said.append)
    assert reporters.catch_up(made(3), {}, checkpoints, store) == {"wandb": 3}
    reporters.log({"val/reward": 0.75}, 3)
    assert said == []
    reporters.log({"val/reward": 0.5}, 1)
    assert said == ["wandb does not get these numbers: W&B is at step 3, and takes no more numbers of step 1"]
    reporters.close()
    [written] = (tmp_path / "out").glob("wandb/offline-run-*/*.wandb")
    steps, artifacts = when_written(written, 3, 6)
    assert steps == [1, 2, 3]
    assert logged(written.read_bytes(), "val/reward") == {3: "0.75"}
    id = (tmp_path / "out" / "tracker_run_id").read_text()
    assert sorted(artifacts)[:3] == [id] * 3
    assert written.stem == f"run-{id}"
    assert all("example" in name for name in sorted(artifacts)[3:]), "W&B keeps a table as an artifact as well"
    tables = [json.loads(file.read_text()) for file in written.parent.glob("files/media/table/example_*.table.json")]
    assert [table["columns"] for table in tables] == [list(COLUMNS)] * 3
    assert any("answer 1 of g-1" in row for table in tables for row in table["data"])


@pytest.mark.usefixtures("offline_wandb")
def test_of_a_step_before_wandbs_newest_it_is_said_and_the_next_ones_are_reported(
    tmp_path: Path, checkpoints: Checkpoints, store: Store
) -> None:
    """As after numbers of a later step: W&B drops them, and said so in its own log alone."""
    said: list[str] = []
    reporters = open_reporters(["wandb"], tmp_path / "out", "policy", {}, said.append)
    reporters.log({"val/reward": 0.5}, 2)
    assert reporters.catch_up(made(3), {}, checkpoints, store) == {"wandb": 3}
    assert said == ["wandb does not get these numbers: W&B is at step 2, and takes no more numbers of step 1"]
    reporters.close()
    [written] = (tmp_path / "out").glob("wandb/offline-run-*/*.wandb")
    steps, artifacts = when_written(written, 2, 5)
    assert (steps, artifacts.count((tmp_path / "out" / "tracker_run_id").read_text())) == ([2, 3], 3)
    assert logged(written.read_bytes(), "reward_mean") == {2: "2", 3: "3"}


PROGRAM = """
import os, signal, sys
from pathlib import Path
import msgspec
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.policies.checkpoints import Checkpoints
from trainer.step.reporters import open_reporters
name, folder, steps = sys.argv[1], Path(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=list[PolicyStep])
reporters = open_reporters([name], folder, "policy", {"learner": {"loss": "cispo"}}, print)
with Store.open(DataDir(folder / "data")) as store:
    reported = reporters.catch_up(steps, {}, Checkpoints(folder, "policy"), store)
if sys.argv[4:]:
    os.kill(os.getpid(), signal.SIGKILL)
reporters.close()
assert reported == {name: steps[-1].step}, reported
"""
"""Reports steps to one tracker, in a process of its own; one that is to be killed does not close it."""


def report(
    name: str,
    folder: Path,
    steps: list[PolicyStep],
    python: str = sys.executable,
    *,
    killed: bool = False,
    **variables: str,
) -> None:
    ends = ["killed"] if killed else []
    done = subprocess.run(
        [python, "-c", PROGRAM, name, str(folder), msgspec.json.encode(steps).decode(), *ends],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
    assert done.stdout == "", "what it says is no line of ours"


def when_there(folder: Path, pattern: str) -> None:
    """Returns once a file is there, which a process that was started by one that was killed may write later."""
    limit = time.monotonic() + 60
    while not any(folder.glob(pattern)) and time.monotonic() < limit:
        time.sleep(0.05)


@contextlib.contextmanager
def wandb_service() -> Iterator[str]:
    """A program that uses W&B: what its children find in WANDB_SERVICE."""
    code = "import os, sys, wandb; wandb.setup(); print(os.environ['WANDB_SERVICE'], flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        yield program.stdout.readline().strip()
        program.communicate(timeout=120)


@pytest.mark.usefixtures("offline_wandb")
def test_wandb_goes_on_with_its_run_after_a_kill(tmp_path: Path, checkpoints: Checkpoints, store: Store) -> None:
    """Also where the program that starts the training uses W&B itself, whose service goes on."""
    store.close()
    with wandb_service() as service:
        report("wandb", tmp_path, made(2), killed=True, WANDB_SERVICE=service)
        when_there(tmp_path, "wandb/offline-run-*/*.wandb")
        (tmp_path / "wandb").rename(tmp_path / "before")  # W&B names folders by the second
        report("wandb", tmp_path, made(3)[2:], WANDB_SERVICE=service)
    [before] = tmp_path.glob("before/offline-run-*/*.wandb")
    [after] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert before.name == after.name == f"run-{(tmp_path / 'tracker_run_id').read_text()}.wandb"
    assert when_written(after, 1, 2)[0] == [3]


def test_trackio_holds_the_numbers_of_one_run_over_a_restart(
    tmp_path: Path, checkpoints: Checkpoints, store: Store
) -> None:
    pytest.importorskip("trackio")
    store.close()
    for steps in (made(2), made(3)[2:]):
        report("trackio", tmp_path, steps, TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1")
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "arttrace.db")) as written:
        rows = written.execute("SELECT run_id, run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        [config] = written.execute("SELECT config FROM configs").fetchone()
        [versions] = written.execute("SELECT count(*) FROM artifact_versions").fetchone()
    assert len({run_id for run_id, *_ in rows}) == 1
    numbers = [json.loads(found) for *_, found in rows]
    tables = [one.pop("example") for one in numbers]
    assert [(name, step, one) for (_, name, step, _), one in zip(rows, numbers, strict=True)] == [
        ((tmp_path / "tracker_run_id").read_text(), done.step, done.metrics) for done in made(3)
    ]
    assert [table["_value"][0]["trajectory"] for table in tables] == ["g-1", "g-0", "g-1"]
    assert json.loads(config)["learner"] == {"loss": "cispo"}
    assert versions == 3


def test_policies_of_one_name_in_two_stores_are_two_runs_of_a_tracker(
    tmp_path: Path, checkpoints: Checkpoints, store: Store
) -> None:
    """The two share a trackio, and each goes on with its own run after a restart."""
    pytest.importorskip("trackio")
    store.close()
    for folder, steps in (("one", made(1)), ("two", made(2)), ("one", made(2)[1:])):
        given = tmp_path / folder
        if not given.exists():
            shutil.copytree(tmp_path / "data", given / "data")
        report("trackio", given, steps, TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1")
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "arttrace.db")) as written:
        rows = written.execute("SELECT run_id, step FROM metrics ORDER BY id").fetchall()
    first, second = rows[0][0], rows[1][0]
    assert rows == [(first, 1), (second, 1), (second, 2), (first, 2)]
    assert first != second


def test_the_id_of_a_run_stays_and_a_policy_that_was_reported_before_keeps_its_name(tmp_path: Path) -> None:
    made = [run_id(tmp_path / folder / "policy", "policy") for folder in ("one", "two", "one")]
    assert made[0] == made[2] != made[1]
    (tmp_path / "old" / "policy@3").mkdir(parents=True)
    assert run_id(tmp_path / "old", "policy") == "policy"
    (tmp_path / "new" / "policy@0").mkdir(parents=True)
    assert run_id(tmp_path / "new", "policy").startswith("policy-")
    long = run_id(tmp_path / "long", "p" * 200)
    assert len(long) <= 64, "as W&B takes"


def test_an_id_that_a_kill_left_empty_is_made_once(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tracker_run_id").touch()
    one, two = run_id(tmp_path / "one", "policy"), run_id(tmp_path / "two", "policy")
    assert one != two, "nothing was reported under a name that both have"
    (tmp_path / "one" / "policy@1").mkdir()
    assert run_id(tmp_path / "one", "policy") == one
    (tmp_path / "old" / "policy@1").mkdir(parents=True)
    (tmp_path / "old" / "tracker_run_id").touch()
    assert run_id(tmp_path / "old", "policy") == "policy"


def test_an_id_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, as it were, at the moment at which it would be durable."""

    def killed(fd: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            run_id(tmp_path, "policy")
    assert not (tmp_path / "tracker_run_id").exists()
    assert run_id(tmp_path, "policy") == run_id(tmp_path, "policy")


@pytest.mark.full
def test_mlflow_holds_the_numbers_the_examples_and_the_adapters(
    tmp_path: Path, checkpoints: Checkpoints, store: Store
) -> None:
    """With the real MLflow, in an environment of its own beside this one."""
    store.close()
    python = mlflow_python(tmp_path)
    report("mlflow", tmp_path, made(2), python=python, killed=True)
    report("mlflow", tmp_path, made(3)[2:], python=python)
    found = mlflow_holds(python, tmp_path)
    assert found["run"] == ["policy", "FINISHED"]
    assert found["numbers"]["reward_mean"] == [[1, 1.0], [2, 2.0], [3, 3.0]]
    assert [value for _, value in found["numbers"]["reward_mean/help er_"]][-1] == 0.25
    files = ("adapter_config.json", "adapter_model.safetensors")
    assert found["adapters"] == [f"adapters/policy@{n}/{name}" for n in (1, 2, 3) for name in files]
    assert [table["columns"] for table in found["examples"]] == [list(COLUMNS)] * 3
    assert found["config"] == {"learner": {"loss": "cispo"}}


def test_one_that_fails_is_reported_once_and_training_goes_on(checkpoints: Checkpoints) -> None:
    class Broken:
        def step(self, done: PolicyStep, adapter: Path | None, example: ExampleTable | None) -> None:
            assert adapter is not None
            raise OSError("no network\nand a page of HTML")

        def close(self) -> None: ...

    said: list[str] = []
    reporters = Reporters({"broken": Broken()}, said.append)
    assert heard(reporters, checkpoints) == {}
    assert said == ["broken is not reported to any more: OSError: no network"]
    assert isinstance(said[0], Problem), "its level is WARNING"


def test_one_that_cannot_be_opened_is_reported_and_training_goes_on(tmp_path: Path, checkpoints: Checkpoints) -> None:
    (tmp_path / "out").write_text("no folder")
    said: list[str] = []
    assert heard(open_reporters(["tensorboard"], tmp_path / "out", "policy", {}, said.append), checkpoints) == {}
    [line] = said
    assert line.startswith("tensorboard is not reported to: ")
    assert isinstance(line, Problem)


def test_a_store_that_cannot_be_read_costs_the_example_alone(
    tmp_path: Path, checkpoints: Checkpoints, store: Store
) -> None:
    store.close()
    said: list[str] = []
    reporters = open_reporters(["tensorboard"], tmp_path / "out", "policy", {}, said.append)
    assert heard(reporters, checkpoints, store=store) == {"tensorboard": 3}
    assert [line.partition(":")[0] for line in said] == ["policy@1 is reported without an example"], "said once"
    assert isinstance(said[0], Problem)


def test_an_unknown_one_and_a_missing_package_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainingError, match="'comet'"):
        open_reporters(["comet"], tmp_path, "policy", {}, print)
    monkeypatch.setitem(__import__("sys").modules, "trackio", None)
    with pytest.raises(TrainingError, match="pip install trackio"):
        open_reporters(["trackio"], tmp_path, "policy", {}, print)
