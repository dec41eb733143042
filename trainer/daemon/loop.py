"""One step from scored groups to the next policy: batch, step, checkpoint, publish, record.

Each phase leaves its mark on disk before the next begins, so that a process killed anywhere can be started again:
a checkpoint that was not published or recorded is published and recorded first, and its manifest decides what was
consumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from arttrace.errors import TrainingError
from arttrace.records.group import Group
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.reward import Judgement
from arttrace.store import AnyStore
from trainer.advantages import Scale
from trainer.batch import Batch, make_batch
from trainer.checkpoints import Checkpoints
from trainer.daemon.sharing import engines_asleep
from trainer.learner.interface import Learner, teaches
from trainer.metrics import step_numbers
from trainer.serving import GatewayStatus, PublishReport

T = TypeVar("T")


class Phase(StrEnum):
    """Where the loop is; the order is that of one step."""

    WAIT = "wait"
    ROLLOUT = "rollout"
    SCORE = "score"
    BATCH = "batch"
    STEP = "step"
    CHECKPOINT = "checkpoint"
    PUBLISH = "publish"
    RECORD = "record"


class Gateway(Protocol):
    """Where a version is published, as GatewayClient does it; None from `publish` says that nobody serves."""

    def publish(self, step: int, path: Path) -> PublishReport | None: ...
    def status(self) -> GatewayStatus | None: ...
    def fall_asleep(self) -> Callable[[], None]: ...


class Patience(Protocol):
    """Does what it is given, and may do it again when that fails: every such action is idempotent.

    An action with an `undo` holds others up while it tries. They get as much time before it tries again, and a stop
    does not wait for it: what it still brings is undone.
    """

    def __call__(self, action: Callable[[], T], undo: Callable[[T], None] | None = None) -> T: ...


def at_once(action: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """No patience: a failure is raised."""
    return action()


class NothingToTrain(TrainingError):
    """A batch without anything to learn from."""


class Watch(Protocol):
    """Told when a phase begins."""

    def __call__(self, phase: Phase) -> None: ...


class Clock:
    """Seconds per phase: call it with a phase to end the running one and begin the next."""

    def __init__(self, watch: Watch | None = None) -> None:
        self.seconds: dict[Phase, float] = {}
        self._watch = watch
        self._running: tuple[Phase, float] | None = None

    def __call__(self, phase: Phase) -> None:
        self.stop()
        self._running = (phase, time.perf_counter())
        if self._watch:
            self._watch(phase)

    def stop(self) -> None:
        """End the running phase, if any."""
        if self._running:
            phase, began = self._running
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began
            self._running = None


@dataclass(frozen=True, slots=True)
class Loop:
    """One policy's loop: its store, learner, checkpoints, and the gateway that serves it (None: not served)."""

    policy: str
    base_model: str
    store: AnyStore
    learner: Learner
    checkpoints: Checkpoints
    gateway: Gateway | None = None
    scale: Scale = "none"
    max_staleness: int | None = None
    patience: Patience = at_once

    def resume(self) -> int:
        """Take the newest checkpoint, finish what it left open, and return its step (0: none yet)."""
        step = self.checkpoints.latest()
        if step is None:
            return 0
        self.learner.load(self.checkpoints.path(step))
        finish_open_step(self.store, self.checkpoints, self.gateway, self.patience)
        return step

    def train(
        self,
        groups: Sequence[Group],
        clock: Clock | None = None,
        *,
        beside: tuple[Consumed, ...] = (),
        judgements: Sequence[Judgement] = (),
    ) -> PolicyStep | None:
        """One step on scored groups: the new version is on disk, served, and recorded when this returns.

        `beside` are trajectories that earlier rounds took and learned nothing from: this version's manifest names them
        as consumed too. What the `judgements` of the groups cost is counted in the metrics.

        None when there is nothing to learn, since the rewards within each group are equal and no KL term is asked for:
        the step is skipped, and nothing changes or is consumed.
        Raises TrainingError when there is nothing to train on; nothing is consumed then either.
        """
        clock = clock or Clock()
        clock(Phase.BATCH)
        last = self.checkpoints.latest() or 0
        batch = make_batch(groups, policy=self.policy, scale=self.scale, step=last, max_staleness=self.max_staleness)
        require_trainable(batch)
        if not teaches(batch.samples, self.learner.config):
            clock.stop()
            return None
        clock(Phase.STEP)
        with engines_asleep(self.gateway, self.patience):
            learned = self.learner.step(batch.samples, current_version=f"{self.policy}@{last}")
        metrics = step_numbers(batch, learned, groups, step=last, policy=self.policy, judgements=judgements)
        return complete_step(
            self.store,
            self.checkpoints,
            self.gateway,
            self.base_model,
            self.learner.save,
            (*batch.consumed, *beside),
            metrics,
            clock,
            self.patience,
            method="grpo",
        )


