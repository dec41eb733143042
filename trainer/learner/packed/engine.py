"""PackedLearner: the engine that computes every distinct token of a batch once, without padding.

Rows become forests (forest.py), attention follows their branches (attention.py), the output head sees targets only
(head.py). Prefixes that trajectories share are computed once and keep their gradient; advantages and loss terms stay
those of each trajectory.

Under torch.distributed every rank is given the same samples and computes its share of the forests; normalisers are
those of the whole batch, so that the sum of the ranks' gradients is the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.distributed import rank_and_count, total
from trainer.learner.machine.determinism import deterministic
from trainer.learner.packed.attention import NAME, Kernel, usual_kernel, visiting
from trainer.learner.packed.checks import check_model
from trainer.learner.packed.forest import Forest, plant, split_forests
from trainer.learner.packed.head import Head, log_probabilities
from trainer.learner.packed.layers.kept import KeptLayers
from trainer.learner.packed.layers.lora import add_within_products
from trainer.learner.packed.layers.norms import norm_in_one_kernel
from trainer.learner.packed.layers.rotary import rotate_by_halves
from trainer.learner.packed.losses import Before, loss_terms, trajectory_sums
from trainer.learner.policy_model import (
    as_reference,
    checkpoint_layers,
    in_its_precision,
    load_policy,
    make_optimizer,
    take_inputs_as_they_are,
    trainable,
)
from trainer.learner.samples import PlannedStep, TokenRow
from trainer.learner.stale_adapter.check import Compared, answers_of
from trainer.learner.tally import StepTally
from trainer.output.quiet import quiet
from trainer.policies.learned_file import Fates


@dataclass(frozen=True, slots=True)
class _Minibatch:
    """One optimizer step's worth: its forests, and what is known about the targets of each."""

    plan: PlannedStep
    forests: tuple[Forest, ...]
    before: tuple[Before, ...]


