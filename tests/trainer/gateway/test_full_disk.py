"""A real disk that fills up during a step, beside a real gateway: the last good version goes on being served, and when
there is room the daemon goes on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from gateway_site import Site
from recorded_runs import recorded_group
from safetensors.torch import load_file
from small_disk import only_root, small_disk
from tiny_model import make_base_model

from arttrace.records.policy import PolicyStep
from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.daemon.config import DaemonConfig
from trainer.daemon.gateway import FoundGateway
from trainer.daemon.state_machine import Daemon
from trainer.gateway.status import ServingFile
from trainer.learner import make_learner
from trainer.learner.config import LearnerConfig
from trainer.policies.checkpoints import CheckpointError, Checkpoints
from trainer.step.phases import Phase

pytestmark = only_root

RANK = 64  # a version takes over a megabyte, a third of it the adapter
LEFT = {1: 0, 2: 100 << 10, 3: 600 << 10}  # bytes left after that version: for none of it, a part of the adapter, more
FILES = ["adapter_config.json", "adapter_model.safetensors", "learned_tokens.bin", "manifest.json", "trainer_state.pt"]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDir]:
    """Its checkpoints lie on a disk of 16 MiB."""
    data = DataDir(tmp_path / "data")
    data.policies.mkdir(parents=True)
    with small_disk(data.policies, "size=16m"):
        yield data


def fill(disk: Path, leave: int) -> None:
    """Leaves so many bytes, in whole pages."""
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - leave))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.02)


async def test_a_disk_that_fills_up_during_a_step(
    data: DataDir, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.step.retry.FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr("trainer.step.retry.LONGEST_PAUSE_S", 0.2)
    base_model = await asyncio.to_thread(make_base_model, tmp_path / "base")
    url = str(site.http.base_url)
    data.serving.write_bytes(msgspec.json.encode(ServingFile(url, str(base_model), "policy", os.getpid(), "")))
    checkpoints, stop, said = Checkpoints(data.policies, "policy"), threading.Event(), []

    def made(done: PolicyStep) -> None:
        if done.step in LEFT:
            fill(data.policies, LEFT[done.step])

    with Store.open(data, create=True) as store, checkpoints.only_writer():
        for n in range(4):
            store.append(recorded_group(f"g{n}", (0.0, 1.0), at=n * 2000))
        daemon = Daemon(
            DaemonConfig.model_validate(
                {"group_size": 2, "min_groups": 1, "poll": 0.02, "max_steps": 4, "keep": {"states": 9}}
            ),
            policy="policy",
            base_model=base_model,
            store=store,
            learner=lambda: make_learner(
                base_model, LearnerConfig(lora_rank=RANK, lora_alpha=RANK, max_logprob_difference=1e6)
            ),
            gateway=FoundGateway(data, "policy"),
            stop=stop,
            say=said.append,
            on_step=made,
        )
        training = asyncio.create_task(asyncio.to_thread(daemon.run))
        try:
            for step in LEFT:
                await until(lambda step=step: "".join(said).count("waiting, because") == step or training.done())
                assert not training.done(), training.exception()
                assert (daemon.state.state, daemon.state.step) == (Phase.CHECKPOINT, step)
                assert f"checkpoint: waiting, because policy@{step + 1} could not be written" in "".join(said)
                assert str(checkpoints.directory) in daemon.state.reason
                assert daemon.state.hint.startswith("Free disk space")
                tries = [done for done in site.engine.log if done[0] == "load"]
                # Where there is room for the adapter, it answers already; it is no version before the rest is on disk.
                served = step + 1 if LEFT[step] > 500 << 10 else step
                for _ in range(5):  # it tries again and again, and leaves nothing half written behind
                    await asyncio.sleep(0.1)
                    assert (await site.chat()).headers["x-arttrace-policy-version"] == f"policy@{served}"
                    assert checkpoints.all_steps() == list(range(1, step + 1))
                assert [done for done in site.engine.log if done[0] == "load"] == tries
                (data.policies / "filler").unlink()
                await until(lambda step=step: daemon.state.step > step or training.done())
                assert said.count("checkpoint: going on") == step
            await asyncio.wait_for(training, 60)
        finally:
            stop.set()
            await asyncio.wait([training])
        assert [entry.step for entry in store.policy_steps("policy")] == [1, 2, 3, 4]
    assert (await site.chat()).headers["x-arttrace-policy-version"] == "policy@4"
    for step in (1, 2, 3, 4):
        assert sorted(path.name for path in checkpoints.path(step).iterdir()) == FILES
        adapter = load_file(checkpoints.path(step) / "adapter_model.safetensors")  # it checks the lengths
        assert all(tensor.isfinite().all() for tensor in adapter.values())
    assert not [path for path in checkpoints.directory.iterdir() if path.name.startswith(".policy@")]
    consumed = [one.trajectory_id for step in (1, 2, 3, 4) for one in checkpoints.manifest(step).consumed]
    assert consumed == [f"g{n}-{i}" for n in range(4) for i in range(2)]


def test_training_does_not_begin_on_a_full_disk_and_says_why(data: DataDir) -> None:
    checkpoints = Checkpoints(data.policies, "policy")
    fill(data.policies, 0)
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device") as refused:
        checkpoints.only_writer().__enter__()
    assert "Free disk space" in (refused.value.hint or "")
    assert checkpoints.writer() is None
    (data.policies / "filler").unlink()
    with checkpoints.only_writer():
        assert checkpoints.writer() == os.getpid()
    assert checkpoints.writer() is None
