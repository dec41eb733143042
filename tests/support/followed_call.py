"""One real call from the patched openai client to a new adapter, and every function of ours that it enters on its way.

The endpoint stands in (it plays a model by a script and gives token ids as vLLM does), and the gateway that would load
the adapter. All else is what runs at a user's.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import openai
from scripted_server import Asked, Reply, serve_script
from tiny_model import make_base_model

import arttrace
from arttrace.store import Store
from arttrace.system import native_threads
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_trajectories
from trainer.gateway.status import EngineStatus, GatewayStatus, PublishReport
from trainer.grpo.batch import make_batch
from trainer.grpo.trainer import PolicyTrainer
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import Learner
from trainer.policies.checkpoints import Checkpoints

ROOT = Path(arttrace.__file__).parents[1]
FLUSH_S = 60.0

Entered = tuple[str, str]
"""A file below the repository's root, and the qualified name of a function in it."""


class _Gateway:
    """Stands in for the client of a running gateway: it looks at what it is to load."""

    def publish(self, step: int, path: Path) -> Any:
        assert (path / "adapter_config.json").exists()
        return PublishReport(f"policy@{step}", "", max_logprob_change=0.1, seconds=0.0)

    def status(self) -> Any:
        return GatewayStatus("policy", "policy@0", 0, "", {}, EngineStatus("ready", None, 0), sleeps=False)


class Follower:
    """Notes in `entered` every entry into a function of ours, in any thread, in order, while `follows`."""

    def __init__(self) -> None:
        self.entered: list[Entered] = []
        self.follows = False
        self._names: dict[CodeType, Entered | None] = {}

    def __enter__(self) -> Follower:
        self._run = native_threads.Thread._run

        def profiled(thread: native_threads.Thread) -> None:
            sys.setprofile(self._profile)
            self._run(thread)

        native_threads.Thread._run = profiled  # type: ignore[method-assign]
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        native_threads.Thread._run = self._run  # type: ignore[method-assign]

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if self.follows and event == "call":
            code = frame.f_code
            if code not in self._names:
                self._names[code] = _name_of(code)
            if (name := self._names[code]) is not None and not _wakes_the_worker(frame):
                self.entered.append(name)


def _wakes_the_worker(frame: FrameType) -> bool:
    """Whether a beginning is told to a worker that waits, as it does on a slow machine: with it no job goes on."""
    above = frame.f_back
    names = frame.f_code.co_qualname, None if above is None else above.f_code.co_qualname
    return names == ("Recorder.submit", "Recorder.started")


def _name_of(code: CodeType) -> Entered | None:
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in ("arttrace", "trainer"):
        return None
    return path.relative_to(ROOT).as_posix(), code.co_qualname


def _script(_: Asked) -> Reply:
    return Reply("two words")


def walk(directory: Path) -> list[Entered]:
    """Every entry into a function of ours that one call causes, in order, from the client to the loaded adapter."""
    data = DataDir(directory / "data")
    learner = make_learner(make_base_model(directory / "base"), LearnerConfig(lora_rank=8))
    arttrace.init(project="walk", dir=data.root)
    try:
        with serve_script(_script) as server, openai.OpenAI(base_url=server.url, api_key="none") as client:
            return _followed(client, data, learner)
    finally:
        arttrace.shutdown(FLUSH_S)


def _followed(client: openai.OpenAI, data: DataDir, learner: Learner) -> list[Entered]:
    @arttrace.trajectory(group="one")
    def agent(worth: float) -> None:
        client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hello"}],
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
        arttrace.reward(worth)

    with Follower() as follower:
        agent(0.0)  # GRPO compares two runs; this one is not followed
        assert arttrace.flush(FLUSH_S)
        follower.follows = True
        agent(1.0)
        assert arttrace.flush(FLUSH_S)
        with Store.open(data) as store:
            batch = make_batch(group_trajectories(store.trajectories()))
            checkpoints = Checkpoints(data.policies, "policy")
            step = PolicyTrainer("policy", "base", store, learner, checkpoints, _Gateway()).train_on(batch)
        follower.follows = False
    assert step is not None
    assert step.metrics["tokens_trained"] == 4
    return follower.entered