class PackedLearner(BaseLearner):
    """GRPO on recorded trajectories. Base model: any causal LM whose attention transformers lets one choose."""

    _shares_beginnings = True

    def __init__(self, base_model: Path, config: LearnerConfig | None = None) -> None:
        """Raises TrainingError when the model cannot be loaded or packed, or the config makes no sense."""
        super().__init__(base_model, config)
        self.kernel: Kernel = usual_kernel(self.config.runs_on)
        with quiet():
            self.model = load_policy(base_model, self.config, NAME)
        if self.config.dtype == "bfloat16":
            take_inputs_as_they_are(self.model)
        add_within_products(self.model)
        norm_in_one_kernel(self.model)
        rotate_by_halves(self.model)
        self.model.eval()  # no dropout
        causal = self.model.get_base_model()
        if self.config.gradient_checkpointing:
            checkpoint_layers(causal)
            self.model.train()
        self.layers = KeptLayers(causal, self.config, may_keep=self._may_keep_layers)
        self.optimizer = make_optimizer(self.model, self.config)
        self._decoder, self._head = causal.get_decoder(), Head.of(causal)
        with in_its_precision(self.config), deterministic(self.config):
            check_model(causal, self._head, self.config.runs_on, self.kernel)

    def _train(self, plans: Sequence[PlannedStep], current_version: str | None, tally: StepTally) -> None:
        minibatches = [
            self._prepare(plan, current_version, several=len(plans) > 1, compared=tally if number else None)
            for number, plan in enumerate(plans)
        ]
        tally.forwarded_tokens = sum(forest.token_ids.numel() for one in minibatches for forest in one.forests)
        computed = self._counting(tally)
        for epoch in range(self.config.epochs):
            tally.first_pass = epoch == 0
            for minibatch in minibatches:
                self._optimise(minibatch, tally, computed)
        tally.gather()

    def _compared(self, rows: Sequence[TokenRow], current_version: str) -> Compared:
        runs = split_forests(rows, self._budget)
        found = Compared([], [], [], list(answers_of([row for run in runs for row in run.rows], current_version)))
        for run in runs:
            forest = plant(run, current_version=current_version, device=self.config.runs_on, dtype=self._numbers)
            with torch.no_grad():
                logps, entropies = self._score(forest)
            temperatures = forest.temperatures[forest.prediction]
            for values, those in zip((logps, forest.logprobs, entropies), found[:3], strict=True):
                those += (values * temperatures)[forest.current].tolist()
        return found

    def _rated(self, rows: Sequence[TokenRow]) -> Iterator[tuple[Sequence[TokenRow], torch.Tensor]]:
        for run in split_forests(rows, self._budget):
            forest = plant(run, current_version=None, device=self.config.runs_on, dtype=self._numbers)
            yield run.rows, self._score(forest)[0]

    def _prepare(
        self, plan: PlannedStep, current_version: str | None, *, several: bool, compared: StepTally | None
    ) -> _Minibatch:
        """Forests, and the log-probabilities that the step itself would change: the policy's now, the reference's.

        Of a later minibatch, what the current version sampled is compared with it now, and `compared` counts."""
        config = self.config
        rank, ranks = rank_and_count()
        runs = split_forests(plan.rows, self._budget)
        forests = tuple(
            plant(run, current_version=current_version, device=config.runs_on, dtype=self._numbers)
            for run in runs[rank::ranks]
        )
        before = [Before(sampled=forest.logprobs, old=forest.logprobs) for forest in forests]
        apart = config.weight_of_trajectory and (len(runs) > 1 or ranks > 1)
        scored_ahead = config.correction != "clip" and (several or config.epochs > 1 or apart)
        if scored_ahead:
            with torch.no_grad():
                before = [
                    replace(known, old=self._score(forest)[0]) for known, forest in zip(before, forests, strict=True)
                ]
            for known, forest in zip(before, forests, strict=True):
                self._leave_out_strangers(forest, known.old)
        if compared is not None:
            for known, forest in zip(before, forests, strict=True):
                self._compare_ahead(forest, known.old if scored_ahead else None, compared)
        if config.kl_weight:
            with as_reference(self.model, config):
                before = [
                    replace(known, reference=self._score(forest)[0])
                    for known, forest in zip(before, forests, strict=True)
                ]
        if config.weight_of_trajectory and scored_ahead:
            moved = total(self._sums(forests, [known.old - known.sampled for known in before], plan.samples))[0]
            before = [
                replace(known, trajectory_moved=moved[forest.trajectory].to(known.old.dtype))
                for known, forest in zip(before, forests, strict=True)
            ]
        return _Minibatch(plan, forests, tuple(before))

    def _sums(self, forests: Sequence[Forest], values: Sequence[torch.Tensor], samples: int) -> torch.Tensor:
        """Per trajectory, the sum over this rank's targets, and their number; without those that were left out."""
        kept = [forest.weights > 0 for forest in forests]
        return trajectory_sums(
            [some[of] for some, of in zip(values, kept, strict=True)],
            [forest.trajectory[of] for forest, of in zip(forests, kept, strict=True)],
            samples,
            self.config.runs_on,
        )

    def _optimise(self, minibatch: _Minibatch, tally: StepTally, computed: Callable[[int], None]) -> None:
        shifts = self._trajectory_shifts(minibatch, first=tally.optimizer_steps == 0)
        loss = 0.0
        for forest, known in zip(minibatch.forests, minibatch.before, strict=True):
            loss += self._accumulate(forest, known, minibatch.plan, shifts, tally)
            computed(forest.token_ids.numel())
        tally.loss += loss
        parameters = list(trainable(self.model).values())
        for parameter in parameters:
            if parameter.grad is None:  # a rank without a forest
                parameter.grad = torch.zeros_like(parameter)
            total(parameter.grad)
        self.check_before_optimizer_step(tally)
        tally.grad_norm += float(torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        tally.optimizer_steps += 1

    def _accumulate(
        self, forest: Forest, known: Before, plan: PlannedStep, shifts: torch.Tensor | None, tally: StepTally
    ) -> float:
        """Add the gradients of one forest; returns its part of the loss."""
        config = self.config
        self.layers.choose(forest.layout.tokens)
        with visiting(forest.layout, self.kernel):  # the backward pass may compute layers again
            logps, entropies = self._score(forest)
            if tally.optimizer_steps == 0:
                self._leave_out_strangers(forest, logps.detach())
            if config.correction != "clip" and known.old is known.sampled:
                known = replace(known, old=logps.detach())
            if config.weight_of_trajectory and known.trajectory_moved is None:
                moved = self._sums([forest], [known.old - known.sampled], plan.samples)[0]
                known = replace(known, trajectory_moved=moved[forest.trajectory].to(logps.dtype))
            if config.ratio_of_trajectory:
                if shifts is None:
                    sums = self._sums([forest], [logps.detach() - known.old], plan.samples)
                    shifts = sums[0] / sums[1].clamp(min=1)
                known = replace(known, trajectory_shift=shifts[forest.trajectory].to(logps.dtype))
            left_out = forest.weights == 0
            # Without a weight, but a ratio that is not finite would be one in the gradient all the same.
            known = replace(known, old=torch.where(left_out, logps.detach(), known.old))
            terms = loss_terms(config, logps, forest.advantages, known)
            loss = (forest.weights * terms.loss).sum() / plan.normaliser
            loss.backward()
        far = terms.far & ~left_out
        fates = Fates(terms.clipped, left_out | far, terms.masked)
        tally.keep(forest.rows, logps, terms.ratio, fates)
        tally.targets += logps.numel()
        tally.ratio += float(terms.ratio.sum())
        tally.clipped += int((terms.clipped | terms.masked).sum())
        tally.far += int(far.sum())
        tally.entropy += float(entropies.sum())
        tally.kl += float(terms.kl.sum())
        heat = forest.temperatures[forest.prediction]
        tally.compare(logps.detach(), known.sampled, forest.current, heat, config.logprob_bound)
        return float(loss.detach())

    def _keep_no_layers(self) -> bool:
        return self.layers.give_up()

    def _compare_ahead(self, forest: Forest, logps: torch.Tensor | None, tally: StepTally) -> None:
        """Before the first optimizer step; at its minibatch's turn the weights are no longer those that sampled."""
        if not bool(forest.current.any()):
            return
        if logps is None:
            with torch.no_grad():
                logps = self._score(forest)[0]
            self._leave_out_strangers(forest, logps)
        heat = forest.temperatures[forest.prediction]
        tally.compare(logps, forest.logprobs, forest.current, heat, self.config.logprob_bound)

    def _leave_out_strangers(self, forest: Forest, logps: torch.Tensor) -> None:
        """Targets of the current version beyond the bound get no weight, in this pass and the later ones; `logps` are
        from before the first optimizer step."""
        if bool(forest.current.any()):
            gap = (logps - forest.logprobs).abs() * forest.temperatures[forest.prediction]
            forest.weights.masked_fill_(forest.current & ~(gap <= self.config.logprob_bound), 0.0)

    def _trajectory_shifts(self, minibatch: _Minibatch, *, first: bool) -> torch.Tensor | None:
        """For one ratio per trajectory over several forests, which may split it: its mean log-ratio, (samples,)."""
        if not self.config.ratio_of_trajectory or (len(minibatch.forests) == 1 and rank_and_count()[1] == 1):
            return None
        with torch.no_grad():
            now = [self._score(forest)[0] for forest in minibatch.forests]
        for forest, logps in zip(minibatch.forests, now, strict=True) if first else ():
            self._leave_out_strangers(forest, logps)
        olds = [
            logps if self.config.correction != "clip" and known.old is known.sampled else known.old
            for logps, known in zip(now, minibatch.before, strict=True)
        ]
        shifts = [logps - old for logps, old in zip(now, olds, strict=True)]
        sums = self._sums(minibatch.forests, shifts, minibatch.plan.samples)
        return total(sums[0]) / total(sums[1]).clamp(min=1)

    def _score(self, forest: Forest) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability and entropy at each target, both (M,)."""
        with visiting(forest.layout, self.kernel), in_its_precision(self.config):
            hidden = self._decoder(
                input_ids=forest.token_ids[None], position_ids=forest.layout.positions[None], use_cache=False
            ).last_hidden_state[0]
        logps, entropies = log_probabilities(
            self._head, hidden[forest.predict_at], forest.predict_id, forest.temperatures
        )
        return logps[forest.prediction], entropies[forest.prediction]