def complete_step(
    store: AnyStore,
    checkpoints: Checkpoints,
    gateway: Gateway | None,
    base_model: str,
    save: Callable[[Path], None],
    consumed: tuple[Consumed, ...],
    metrics: Mapping[str, float],
    clock: Clock,
    patience: Patience = at_once,
    *,
    method: str,
) -> PolicyStep:
    """Make what a learner holds the next version: `save` writes it, then it is served and recorded."""
    clock(Phase.CHECKPOINT)
    step = (checkpoints.latest() or 0) + 1
    manifest = PolicyStep(
        policy=checkpoints.policy,
        step=step,
        adapter=str(checkpoints.path(step)),
        consumed=consumed,
        metrics=dict(metrics),
        base_model=base_model,
        time_ns=time.time_ns(),
        method=method,
    )
    patience(lambda: checkpoints.write(step, save, manifest))
    clock(Phase.PUBLISH)
    published = patience(lambda: gateway.publish(step, checkpoints.path(step))) if gateway else None
    clock(Phase.RECORD)
    numbers = dict(manifest.metrics)
    if published:
        numbers["publish_logprob_change"] = published.max_logprob_change
    clock.stop()
    numbers |= {f"{phase.value}_s": seconds for phase, seconds in clock.seconds.items()}
    done = msgspec.structs.replace(manifest, metrics=numbers)
    patience(lambda: store.append([done]))
    return done


def finish_open_step(
    store: AnyStore, checkpoints: Checkpoints, gateway: Gateway | None, patience: Patience = at_once
) -> None:
    """Record and publish the checkpoints that a killed or failed step left unrecorded or unserved.

    To be called before anyone asks the store what a policy was not trained on.
    """
    step = checkpoints.latest()
    if step is None:
        return
    recorded = {done.step for done in patience(lambda: store.policy_steps(checkpoints.policy))}
    missing = [checkpoints.manifest(n) for n in checkpoints.all_steps() if n not in recorded]
    patience(lambda: store.append(missing))
    if gateway is None:
        return
    served = patience(gateway.status)
    if served is not None and served.step != step and checkpoints.served() == step:
        patience(lambda: gateway.publish(step, checkpoints.path(step)))


def require_trainable(batch: Batch) -> None:
    """Raise NothingToTrain with the cause and the mend when a batch holds nothing to learn from."""
    if not batch.consumed:
        raise NothingToTrain(*_why_no_groups(batch.left_out))
    if not batch.samples:
        reasons = ", ".join(f"{n} calls: {why}" for why, n in sorted(batch.quarantined.items()))
        raise NothingToTrain(
            f"{len(batch.consumed)} rewarded trajectories, but no trainable token among them ({reasons or 'no call'}).",
            "GRPO needs the sampled token ids and log-probabilities: let the agent call the gateway of "
            "`arttrace serve`, which asks the engine for them.",
        )


_MENDS = {
    "no reward": "Score them with `arttrace score`, or reward them in code with arttrace.reward().",
    "alone in its group": "Run each scenario several times: GRPO compares runs of the same task.",
    "too stale": "Run the agent again under the newest version, or raise --max-staleness.",
    "incomplete": "An incomplete run was killed or is still going; `arttrace ls` names them.",
}
"""What to do about trajectories that were left out, by the reason; what comes first is told first."""


def _why_no_groups(left_out: Mapping[str, int]) -> tuple[str, str]:
    if not left_out:
        return (
            "There is nothing new to train on: no trajectory that this policy has not been trained on.",
            "Run the agent again, score the runs, and train then.",
        )
    counts = ", ".join(f"{left_out[reason]} {reason}" for reason in _MENDS if reason in left_out)
    return (
        f"There is nothing to train on. Trajectories left out: {counts}.",
        " ".join(mend for reason, mend in _MENDS.items() if reason in left_out),
    )
