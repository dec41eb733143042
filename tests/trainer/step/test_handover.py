"""An adapter is served before its version is on disk: a kill between the two consumes nothing and loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_runs import recorded_group

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.store import Store
from arttrace.system.errors import ServingError, TrainingError
from arttrace.system.paths import DataDir
from trainer.gateway.status import EngineStatus, GatewayStatus, PublishReport
from trainer.policies.checkpoints import CheckpointError, Checkpoints
from trainer.step.phases import Clock
from trainer.step.version import complete_step, finish_open_step


class FileGateway:
    """A gateway that outlives its trainer: what it serves is in a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def publish(self, step: int, path: Path) -> PublishReport:
        weights = (path / "adapter_model.safetensors").read_text() if step else "base"
        with self.file.open("a") as lines:
            lines.write(f"{step} {weights}\n")
        return PublishReport(f"policy@{step}", "", max_logprob_change=0.1, seconds=0.0)

    def status(self) -> GatewayStatus:
        step = self.shown[-1][0] if self.shown else 0
        return GatewayStatus("policy", f"policy@{step}", step, "", {}, EngineStatus("ready", None, 0))

    def fall_asleep(self) -> Callable[[], None]:
        return lambda: None

    @property
    def shown(self) -> list[tuple[int, str]]:
        """The steps and weights that it was asked to serve, in turn."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [(int(step), weights) for step, weights in (line.split() for line in lines)]


class Weights:
    base_weights = ""

    def __init__(self, weights: str, rest: Callable[[], None] = lambda: None) -> None:
        self.weights, self.rest = weights, rest

    def save_adapter(self, directory: Path) -> None:
        (directory / "adapter_model.safetensors").write_text(self.weights)
        (directory / "adapter_config.json").write_text('{"r": 8, "target_modules": ["a", "b"]}')

    def save_rest(self, directory: Path) -> None:
        (directory / "trainer_state.pt").write_text("half")
        self.rest()
        (directory / "trainer_state.pt").write_text("whole")


def step(folder: Path, weights: Weights) -> PolicyStep:
    """One step on the group g, to its record."""
    data = DataDir(folder)
    with Store.open(data, create=True) as store:
        checkpoints, gateway = Checkpoints(data.policies, "policy"), FileGateway(folder / "shown")
        finish_open_step(store, checkpoints, gateway)
        consumed = tuple(Consumed(one.id, one.revision) for one in store.trajectories(unconsumed_by="policy"))
        return complete_step(store, checkpoints, gateway, "/base", weights, consumed, {}, Clock(), method="grpo")


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], sys.argv[3]]
import test_handover as here
here.step(Path(sys.argv[1]), here.Weights("one", lambda: os.kill(os.getpid(), signal.SIGKILL)))
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a trainer that was killed when the engine had the version, and the disk did not."""
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0]))
    here = Path(__file__)
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(here.parent), str(here.parents[2] / "support")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert FileGateway(tmp_path / "shown").shown == [(1, "one")]
    checkpoints = Checkpoints(DataDir(tmp_path).policies, "policy")
    assert (checkpoints.path(1) / "adapter_model.safetensors").read_text() == "one"
    assert checkpoints.all_steps() == [], "no version before all of it is on disk"
    assert checkpoints.consumed_ids() == frozenset()
    return tmp_path


def test_the_next_start_makes_the_same_version_again(killed: Path) -> None:
    data = DataDir(killed)
    with Store.open(data) as store:
        assert len(store.trajectories(unconsumed_by="policy")) == 2
    done = step(killed, Weights("one"))
    assert FileGateway(killed / "shown").shown == [(1, "one"), (1, "one")]
    checkpoints = Checkpoints(data.policies, "policy")
    assert (done.version, checkpoints.steps()) == ("policy@1", [1])
    assert sorted(one.trajectory_id for one in checkpoints.manifest(1).consumed) == ["g-0", "g-1"]
    assert (checkpoints.path(1) / "trainer_state.pt").read_text() == "whole"
    assert sorted(path.name for path in checkpoints.path(1).iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
        "trainer_state.pt",
    ]
    with Store.open(data) as store:
        assert store.trajectories(unconsumed_by="policy") == []
        assert [entry.step for entry in store.policy_steps("policy")] == [1]


