"""A daemon on a real store and real checkpoints, whose learner and gateway are stand-ins."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recorded_runs import recorded_group

from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.daemon.config import DaemonConfig
from trainer.daemon.scoring import JudgeTerms
from trainer.daemon.state_machine import Daemon
from trainer.gateway.status import EngineStatus
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample, StepMetrics
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import GatewayStatus, PublishReport
from trainer.serving.client import GatewayGone
from trainer.step.phases import Phase

Step = Callable[[], StepMetrics]


@dataclass
class StandInLearner:
    """`script` says what the next steps do; `full` how many saves meet a full disk."""

    script: list[Step] = field(default_factory=list)
    full: int = 0
    base_weights: str = ""
    config: LearnerConfig = field(default_factory=LearnerConfig)
    trained: list[set[str]] = field(default_factory=list)

    def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
        made = self.script.pop(0)() if self.script else StepMetrics(loss=1.0)
        self.trained.append({one.trajectory_id for sample in samples for one in sample.sequences})
        return made

    def refit(self) -> None: ...

    def save_adapter(self, directory: Path) -> None:
        if self.full:
            self.full -= 1
            (directory / "half").write_text("x")
            raise OSError(errno.ENOSPC, "No space left on device")
        (directory / "adapter_config.json").write_text("{}")
        (directory / "adapter_model.safetensors").write_text(str(len(self.trained)))

    def save_rest(self, directory: Path) -> None: ...

    def load(self, directory: Path) -> str:
        return ""


@dataclass
class StandInGateway:
    """Gone for the next `gone` calls."""

    gone: int = 0
    step: int = 0

    def publish(self, step: int, path: Path) -> PublishReport:
        self.answer()
        self.step = step
        return PublishReport(f"policy@{step}", "", max_logprob_change=0.1, seconds=0.0)

    def status(self) -> GatewayStatus:
        self.answer()
        return GatewayStatus("policy", f"policy@{self.step}", self.step, "", {}, EngineStatus("ready", None, 0))

    def answer(self) -> None:
        if self.gone:
            self.gone -= 1
            raise GatewayGone("the gateway does not answer")


@dataclass
class Site:
    data: DataDir
    store: Store
    learner: StandInLearner = field(default_factory=StandInLearner)
    gateway: StandInGateway = field(default_factory=StandInGateway)
    stop: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.data.policies, "policy")

    def group(self, key: str, *rewards: float | None, at: int = 0, version: int = 0) -> None:
        self.store.append(recorded_group(key, rewards, at=at, policy=f"policy@{version}"))

    def daemon(self, judge: JudgeTerms | None = None, **config: Any) -> Daemon:
        config = {"group_size": 2, "min_groups": 1, "poll": 0.01, **config}
        daemon = Daemon(
            DaemonConfig.model_validate(config),
            policy="policy",
            base_model=self.data.root,
            store=self.store,
            learner=lambda: self.learner,  # type: ignore[arg-type]
            gateway=self.gateway,
            judge=judge,
            stop=self.stop,
            say=self.said.append,
        )
        enter = daemon._enter

        def watched(state: str, *rest: Any, **more: Any) -> None:
            self.states.append(str(state))
            enter(state, *rest, **more)

        daemon._enter = watched  # type: ignore[method-assign]
        return daemon

    def run(self, judge: JudgeTerms | None = None, **config: Any) -> Daemon:
        """Runs one to its end, which is when nothing is ready any more unless `max_steps` says otherwise."""
        daemon = self.daemon(judge, **config)
        if "max_steps" not in config:
            note = daemon._note

            def last_look(**changes: Any) -> None:
                note(**changes)
                if daemon.state.state == Phase.WAIT and "queue" in changes and not changes["queue"].ready:
                    self.stop.set()

            daemon._note = last_look  # type: ignore[method-assign]
        daemon.run()
        return daemon

    def consumed(self) -> list[str]:
        steps = self.checkpoints.all_steps()
        return [one.trajectory_id for step in steps for one in self.checkpoints.manifest(step).consumed]


def until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to that")
