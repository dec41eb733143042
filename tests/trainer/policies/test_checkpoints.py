import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.system.errors import TrainingError
from trainer.policies.checkpoints import Checkpoints


def manifest(step: int, *ids: str) -> PolicyStep:
    return PolicyStep("market", step, "", tuple(Consumed(i, "r") for i in ids), {"loss": 0.5}, "/base", 7)


def save(directory: Path) -> None:
    (directory / "adapter_config.json").write_text("{}")
    (directory / "nested").mkdir()
    (directory / "nested" / "state.pt").write_bytes(b"weights")


def test_a_version_comes_back_as_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "market")
    assert checkpoints.latest() is None
    assert checkpoints.consumed_ids() == frozenset()
    path = checkpoints.write(1, save, manifest(1, "a", "b"))
    checkpoints.write(10, save, manifest(10, "c"))
    checkpoints.write(9, save, manifest(9, "b"))
    assert path == tmp_path / "market" / "market@1" == checkpoints.path(1)
    assert (path / "nested" / "state.pt").read_bytes() == b"weights"
    assert checkpoints.steps() == [1, 9, 10]
    assert checkpoints.latest() == 10
    assert checkpoints.manifest(1).adapter == str(path)
    assert checkpoints.manifest(1).metrics == {"loss": 0.5}
    assert checkpoints.consumed_ids() == {"a", "b", "c"}
    assert sorted(p.name for p in (tmp_path / "market").iterdir()) == ["market@1", "market@10", "market@9"]


def test_a_version_is_never_written_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "market")
    checkpoints.write(1, save, manifest(1, "a"))
    with pytest.raises(TrainingError, match="exists already"):
        checkpoints.write(1, save, manifest(1, "b"))
    assert checkpoints.consumed_ids() == {"a"}


def test_a_failing_save_leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise RuntimeError("boom")

    def full(directory: Path) -> None:
        raise OSError(28, "No space left on device")

    checkpoints = Checkpoints(tmp_path, "market")
    with pytest.raises(RuntimeError, match="boom"):
        checkpoints.write(1, fail, manifest(1))
    with pytest.raises(TrainingError, match="No space left"):
        checkpoints.write(1, full, manifest(1))
    assert list((tmp_path / "market").iterdir()) == []


def test_a_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="market@2"):
        Checkpoints(tmp_path, "market").write(1, save, manifest(2))


def test_a_damaged_manifest_is_said_aloud(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "market")
    path = checkpoints.write(1, save, manifest(1))
    for damaged in (b'{"policy": "mark', b'{"policy": "\xff"}'):
        (path / "manifest.json").write_bytes(damaged)
        with pytest.raises(TrainingError, match="cannot be read"):
            checkpoints.consumed_ids()
    with pytest.raises(TrainingError, match="no version market@2"):
        checkpoints.manifest(2)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a@b", ".hidden"])
def test_names_that_would_leave_the_directory_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrainingError, match="cannot name a policy"):
        Checkpoints(tmp_path, name)


KILLED = """
import sys, time
from pathlib import Path
from arttrace.records.policy import PolicyStep
from trainer.policies.checkpoints import Checkpoints

def save(directory):
    (directory / "adapter_model.safetensors").write_bytes(b"half of it")
    print("writing", flush=True)
    time.sleep(60)

Checkpoints(Path(sys.argv[1]), "market").write(2, save, PolicyStep("market", 2, ""))
"""


def test_kill_in_the_middle_of_a_write_loses_only_that_write(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "market")
    checkpoints.write(1, save, manifest(1, "a"))
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        leftovers = [p for p in (tmp_path / "market").iterdir() if p.name.startswith(".")]
        assert len(leftovers) == 1
        # A living writer's directory is not touched by another process's write.
        Checkpoints(tmp_path, "market").write(7, save, manifest(7))
        assert leftovers[0].is_dir()
        child.send_signal(signal.SIGKILL)
        child.wait()
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    assert checkpoints.steps() == [1, 7]
    assert leftovers[0].is_dir()
    checkpoints.write(2, save, manifest(2, "b"))
    assert checkpoints.steps() == [1, 2, 7]
    assert not leftovers[0].exists()