def test_other_weights_never_take_a_name_that_an_engine_has_served(killed: Path) -> None:
    done = step(killed, Weights("other"))
    checkpoints = Checkpoints(DataDir(killed).policies, "policy")
    assert (done.version, checkpoints.steps(), len(done.consumed)) == ("policy@2", [2], 2)
    assert FileGateway(killed / "shown").shown == [(1, "one"), (2, "other")]
    assert checkpoints.path(1).is_dir(), "requests under way may still need it"
    with Store.open(DataDir(killed)) as store:
        store.append(recorded_group("h", [0.0, 1.0], at=5000))
    assert step(killed, Weights("third")).version == "policy@3"
    assert not checkpoints.path(1).exists()


def test_what_the_disk_refuses_behind_it_is_withdrawn(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0]))

    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left"):
        step(tmp_path, Weights("one", full))
    gateway = FileGateway(tmp_path / "shown")
    assert gateway.shown == [(1, "one"), (0, "base")]
    checkpoints = Checkpoints(DataDir(tmp_path).policies, "policy")
    assert checkpoints.all_steps() == []
    assert not (checkpoints.path(1) / "trainer_state.pt").exists()
    assert step(tmp_path, Weights("one")).version == "policy@1"


class InterruptedGateway(FileGateway):
    """The order to publish a version is interrupted while it waits for the answer; the server goes on with it."""

    def publish(self, step: int, path: Path) -> PublishReport:
        if not step:
            self.switch()
            return super().publish(step, path)
        self.under_way = step, path
        raise KeyboardInterrupt

    def switch(self) -> None:
        super().publish(*self.under_way)


def test_a_version_whose_publishing_is_interrupted_does_not_go_on_answering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0]))
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[__name__], "FileGateway", InterruptedGateway)
        with pytest.raises(KeyboardInterrupt):
            step(tmp_path, Weights("one"))
    assert FileGateway(tmp_path / "shown").shown == [(1, "one"), (0, "base")]
    assert Checkpoints(DataDir(tmp_path).policies, "policy").all_steps() == []
    assert step(tmp_path, Weights("one")).version == "policy@1"


def test_a_gateway_that_was_restarted_meanwhile_hears_of_it_again(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0]))
    gateway = FileGateway(tmp_path / "shown")
    step(tmp_path, Weights("one", gateway.file.unlink))
    assert gateway.shown == [(1, "one")]


def test_a_version_is_complete_once(tmp_path: Path) -> None:
    checkpoints, weights = Checkpoints(tmp_path, "policy"), Weights("one")
    number, path = checkpoints.hand_over(weights.save_adapter)
    assert (number, path, checkpoints.latest()) == (1, checkpoints.path(1), None)
    with pytest.raises(TrainingError, match="cannot be written as policy@1"):
        checkpoints.complete(1, weights.save_rest, PolicyStep("policy", 2, ""))
    checkpoints.complete(1, weights.save_rest, PolicyStep("policy", 1, ""))
    assert checkpoints.steps() == [1]
    assert checkpoints.hand_over(weights.save_adapter)[0] == 2


def test_a_policy_whose_directory_is_gone_does_not_begin_anew(tmp_path: Path) -> None:
    """Its runs would be trained on twice, and its version 1 would be another one than the store knows."""
    data = DataDir(tmp_path)
    with Store.open(data, create=True) as store:
        store.append(recorded_group("g", (0.0, 1.0)))
    step(tmp_path, Weights("a"))
    (data.policies / "policy").rename(tmp_path / "elsewhere")
    with pytest.raises(TrainingError, match=r"policy@1 was made here, but is not in .*deleted, moved") as raised:
        step(tmp_path, Weights("b"))
    assert raised.value.hint == "Put it back, or train another policy: --policy NAME."
    (tmp_path / "elsewhere").rename(data.policies / "policy")
    assert step(tmp_path, Weights("b")).version == "policy@2"


