"""TrlLearner: the engine on TRL's GRPOTrainer, padded rows and all: what the field trusts, and our cross-check."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from arttrace.system.errors import TrainingError
from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.policy_model import checkpoint_layers, keeping_precision, load_policy, make_optimizer
from trainer.learner.samples import PlannedStep, TokenRow, pad_rows, split_rows
from trainer.learner.stale_adapter.check import Compared, answers_of
from trainer.learner.tally import StepTally
from trainer.learner.trl.trainer import GivenTrajectoriesTrainer
from trainer.output.quiet import quiet


class TrlLearner(BaseLearner):
    """GRPO on recorded trajectories. Base model: any causal LM in Hugging Face form, from a directory."""

    def __init__(self, base_model: Path, config: LearnerConfig | None = None) -> None:
        """Raises TrainingError when the model cannot be loaded or the config makes no sense."""
        super().__init__(base_model, config)
        if self.config.correction != "clip":
            raise TrainingError(
                f"The trl engine has no importance correction {self.config.correction!r}.",
                "Train with --engine packed.",
            )
        if self.config.kl_weight and self.config.kl_estimator != "k3":
            raise TrainingError("The trl engine has no KL estimator but k3.", "Train with --engine packed.")
        if self.config.kl_weight and self.config.use_bias_correction_kl and self.config.ratio_of_trajectory:
            raise TrainingError(
                "TRL corrects the KL term by the ratio of the row, where the loss has one, which is not unbiased.",
                "Train with --engine packed, which takes the token's, or with --no-use-bias-correction-kl.",
            )
        self._scratch = tempfile.TemporaryDirectory(prefix="arttrace-learner-")
        with quiet():
            self.model = load_policy(base_model, self.config)
            if self.config.gradient_checkpointing:
                checkpoint_layers(self.model.get_base_model())
            self.optimizer = make_optimizer(self.model, self.config)
            with keeping_precision(self.model):
                self._trainer = GivenTrajectoriesTrainer(
                    self.model, self.optimizer, self.config, self.check_before_optimizer_step, Path(self._scratch.name)
                )

    def _train(self, plans: Sequence[PlannedStep], current_version: str | None, tally: StepTally) -> None:
        minibatches = []
        for number, plan in enumerate(plans):
            self._check_rows(plan)
            parts = split_rows(plan.rows, self._budget)
            batches = [
                pad_rows(
                    rows,
                    current_version=current_version,
                    device=self.config.runs_on,
                    dtype=self._numbers,
                )
                for rows in parts
            ]
            tally.forwarded_tokens += sum(batch.token_ids.numel() for batch in batches)
            minibatches.append((self._trainer.prepare(batches, plan.normaliser), parts))
            if number:
                self._trainer.compare_ahead(minibatches[-1][0], tally)
        computed = self._counting(tally)
        for epoch in range(self.config.epochs):
            tally.first_pass = epoch == 0
            for minibatch, parts in minibatches:
                self._trainer.optimise(minibatch, parts, tally, computed)

    def _compared(self, rows: Sequence[TokenRow], current_version: str) -> Compared:
        parts = split_rows(rows, self._budget)
        found = Compared([], [], [], list(answers_of([row for part in parts for row in part], current_version)))
        for part in parts:
            batch = pad_rows(part, current_version=current_version, device=self.config.runs_on, dtype=self._numbers)
            current = batch.current & (batch.weights > 0)
            logps, entropies = self._trainer.scored(batch)
            for values, those in zip((logps, batch.logprobs, entropies), found[:3], strict=True):
                those += (values * batch.temperatures)[current].tolist()
        return found

    def _check_rows(self, plan: PlannedStep) -> None:
        if self.config.ratio_of_trajectory and len({row.trajectory for row in plan.rows}) < len(plan.rows):
            raise TrainingError(
                "TRL takes one ratio per row, and a trajectory of this batch is several rows.",
                "Train with --engine packed, which takes it per trajectory.",
            )
        if self.config.ratio_of_trajectory and any(row.token_advantages for row in plan.rows):
            raise TrainingError(
                "TRL takes one ratio per row with the mean of its tokens' advantages, where tokens have their own.",
                "Train with --engine packed, or with one ratio per token.",
            )

    def _rated(self, rows: Sequence[TokenRow]) -> Iterator[tuple[Sequence[TokenRow], torch.Tensor]]:
        for part in split_rows(rows, self._budget):
            batch = pad_rows(part, current_version=None, device=self.config.runs_on, dtype=self._numbers)
            yield part, self._trainer.scored(batch)[0][batch.weights > 0]
