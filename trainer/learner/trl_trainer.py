"""GivenTrajectoriesTrainer: TRL's GRPOTrainer, fed with trajectories that were sampled elsewhere.

TRL's own loss, clipping, gradient accumulation and optimizer step are used as they are. Three things are replaced,
each through a method that TRL or transformers call by name:

- `get_train_dataloader` and `_prepare_inputs` hand out our micro-batches. TRL's own way regroups rows for generation:
  it drops a short tail, repeats batches, shuffles, and pads every row to the longest.
- `_get_per_token_logps_and_entropies` computes log-probabilities at the targets only. TRL's fused output head needs
  Triton, and computes all positions of the completion.
- `log` keeps the numbers instead of printing them.

The split that TRL wants: the first token is the prompt, the rest is the completion, and the weights of the targets
stand in `tool_mask`. All rows then have prompts of one length, so that rows are padded on the right only and causal
attention needs no mask. Captured log-probabilities are the old policy's; vLLM's importance correction stays off, since
it would count the same ratio twice.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from arttrace.errors import TrainingError
from trainer.learner.config import LearnerConfig
from trainer.learner.quiet import import_trl
from trainer.learner.samples import MicroBatch

_trl = import_trl()
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from transformers import PreTrainedTokenizerFast, PrinterCallback, TrainerCallback  # noqa: E402
from trl import GRPOConfig  # noqa: E402

_UNSOUND = "The weights were left as they were. Lower the learning rate, or look at the last rewards and versions."


@dataclass
class Tally:
    """Sums over targets, gathered while the micro-batches of one step pass by."""

    loss: float = 0.0
    grad_norm: float = 0.0
    optimizer_steps: int = 0
    targets: int = 0
    ratio: float = 0.0
    clipped: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    difference: float = 0.0
    difference_max: float = 0.0
    difference_max_current: float = 0.0
    compared: int = 0


class GivenTrajectoriesTrainer(_trl.GRPOTrainer):  # type: ignore[misc, name-defined]
    """One `run` is one step of the learner: `epochs` optimizer steps, each over all micro-batches."""

    def __init__(self, model: Any, config: LearnerConfig, output_directory: Path) -> None:
        """`model` is a plain causal LM; a LoRA is put on it. Nothing is written into `output_directory`."""
        self.learner_config = config
        self.tally = Tally()
        self._micro_batches: list[dict[str, torch.Tensor]] = []
        self._targets: torch.Tensor | None = None
        self._logps: torch.Tensor | None = None
        targets = config.lora_targets
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=_arguments(config, output_directory),
            # TRL insists on a data set and a tokenizer; neither is ever looked into.
            train_dataset=Dataset.from_dict({"prompt": ["", ""]}),
            processing_class=_blank_tokenizer(),
            peft_config=LoraConfig(
                r=config.lora_rank,
                lora_alpha=config.lora_alpha,
                target_modules=targets if isinstance(targets, str) else list(targets),
                lora_dropout=0.0,
                bias="none",
                task_type="CAUSAL_LM",
            ),
        )
        self.remove_callback(PrinterCallback)
        self.add_callback(_BeforeOptimizerStep(self))
        self.create_optimizer()

    def run(self, batches: Sequence[MicroBatch], normaliser: float) -> Tally:
        """Take the optimizer steps for one batch. Raises TrainingError before a step whose numbers are not sound."""
        self.tally = Tally()
        self._micro_batches = [self._inputs(batch, normaliser) for batch in batches]
        self.args.gradient_accumulation_steps = self.args.steps_per_generation = len(batches)
        # transformers collects garbage at the start of every run: a quarter of a second over all the objects that an
        # imported torch keeps alive, unless they are set aside.
        gc.freeze()
        try:
            self.train()
        finally:
            gc.unfreeze()
            self._micro_batches = []
            self._targets = self._logps = None
            self.model.zero_grad(set_to_none=True)
        return self.tally

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The micro-batches of this run, in order; transformers iterates over them once per epoch."""
        return DataLoader(self._micro_batches, batch_size=None, shuffle=False)

    def _prepare_inputs(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return inputs

    def _inputs(self, batch: MicroBatch, normaliser: float) -> dict[str, torch.Tensor]:
        """A micro-batch under the names that TRL's loss reads."""
        prompt, completion = batch.token_ids[:, :1], batch.token_ids[:, 1:]
        inputs = {
            "prompt_ids": prompt,
            "prompt_mask": torch.ones_like(prompt),
            "completion_ids": completion,
            "completion_mask": torch.ones_like(completion),
            "tool_mask": batch.weights,
            "advantages": batch.advantages,
            "old_per_token_logps": batch.logprobs,
            "current": batch.current,
            "num_items_in_batch": batch.weights.new_tensor(normaliser),
        }
        if self.beta:
            self._targets = batch.weights > 0
            with torch.no_grad(), self.model.disable_adapter():
                inputs["ref_per_token_logps"], _ = self._score(batch.token_ids, self._targets)
        return inputs

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self._targets = inputs["tool_mask"] > 0
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        if not torch.isfinite(loss):
            raise TrainingError("The loss is not a finite number.", _UNSOUND)
        self._count(inputs, float(loss.detach()))
        return loss

    def _get_per_token_logps_and_entropies(
        self, _model: Any, input_ids: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        assert self._targets is not None
        logps, entropies = self._score(input_ids, self._targets)
        self._logps = logps.detach()
        self.tally.entropy += float(entropies.sum())
        return logps, entropies, None

    def _score(self, token_ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies, both (B, L-1), of each next token where `targets` (B, L-1) is set, else 0.

        The output head sees the chosen positions only: a hook picks them from its input, so that whatever the model
        does to its logits afterwards (scaling, soft-capping) still happens.
        """
        with _only_positions(self.model.get_output_embeddings(), targets):
            logits = self.model(input_ids=token_ids[:, :-1], use_cache=False).logits
        logits = logits.reshape(-1, logits.shape[-1])
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        total = torch.logsumexp(logits, dim=-1)
        chosen = logits.gather(-1, token_ids[:, 1:][targets].unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            entropy = total - (torch.exp(logits - total.unsqueeze(-1)) * logits).sum(-1)
        empty = logits.new_zeros(targets.shape)
        return empty.masked_scatter(targets, chosen - total), empty.masked_scatter(targets, entropy)

    def _count(self, inputs: dict[str, torch.Tensor], loss: float) -> None:
        assert self._targets is not None
        assert self._logps is not None
        tally, targets = self.tally, self._targets
        difference = (self._logps - inputs["old_per_token_logps"])[targets]
        ratio = difference.exp()
        gains = inputs["advantages"].unsqueeze(1).expand_as(targets)[targets] > 0
        low, high = 1 - self.epsilon_low, 1 + self.epsilon_high
        tally.loss += loss
        tally.targets += difference.numel()
        tally.ratio += float(ratio.sum())
        tally.clipped += int(torch.where(gains, ratio > high, ratio < low).sum())
        if self.beta:
            to_base = (inputs["ref_per_token_logps"] - self._logps)[targets]
            tally.kl += float((to_base.exp() - to_base - 1).sum())
        if tally.optimizer_steps == 0:
            gap = difference.abs()
            tally.compared += gap.numel()
            tally.difference += float(gap.sum())
            tally.difference_max = max(tally.difference_max, float(gap.max()))
            if (current := gap[inputs["current"][targets]]).numel():
                tally.difference_max_current = max(tally.difference_max_current, float(current.max()))

    def check_before_optimizer_step(self) -> None:
        """Raises TrainingError when the gradients, or the agreement with the engine, are not sound."""
        bound = self.learner_config.logprob_bound
        if self.tally.optimizer_steps == 0 and not self.tally.difference_max_current <= bound:
            raise TrainingError(
                "The log-probabilities captured from the current policy version differ from the learner's by up to "
                f"{self.tally.difference_max_current:.3g} nats; the bound is {bound:.3g}.",
                "The engine serves other weights than the learner holds (a stale adapter, another base model, another "
                "precision), or did not sample at temperature 1. Restart serving from the newest version; if the "
                "precision differs on purpose, raise max_logprob_difference.",
            )
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not all(torch.isfinite(gradient).all() for gradient in gradients):
            raise TrainingError("A gradient is not a finite number.", _UNSOUND)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Called by transformers after each optimizer step, and once more at the end of a run without `grad_norm`."""
        self._metrics["train"].clear()
        if "grad_norm" in logs:
            self.tally.optimizer_steps += 1
            self.tally.grad_norm += float(logs["grad_norm"])


class _BeforeOptimizerStep(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trainer: GivenTrajectoriesTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        self._trainer.check_before_optimizer_step()


@contextmanager
def _only_positions(head: torch.nn.Module, positions: torch.Tensor) -> Iterator[None]:
    def pick(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (inputs[0][positions], *inputs[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def _no_reward(**_kwargs: Any) -> list[float]:
    raise AssertionError("rewards are given, never computed here")


def _blank_tokenizer() -> Any:
    blank = "<blank>"
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({blank: 0}, unk_token=blank)), pad_token=blank, eos_token=blank
    )


def _arguments(config: LearnerConfig, output_directory: Path) -> Any:
    return GRPOConfig(
        output_dir=str(output_directory),
        use_cpu=config.device == "cpu",
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        seed=config.seed,
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        adam_beta1=config.adam_betas[0],
        adam_beta2=config.adam_betas[1],
        adam_epsilon=config.adam_epsilon,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        num_train_epochs=config.epochs,
        per_device_train_batch_size=2,
        num_generations=2,
        # "dapo" with our own weights and normaliser is every token-weighted loss, see samples.py.
        loss_type="dapo",
        epsilon=config.epsilon_low,
        epsilon_high=config.epsilon_high,
        beta=config.kl_weight,
        # TRL would multiply the KL term by the importance ratio; k3 is unbiased for on-policy samples without it.
        use_bias_correction_kl=False,
        scale_rewards="none",
        temperature=1.0,
        use_vllm=False,
        disable_dropout=True,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