def test_its_number_is_on_disk_before_an_engine_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reset of the machine another adapter would take the name that runs were sampled under."""
    checkpoints, happened = Checkpoints(tmp_path, "policy"), []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), checkpoints.directory.stat()):
            happened.append([path.name for path in checkpoints.directory.iterdir()])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    checkpoints.hand_over(Weights("one").save_adapter)
    assert happened == [["policy@1"]]


def test_a_version_interrupted_behind_its_manifest_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0]))
    version = Checkpoints(DataDir(tmp_path).policies, "policy").path(1)
    sync = os.fsync

    def interrupted(descriptor: int) -> None:
        if (version / "manifest.json").exists():
            raise KeyboardInterrupt
        sync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(tmp_path, Weights("one"))
    assert (version / "trainer_state.pt").read_text() == "whole"
    assert FileGateway(tmp_path / "shown").shown == [(1, "one")], "it is a version, and goes on answering"
    with Store.open(DataDir(tmp_path)) as store:
        checkpoints = Checkpoints(DataDir(tmp_path).policies, "policy")
        finish_open_step(store, checkpoints, FileGateway(tmp_path / "shown"))
        assert [entry.step for entry in store.policy_steps("policy")] == [1]
        assert store.trajectories(unconsumed_by="policy") == []


def test_what_was_published_although_its_answer_was_lost_is_withdrawn_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0]))
    publish = FileGateway.publish

    def lost(self: FileGateway, step: int, path: Path) -> PublishReport:
        report = publish(self, step, path)
        if step:
            raise ServingError("the gateway did not answer in time")
        return report

    monkeypatch.setattr(FileGateway, "publish", lost)

    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError):
        step(tmp_path, Weights("one", full))
    assert FileGateway(tmp_path / "shown").shown == [(1, "one"), (0, "base")]


def test_what_a_pruned_version_consumed_outlives_a_left_mark(tmp_path: Path) -> None:
    """A trainer killed behind the manifest leaves the mark, and a prune that is killed, or under way, does not take it
    away at once."""
    checkpoints = Checkpoints(tmp_path, "policy")
    for number, weights in ((1, Weights("one")), (2, Weights("two"))):
        checkpoints.hand_over(weights.save_adapter)
        consumed = (Consumed(f"run-{number}", "r"),)
        checkpoints.complete(number, weights.save_rest, PolicyStep("policy", number, "", consumed=consumed))
    (checkpoints.path(1) / "handed_over").touch()
    (checkpoints.path(1) / "manifest.json").rename(checkpoints.path(1) / "pruned.json")
    checkpoints.hand_over(Weights("three").save_adapter)
    assert checkpoints.consumed_ids() == {"run-1", "run-2"}


def test_a_disk_that_refuses_to_give_up_states_fails_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, weights = Checkpoints(tmp_path, "policy"), Weights("one")
    for number in (1, 2):
        checkpoints.hand_over(weights.save_adapter)
        checkpoints.complete(number, weights.save_rest, PolicyStep("policy", number, ""))

    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "touch", full)
        assert checkpoints.drop_states([1]) == []
    assert (checkpoints.path(1) / "trainer_state.pt").exists()
    assert checkpoints.drop_states([1]) == [1]


def test_a_damaged_manifest_of_another_policy_ends_no_training(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(recorded_group("g", [0.0, 1.0]))
    other = DataDir(tmp_path).policies / "other" / "other@1"
    other.mkdir(parents=True)
    (other / "manifest.json").write_text("{")
    assert step(tmp_path, Weights("one")).version == "policy@1"
