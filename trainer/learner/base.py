"""BaseLearner: what every engine does around its own way of computing one optimizer step."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from arttrace.records.values.learned_tokens import Columns
from arttrace.system.errors import TrainingError
from trainer.learner.config import LearnerConfig
from trainer.learner.distributed import largest, least, rank_and_count, total
from trainer.learner.interface import NoRoom, NotFinite, OtherWeights, Progress, Sample, StepMetrics
from trainer.learner.machine.determinism import deterministic
from trainer.learner.machine.fitting import room
from trainer.learner.machine.memory import free_memory, is_out_of_memory, let_go
from trainer.learner.machine.needs import read_shape
from trainer.learner.policy_model import as_reference, fitted_to_machine, trainable
from trainer.learner.samples import PlannedStep, TokenRow, plan_step, split_minibatches, target_row
from trainer.learner.stale_adapter.check import Compared, Ways, check_nearest
from trainer.learner.stale_adapter.looked_at import Looker
from trainer.learner.stale_adapter.share import Share
from trainer.learner.state import SAMPLED, Snapshot, Weights, load_state, save_adapter, save_rest
from trainer.learner.tally import StepTally
from trainer.output.quiet import quiet
from trainer.policies.base_weights import weights_digest
from trainer.policies.learned_file import write_learned

if TYPE_CHECKING:
    from arttrace.records.sequence import TokenSequence

_SMALLEST = 256
"""Tokens of the smallest micro-batch that is tried when memory runs out."""
_ONE_IN = 1000
_MEAN_SHARE = 0.1
"""Of the bound on a token, that on the mean."""
UNSOUND = "The weights were left as they were. Lower the learning rate, or look at the last rewards and versions."
FRESHER = "The weights were left as they were. Train on fresher runs: --max-staleness."
SMALLER = "Nothing was changed. Lower micro_batch_tokens, or use --gradient-checkpointing."


class BaseLearner(ABC):
    """One policy in training. `model` is the PEFT model, `steps` the number of steps that changed it."""

    base_model: Path
    base_weights: str
    config: LearnerConfig
    model: Any
    optimizer: torch.optim.Optimizer
    steps: int
    progress: Progress | None = None
    _before_last: Weights | None = None
    _shares_beginnings = False
    """Whether what several rows have in common goes through the model once."""
    _learned: Sequence[Columns] = ()
    """What the last step computed for each token; none where the weights are not those it left."""

    def __init__(self, base_model: Path, config: LearnerConfig | None) -> None:
        """Raises TrainingError when the config makes no sense, or the base model is of a family that cannot be
        trained."""
        asked = (config or LearnerConfig()).checked()
        self.base_model = base_model
        self.base_weights = weights_digest(base_model)
        self.config = fitted_to_machine(asked, base_model)
        self.steps = 0
        self._looker = Looker(rounded=self._is_rounded, shares_beginnings=self._shares_beginnings)
        self._ways = Ways()
        self._budget = self.config.micro_batch_tokens or 1
        self._may_grow = asked.micro_batch_tokens is None
        self._may_keep_layers = asked.gradient_checkpointing is None and rank_and_count()[1] == 1

    def refit(self) -> None:
        """Let micro-batches grow into the memory that is free now: see `Learner.refit`."""
        if self._may_grow:
            checkpointing = bool(self.config.gradient_checkpointing)
            free = free_memory(self.config.runs_on)
            tokens = room(self.config, read_shape(self.base_model), free, checkpointing=checkpointing)
            self._budget = max(self._budget, tokens)

    @abstractmethod
    def _train(self, plans: Sequence[PlannedStep], current_version: str | None, tally: StepTally) -> None:
        """Take `epochs` times one optimizer step per plan. Raises TrainingError when the numbers are not sound."""

    def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
        """Train once on the samples: see `Learner.step`."""
        started = time.perf_counter()
        whole = plan_step(samples, self.config)
        parts = split_minibatches(samples, self.config.minibatches)
        plans = [whole] if len(parts) == 1 else [plan_step(part, self.config) for part in parts]
        plans = [plan for plan in plans if plan.rows]
        if not plans:
            return StepMetrics(
                trajectories=whole.trajectories,
                trained_tokens=whole.trained_tokens,
                skipped=True,
                step_s=time.perf_counter() - started,
            )
        self._check_vocabulary(whole.rows, lambda run: samples[run].sequences[0].trajectory_id)
        self._budget = least(self._budget)  # ranks share the micro-batches out among themselves
        # The learning rate is the config's, not a loaded optimizer's: it may be changed between runs.
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] = self.config.learning_rate_at(self.steps)
        before = Snapshot(self.model, self.optimizer) if len(plans) * self.config.epochs > 1 else None
        weights = Weights(self.model) if before is None else before.weights
        try:
            with quiet(), deterministic(self.config):
                tally = self._within_memory(samples, whole, plans, current_version, before)
        except BaseException as error:
            let_go(error)  # what follows needs memory
            if before is not None:
                before.restore()
            if is_out_of_memory(error):
                longest = max(whole.rows, key=lambda row: len(row.token_ids))
                run = samples[longest.trajectory].sequences[0].trajectory_id
                raise NoRoom(
                    f"The step needs more memory than there is: {error} (the longest row, of trajectory {run}, has "
                    f"{len(longest.token_ids)} tokens)",
                    SMALLER,
                ) from error
            raise
        finally:
            self.model.zero_grad(set_to_none=True)
        self.steps += 1
        self._before_last = weights
        self._learned = tally.kept()
        return _metrics(whole, tally, self._budget, time.perf_counter() - started)

    def _within_memory(
        self,
        samples: Sequence[Sample],
        whole: PlannedStep,
        plans: Sequence[PlannedStep],
        current_version: str | None,
        before: Snapshot | None,
    ) -> StepTally:
        """Check and train, in smaller micro-batches from the beginning again where memory runs out."""
        looked_at = self._looked_at(whole.rows, current_version)  # once: a dear look is paid for
        checked: int | None = None
        while True:
            tally = StepTally()
            try:
                if checked is None:
                    checked = self._check_version(looked_at, current_version, samples)
                tally.checked = checked
                self._train(plans, current_version, tally)
                return tally
            except RuntimeError as error:
                unchanged = before is not None or not tally.optimizer_steps
                if not unchanged or not self._may_retreat(error):
                    raise
                keeps_less = checked is not None and self._keep_no_layers()
                if not keeps_less and self._budget <= _SMALLEST:
                    raise
                let_go(error)
            if before is not None:
                before.restore()
            self.model.zero_grad(set_to_none=True)
            if not keeps_less:
                self._halve_budget()
            elif self.config.runs_on == "cuda":
                torch.cuda.empty_cache()

    def rate(
        self, sequences: Sequence[TokenSequence], computed: Callable[[int], None] = lambda tokens: None
    ) -> list[tuple[float | None, ...]]:
        """Rate what was sampled by the base model: see `Learner.rate`."""
        rows = [row for n, one in enumerate(sequences) if (row := target_row(one, 0.0, 1.0, n)) is not None]
        self._check_vocabulary(rows, lambda run: sequences[run].trajectory_id)
        found: list[tuple[float | None, ...]] = [(None,) * len(one.token_ids) for one in sequences]
        waiting, done = rows, 0
        computed(done)
        while waiting:
            rated: set[int] = set()
            try:
                with (
                    quiet(),
                    deterministic(self.config),
                    as_reference(self.model, replace(self.config, kl_reference=None)),
                ):
                    for part, logps in self._rated(waiting):
                        values = iter(logps.tolist())
                        for row in part:
                            own = [next(values) if target else None for target in row.targets]
                            found[row.trajectory] = (*own, *found[row.trajectory][len(own) :])
                            rated.add(row.trajectory)
                            done += sum(row.targets)
                        computed(done)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                let_go(error)
                if self._budget <= _SMALLEST:
                    raise NoRoom(
                        f"Rating what was sampled needs more memory than there is: {error}", SMALLER
                    ) from error
                self._halve_budget()
            waiting = [row for row in waiting if row.trajectory not in rated]
        return found

    @abstractmethod
    def _rated(self, rows: Sequence[TokenRow]) -> Iterator[tuple[Sequence[TokenRow], torch.Tensor]]:
        """The log-probabilities of the targets of all rows, part by part: rows, and theirs one after the other."""

    def _halve_budget(self) -> None:
        if self.config.runs_on == "cuda":
            torch.cuda.empty_cache()
        self._budget, self._may_grow = self._budget // 2, False  # for the steps to come as well

    def _keep_no_layers(self) -> bool:
        """Compute all layers again from now on, where some were not. Whether that takes less memory than before."""
        return False

    def _may_retreat(self, error: BaseException) -> bool:
        """Whether smaller micro-batches may help; the ranks of several must take the same ones."""
        return is_out_of_memory(error) and rank_and_count()[1] == 1

    @property
    def _numbers(self) -> torch.dtype:
        """Of captured numbers and losses."""
        return torch.float64 if self.config.dtype == "float64" else torch.float32

    def _counting(self, tally: StepTally) -> Callable[[int], None]:
        """Is called with the tokens of each micro-batch, and reports how many of the step's are done."""
        tell = self.progress(self.config.epochs * int(tally.forwarded_tokens)) if self.progress else None
        done = 0

        def computed(tokens: int) -> None:
            nonlocal done
            done += tokens
            if tell is not None:
                tell(done)

        return computed

    def save(self, directory: Path) -> None:
        """Write all of it: both of the following."""
        self.save_adapter(directory)
        self.save_rest(directory)

    def save_adapter(self, directory: Path) -> None:
        """Write the adapter, as vLLM and PEFT load it."""
        save_adapter(directory, self.model, self.config)

    def save_rest(self, directory: Path) -> None:
        """Write what is needed beside it to go on exactly, and what the last step computed for each token."""
        save_rest(directory, self.model, self.optimizer, self.steps, self.config, SAMPLED)
        if self._learned:
            write_learned(directory, self._learned)

    def load(self, directory: Path) -> str:
        """Go on from what `save` wrote; see `Learner.load`. Raises TrainingError when it is missing, damaged or of
        another shape."""
        self._learned = ()
        self.steps, note = load_state(directory, self.model, self.optimizer, self.config, SAMPLED)
        policy, _, step = directory.name.rpartition("@")
        number = int(step) - 1 if step.isdecimal() else -1
        self._before_last = Weights.of_version(self.model, directory.with_name(f"{policy}@{number}"))
        return note

    def check_before_optimizer_step(self, tally: StepTally) -> None:
        """Raises TrainingError when the gradients, the agreement with the engine that sampled, or the way that the
        policy has come from its reference are not sound."""
        if not math.isfinite(float(total(torch.tensor(tally.loss)))):
            raise NotFinite("The loss is not a finite number.", UNSOUND)
        if tally.optimizer_steps == 0:
            self._check_agreement(tally)
        if self.config.max_kl is not None:
            summed, targets = total(torch.tensor([tally.kl, tally.targets], dtype=torch.float64)).tolist()
            kl = summed / max(targets, 1)
            if not kl <= self.config.max_kl:
                raise TrainingError(
                    f"The policy is {kl:.3g} nats per token away from its reference (KL); the bound is "
                    f"{self.config.max_kl:g}.",
                    "Go on from an earlier version with `arttrace policies fork`, with a lower learning rate or a "
                    "larger --kl-weight; or raise --max-kl.",
                )
        seen, far = total(torch.tensor([tally.targets, tally.far], dtype=torch.float64)).tolist()
        if tally.optimizer_steps == 0 and far and far == seen:
            raise NotFinite("The policy has moved too far from every token since it was sampled.", FRESHER)
        gradients = [p.grad for p in trainable(self.model).values() if p.grad is not None]
        # One number for all: asking each would wait for the card as often. A norm beyond all numbers would be clipped
        # to nothing.
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            raise NotFinite("A gradient is not a finite number.", UNSOUND)
        masks_only = self.config.correction.endswith("mask") and not self.config.kl_weight
        nothing = masks_only and tally.optimizer_steps == 0 and not norm
        if nothing and not any(gradient.any() for gradient in gradients):
            raise NotFinite(
                "The importance mask left out every token: the policy has moved too far since it sampled them.",
                "Train on fresher runs (--max-staleness), or raise importance_clip_max above "
                f"{self.config.importance_clip_max}.",
            )

    def _check_agreement(self, tally: StepTally) -> None:
        """Raises OtherWeights when the engine's log-probabilities and the learner's differ in more than single tokens,
        or in the mean."""
        bound = self.config.logprob_bound
        worst = float(largest(torch.tensor(tally.difference_max_current)))
        counts = [tally.difference_current, float(tally.compared_current), float(tally.beyond)]
        summed, compared, beyond = total(torch.tensor(counts, dtype=torch.float64)).tolist()
        many = beyond > max(1, compared // _ONE_IN)
        if not compared or not (many or math.isnan(worst) or summed / compared > bound * _MEAN_SHARE):
            return
        raise OtherWeights(
            "The log-probabilities captured from the current policy version differ from the learner's by up to "
            f"{worst:.3g} nats, by {summed / compared:.3g} in the mean; the bound is {bound:.3g}, and {beyond:.0f} of "
            f"{compared:.0f} tokens are beyond it.",
            "The engine serves other weights than the learner holds (a stale adapter, another base model, another "
            "precision), or did not sample at temperature 1. Restart serving from the newest version; if the "
            "precision differs on purpose, raise --max-logprob-difference.",
            bound,
        )

    def _looked_at(self, rows: Sequence[TokenRow], current_version: str | None) -> list[TokenRow]:
        """Those at which the versions are compared; none before the first step, and without a bound."""
        if current_version is None or not self.steps or not self.config.checks_logprobs:
            return []
        return self._looker.choose(rows, current_version)

    def _check_version(self, rows: Sequence[TokenRow], current_version: str | None, samples: Sequence[Sample]) -> int:
        """At how many tokens of the rows it looked. Raises OtherWeights when the engine sampled with another version
        than it says."""
        if current_version is None or not rows:
            return 0
        shares = self._shares_gone(rows, current_version)
        check_nearest(shares, current_version, lambda run: samples[run].sequences[0].trajectory_id)
        return max(share.tokens for share in shares.values())

    def _shares_gone(self, rows: Sequence[TokenRow], current_version: str) -> dict[str, Share]:
        """How much of the way to other versions what was captured from the current one has gone, by their names."""
        others = {"the base model": Weights.of_base_model(self.model)}
        if self._before_last is not None:
            others["the version before it"] = self._before_last
        compare = partial(self._compared, rows, current_version)
        return self._ways.shares_gone(compare, Weights(self.model), others, rounded=self._is_rounded)

    @property
    def _is_rounded(self) -> bool:
        return self.config.computes_in == "bfloat16"

    @abstractmethod
    def _compared(self, rows: Sequence[TokenRow], current_version: str) -> Compared:
        """What was captured from the current version beside what the model gives now."""

    def _check_vocabulary(self, rows: Sequence[TokenRow], run: Callable[[int], str]) -> None:
        """`run` names the trajectory of a row."""
        size = self.model.get_input_embeddings().weight.shape[0]
        for row in rows:
            least, largest = min(row.token_ids), max(row.token_ids)
            if least < 0 or largest >= size:
                raise TrainingError(
                    f"Token id {least if least < 0 else largest} of trajectory "
                    f"{run(row.trajectory)} is outside the base model's vocabulary of {size}.",
                    f"The trajectory was sampled by another model than {self.base_model}: name that one as the base "
                    "model, or leave the trajectory out.",
                )


def _metrics(plan: PlannedStep, tally: StepTally, budget: int, seconds: float) -> StepMetrics:
    steps, targets = max(tally.optimizer_steps, 1), max(tally.targets, 1)
    return StepMetrics(
        loss=tally.loss / steps,
        grad_norm=tally.grad_norm / steps,
        trajectories=plan.trajectories,
        trained_tokens=plan.trained_tokens,
        forwarded_tokens=tally.forwarded_tokens,
        micro_batch_tokens=budget,
        ratio_mean=tally.ratio / targets,
        clip_fraction=tally.clipped / targets,
        entropy=tally.entropy / targets,
        kl=tally.kl / targets,
        logprob_difference_mean=tally.difference / max(tally.compared, 1),
        logprob_difference_max=tally.difference_max,
        masked_tokens=tally.beyond,
        far_tokens=tally.far,
        checked_tokens=tally.checked,
        step_s=seconds,
    )
