"""PolicyTrainer: one step of GRPO from scored groups to the next policy: batch, step, checkpoint, publish, record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from arttrace.records.group import Group
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.reward import Judgement
from arttrace.records.sequence import NotTrained
from arttrace.store import AnyStore
from arttrace.system.errors import TrainingError
from trainer.grpo.advantages import STD_FLOOR, Scale
from trainer.grpo.batch import TrainingBatch, make_batch
from trainer.grpo.metrics import step_numbers
from trainer.learner.interface import Learner, OtherWeights, StepMetrics, teaches
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.made_here import made_here
from trainer.policies.refused_runs import REFUSED_RUNS, refuse_runs
from trainer.policies.retention import KEPT_STATES
from trainer.step.engines import engines_asleep
from trainer.step.left_out import calls_in_words, in_words
from trainer.step.phases import Clock, Phase
from trainer.step.retry import Retry, no_retry
from trainer.step.version import PublishingGateway, complete_step, finish_open_step, require_recorded_versions

_ONE_LOSS = ("grpo", "distill")
"""Methods between which the optimizer keeps its moments."""


class NothingToTrain(TrainingError):
    """A batch without anything to learn from."""


@dataclass(frozen=True, slots=True)
class PolicyTrainer:
    """Trains one policy: its store, learner, checkpoints, and the gateway that serves it (None: not served).

    `scale` is how rewards are scaled within a group, `std_floor` the least that it divides by; trajectories sampled
    more than `max_staleness` steps before the newest version are left out (None: none are); `keep_states` of the
    newest versions keep their optimizer state. What may fail for a while is done by `retry`; `say` is told what is to
    be known of the optimizer.
    """

    policy: str
    base_model: str
    store: AnyStore
    learner: Learner
    checkpoints: Checkpoints
    gateway: PublishingGateway | None = None
    scale: Scale = "none"
    std_floor: float = STD_FLOOR
    keep_states: int = KEPT_STATES
    max_staleness: int | None = None
    retry: Retry = no_retry
    say: Callable[[str], None] = lambda line: None

    def resume(self) -> int:
        """Take the newest checkpoint, finish what it left open, and return its step (0: none yet)."""
        require_recorded_versions(self.store, self.checkpoints, self.retry)
        step = self.checkpoints.latest()
        if step is None:
            return 0
        if note := self.learner.load(self.checkpoints.path(step)):
            self.say(note)
        finish_open_step(self.store, self.checkpoints, self.gateway, self.retry)
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
        return self.train_on(self.batch(groups), clock, beside=beside, judgements=judgements)

    def batch(self, groups: Sequence[Group], refused: Collection[str] = ()) -> TrainingBatch:
        """What a step on scored groups after the newest version trains on, and what it leaves out: of runs that a step
        was refused for, whose ids are `refused`, too."""
        return make_batch(
            groups,
            policy=self.policy,
            scale=self.scale,
            std_floor=self.std_floor,
            step=self.checkpoints.latest() or 0,
            max_staleness=self.max_staleness,
            made=made_here(self.checkpoints),
            refused=refused,
        )

    def train_on(
        self,
        batch: TrainingBatch,
        clock: Clock | None = None,
        *,
        beside: tuple[Consumed, ...] = (),
        judgements: Sequence[Judgement] = (),
    ) -> PolicyStep | None:
        """As `train`, on a batch that was made of scored groups for the newest version."""
        clock = clock or Clock()
        require_recorded_versions(self.store, self.checkpoints, self.retry)
        require_trainable(batch)
        if not teaches(batch.samples, self.learner.config):
            clock.stop()
            return None
        if note := self._moments_go_on(batch.method):
            self.say(note)
        clock(Phase.STEP)
        with engines_asleep(self.gateway, self.retry, lora_rank=self.learner.config.rank) as asleep:
            if asleep:
                self.learner.refit()
            learned = self._learned(batch, f"{self.policy}@{batch.step}")
        return complete_step(
            self.store,
            self.checkpoints,
            self.gateway,
            self.base_model,
            self.learner,
            (*batch.consumed, *beside),
            step_numbers(batch, learned, judgements),
            clock,
            self.retry,
            method=batch.method,
            keep_states=self.keep_states,
        )

    def _moments_go_on(self, method: str) -> str:
        step = self.checkpoints.latest()
        before = self.checkpoints.manifest(step).made_by if step else method
        if before == method or before not in _ONE_LOSS:
            return ""
        return f"AdamW's moments go on from {self.policy}@{step}, which {before} made: the loss of {method} is the same"

    def _learned(self, batch: TrainingBatch, current: str) -> StepMetrics:
        try:
            return self.learner.step(batch.samples, current_version=current)
        except OtherWeights as error:
            named = {q.trajectory_id for one in batch.samples for q in one.sequences if current in q.policy_versions}
            follows = self._refused(sorted(named), error.bound)
            raise OtherWeights(error.message, f"{error.hint} {follows}", error.bound) from error

    def _refused(self, ids: Sequence[str], bound: float | None) -> str:
        """Leave these out from now on; returns what is said of it."""
        try:
            refuse_runs(self.checkpoints.directory, ids, bound)
        except OSError as error:
            return (
                f"The version's runs in this step could not be noted in {self.checkpoints.directory / REFUSED_RUNS} "
                f"({error.strerror or error}): free disk space, or they are refused once more."
            )
        later = "" if bound is None else ", or until the bound is larger"
        return f"The version's runs in this step are left out from now on{later}."


def require_trainable(batch: TrainingBatch) -> None:
    """Raise NothingToTrain with the cause and the hint when a batch holds nothing to learn from."""
    if not batch.consumed:
        raise NothingToTrain(*_why_no_groups(batch.left_out))
    if not batch.samples:
        reasons, remedies = calls_in_words(batch.quarantined)
        raise NothingToTrain(
            f"{len(batch.consumed)} rewarded trajectories, but no trainable token among them ({reasons}).", remedies
        )


def _why_no_groups(left_out: Mapping[NotTrained, int]) -> tuple[str, str]:
    if not left_out:
        return (
            "There is nothing new to train on: no trajectory that this policy has not been trained on.",
            "Run the agent again, score the runs, and train then.",
        )
    counts, remedies = in_words(left_out)
    return f"There is nothing to train on. Trajectories left out: {counts}.", remedies
