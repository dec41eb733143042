"""TrlLearner: the engine on TRL's GRPOTrainer and PEFT, with weights and optimizer that live across steps."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from arttrace.errors import TrainingError
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample, StepMetrics
from trainer.learner.quiet import quiet
from trainer.learner.samples import Plan, pad_rows, plan_step, split_rows
from trainer.learner.trl_trainer import GivenTrajectoriesTrainer, Tally

_STATE, _ADAPTER = "trainer_state.pt", "adapter_model.safetensors"


class TrlLearner:
    """GRPO on given trajectories. Base model: any causal LM in Hugging Face form, from a directory.

    `model` is the PEFT model in training, `steps` the number of steps that changed it.
    """

    def __init__(self, base_model: Path, config: LearnerConfig | None = None) -> None:
        """Raises TrainingError when the model cannot be loaded or the config makes no sense."""
        self.base_model = base_model
        self.config = (config or LearnerConfig()).checked()
        self.steps = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="arttrace-learner-")
        with quiet():
            self._trainer = GivenTrajectoriesTrainer(
                _load_base(base_model, self.config), self.config, Path(self._scratch.name)
            )

    @property
    def model(self) -> Any:
        """The PEFT model in training."""
        return self._trainer.model

    def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
        """Train once on the samples: see `Learner.step`."""
        started = time.perf_counter()
        plan = plan_step(samples, loss=self.config.loss, keep_zero_advantage=self.config.kl_weight > 0)
        if not plan.rows:
            return StepMetrics(
                trajectories=plan.trajectories,
                trained_tokens=plan.trained_tokens,
                skipped=True,
                step_s=time.perf_counter() - started,
            )
        self._check_vocabulary(plan)
        batches = [
            pad_rows(
                rows,
                current_version=current_version,
                device=self.config.device,
                dtype=torch.float64 if self.config.dtype == "float64" else torch.float32,
            )
            for rows in split_rows(plan.rows, self.config.micro_batch_tokens)
        ]
        # The learning rate is the config's, not a loaded optimizer's: it may be changed between runs.
        for group in self._trainer.optimizer.param_groups:
            group["lr"] = group["initial_lr"] = self.config.learning_rate_at(self.steps)
        before = self._snapshot() if self.config.epochs > 1 else None
        try:
            with quiet():
                tally = self._trainer.run(batches, plan.normaliser)
        except TrainingError:
            if before is not None:
                self._restore(before)
            raise
        self.steps += 1
        return _metrics(plan, tally, time.perf_counter() - started)

    def save(self, directory: Path) -> None:
        """Write `adapter_config.json` and `adapter_model.safetensors`, as vLLM and PEFT load them, and our state."""
        with quiet():
            self.model.save_pretrained(str(directory), save_embedding_layers=False)
        # PEFT adds a model card that says nothing.
        (directory / "README.md").unlink(missing_ok=True)
        state = self._snapshot()
        del state["weights"]
        state["steps"] = self.steps
        state["config"] = msgspec.json.encode(self.config).decode()
        state["rng"] = torch.get_rng_state()
        if self.config.device == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state()
        torch.save(state, directory / _STATE)

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote. Raises TrainingError when it is missing, damaged or of another shape."""
        from safetensors.torch import load_file

        try:
            state = torch.load(directory / _STATE, map_location=self.config.device, weights_only=True)
            saved = load_file(str(directory / _ADAPTER), device=self.config.device)
        except Exception as error:
            raise TrainingError(
                f"The trainer's state in {directory} cannot be read: {error}", "Continue from the version before it."
            ) from error
        weights = {name.replace(".default.", "."): p for name, p in self._trainable().items()}
        if {name: p.shape for name, p in weights.items()} != {name: tensor.shape for name, tensor in saved.items()}:
            raise TrainingError(
                f"The adapter in {directory} does not fit: it was trained with another rank, other targets or another "
                "base model.",
                "Train on with the settings it was begun with, or begin a new policy.",
            )
        with torch.no_grad():
            for name, parameter in weights.items():
                parameter.copy_(saved[name])
        self._trainer.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        torch.set_rng_state(state["rng"].cpu())
        if self.config.device == "cuda" and "cuda_rng" in state:
            torch.cuda.set_rng_state(state["cuda_rng"].cpu())

    def _trainable(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def _snapshot(self) -> dict[str, Any]:
        weights = {name: p.detach().clone() for name, p in self._trainable().items()}
        return {"weights": weights, "optimizer": copy.deepcopy(self._trainer.optimizer.state_dict())}

    def _restore(self, snapshot: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self._trainable().items():
                parameter.copy_(snapshot["weights"][name])
        self._trainer.optimizer.load_state_dict(snapshot["optimizer"])

    def _check_vocabulary(self, plan: Plan) -> None:
        size = self.model.get_input_embeddings().weight.shape[0]
        largest = max(max(row.token_ids) for row in plan.rows)
        if largest >= size or min(min(row.token_ids) for row in plan.rows) < 0:
            raise TrainingError(
                f"Token id {largest} is outside the base model's vocabulary of {size}.",
                f"The trajectories were sampled by another model than {self.base_model}.",
            )


def _load_base(directory: Path, config: LearnerConfig) -> Any:
    from transformers import AutoModelForCausalLM

    if not (directory / "config.json").is_file():
        raise TrainingError(
            f"{directory} holds no model: config.json is missing.", "Pass a Hugging Face model directory."
        )
    if config.device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("Device 'cuda' was asked for, but torch finds no CUDA device.", "Use --device cpu.")
    try:
        return AutoModelForCausalLM.from_pretrained(
            str(directory), dtype=getattr(torch, config.dtype), local_files_only=True
        )
    except (OSError, ValueError, ImportError) as error:
        raise TrainingError(f"The base model in {directory} cannot be loaded: {error}") from error


def _metrics(plan: Plan, tally: Tally, seconds: float) -> StepMetrics:
    steps, targets = max(tally.optimizer_steps, 1), max(tally.targets, 1)
    return StepMetrics(
        loss=tally.loss / steps,
        grad_norm=tally.grad_norm / steps,
        trajectories=plan.trajectories,
        trained_tokens=plan.trained_tokens,
        forwarded_tokens=sum(len(row.token_ids) for row in plan.rows),
        ratio_mean=tally.ratio / targets,
        clip_fraction=tally.clipped / targets,
        entropy=tally.entropy / targets,
        kl=tally.kl / targets,
        logprob_difference_mean=tally.difference / max(tally.compared, 1),
        logprob_difference_max=tally.difference_max,
        step_s=seconds,
    )
