"""The file that is made for the next version's adapter: what is written over it is what is written anew."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from arttrace.records.policy import PolicyStep
from trainer.policies import spare_file
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.spare_file import ROOM
from trainer.policies.tensor_file import write_tensors

ADAPTER = "adapter_model.safetensors"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_file, "_LEAST", 1 << 10)


def saving(numbers: int, seed: int = 0) -> Callable[[Path], None]:
    def save(directory: Path) -> None:
        (directory / "adapter_config.json").write_text("{}")
        drawn = torch.Generator().manual_seed(seed)
        weights = {name: torch.randn(numbers, generator=drawn) for name in ("lora_A", "lora_B")}
        write_tensors(directory / ADAPTER, weights, torch.bfloat16)

    return save


def version(checkpoints: Checkpoints, save: Callable[[Path], None]) -> Path:
    step, path = checkpoints.hand_over(save)
    checkpoints.complete(step, lambda _: None, PolicyStep("p", step, ""))
    if checkpoints._room._making is not None:
        checkpoints._room._making.join()
    return path


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


@pytest.mark.parametrize("then", [5000, 5001, 20_000, 700])
def test_an_adapter_is_written_over_the_room_that_the_one_before_it_left(then: int, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "p")
    first = version(checkpoints, saving(5000))
    before, made = (first / ADAPTER).read_bytes(), (tmp_path / "p" / ROOM).stat()
    assert made.st_size == len(before)
    second = version(checkpoints, saving(then, seed=1))
    assert (second / ADAPTER).stat().st_ino == made.st_ino
    (tmp_path / "anew").mkdir()
    saving(then, seed=1)(tmp_path / "anew")
    assert (second / ADAPTER).read_bytes() == (tmp_path / "anew" / ADAPTER).read_bytes()
    assert (first / ADAPTER).read_bytes() == before, "a version is never written over"
    assert names(second) == ["adapter_config.json", ADAPTER, "manifest.json"]


def test_room_that_nobody_took_is_no_adapter(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "p")
    version(checkpoints, saving(5000))
    second = version(checkpoints, lambda directory: (directory / "adapter_config.json").write_text("{}"))  # type: ignore[arg-type]
    assert names(second) == ["adapter_config.json", "manifest.json"]
    third = version(checkpoints, saving(5000, seed=2))
    assert (third / ADAPTER).stat().st_size > 20_000


def test_a_full_disk_and_small_adapters_make_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, "p")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 16))
    version(checkpoints, saving(5000))
    monkeypatch.undo()
    version(checkpoints, saving(5000, seed=1))
    assert not any(name.startswith(ROOM) for name in names(tmp_path / "p"))


def test_a_failing_save_leaves_nothing_and_the_next_version_is_whole(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "p")
    version(checkpoints, saving(5000))

    def fail(directory: Path) -> None:
        saving(5000)(directory)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checkpoints.hand_over(fail)
    version(checkpoints, saving(5000, seed=1))
    assert checkpoints.steps() == [1, 2]


def test_nothing_is_written_when_another_process_may_make_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is still made then would be written into the adapter that the other one puts over it."""
    monkeypatch.setattr(spare_file, "_PART", 0)  # it never comes to its end
    checkpoints = Checkpoints(tmp_path, "p")
    with checkpoints.only_writer():
        step, _ = checkpoints.hand_over(saving(5000))
        checkpoints.complete(step, lambda _: None, PolicyStep("p", step, ""))
        assert [one for one in threading.enumerate() if one.name == "arttrace-room"]
    assert not [one for one in threading.enumerate() if one.name == "arttrace-room"]
    assert not any(name.startswith(ROOM) for name in names(tmp_path / "p"))


def test_what_a_killed_process_had_begun_is_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "p")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / f"{ROOM}.unfinished").write_bytes(bytes(100))
    checkpoints.hand_over(saving(5))
    assert names(tmp_path / "p") == ["p@1"]


def test_a_version_is_made_where_no_thread_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    checkpoints = Checkpoints(tmp_path, "p")
    step, _ = checkpoints.hand_over(saving(5000))
    monkeypatch.setattr(threading, "Thread", Refused)
    checkpoints.complete(step, lambda _: None, PolicyStep("p", step, ""))
    assert checkpoints.steps() == [1]
