"""Supervised fine-tuning and DPO by TRL's own trainers, on examples with fixed masks, which are never recomputed.

The adapter and the optimizer are those of `trainer.learner`, so that a policy can go on from either by any method.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from arttrace.system.errors import TrainingError
from trainer.learner.config import LearnerConfig
from trainer.learner.machine.determinism import deterministic
from trainer.learner.machine.memory import is_out_of_memory
from trainer.learner.policy_model import (
    fitted_to_machine,
    in_its_precision,
    keeping_precision,
    load_policy,
    make_optimizer,
    on_one_card,
    trainable,
)
from trainer.learner.state import load_state, save_adapter, save_rest
from trainer.offline.plan import GivenStep, Method, OfflinePlan, Tell
from trainer.offline.render import TrainingExample, shared_context
from trainer.offline.torch_head import use_on_cpus
from trainer.output.quiet import import_trl, quiet
from trainer.policies.base_weights import weights_digest

import_trl()
use_on_cpus()
from datasets import Dataset  # noqa: E402
from transformers import PrinterCallback, TrainerCallback  # noqa: E402
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # noqa: E402
from trl.trainer.dpo_trainer import DataCollatorForPreference  # noqa: E402

_ROWS = 2
"""How many go through the model at once."""
_SHORTER = "Nothing was saved. Use --gradient-checkpointing, or leave out the longest conversations with --max-length."


class OfflineMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of training did.

    `loss` and `grad_norm` are means over its optimizer steps, `first_loss` and `last_loss` those of the first and the
    last; for DPO `accuracy` is the share of pairs in which the chosen run is preferred, over all steps.
    """

    loss: float
    first_loss: float
    last_loss: float
    grad_norm: float
    optimizer_steps: int
    tokens_trained: int
    accuracy: float = 0.0
    step_s: float = 0.0

    def numbers(self) -> dict[str, float]:
        """All of it as plain numbers by name, as a PolicyStep stores them."""
        return {name: float(value) for name, value in msgspec.structs.asdict(self).items()}


class OfflineLearner:
    """One policy in training by given examples."""

    def __init__(self, base_model: Path, config: LearnerConfig) -> None:
        """Raises TrainingError when the model cannot be loaded or the config makes no sense."""
        # TRL's trainers compute the step, so that what the packed engine cannot train is no matter.
        self.config = fitted_to_machine(replace(config.checked(), engine="trl"), base_model)
        self.steps = 0
        self._loss: Method = "sft"
        self.base_weights = weights_digest(base_model)
        with quiet():
            self.model = load_policy(base_model, self.config)
            self.optimizer = make_optimizer(self.model, self.config)

    def train(
        self,
        plan: OfflinePlan,
        tokenizer: Any,
        *,
        batch_size: int = 8,
        beta: float = 0.1,
        progress: Callable[[int], Tell] | None = None,
    ) -> OfflineMetrics:
        """Pass `config.epochs` times over the examples of `plan`, `batch_size` of them per optimizer step, or once in
        the steps that it gives, each at its learning rate; `beta` is DPO's weight of staying near the model before.

        Raises TrainingError when the tokenizer is another model's, memory runs out, or a loss is not a finite number;
        the weights are then not to be saved.
        """
        started = time.perf_counter()
        self._loss = plan.method
        self._check_vocabulary(plan)
        keeper = _Keeper(progress)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] = self.config.learning_rate_at(self.steps)
        with quiet(), tempfile.TemporaryDirectory(prefix="arttrace-offline-") as scratch:
            arguments = _arguments(self.config, Path(scratch), batch_size, len(plan.sft) or len(plan.dpo))
            make = self._sft if plan.method == "sft" else self._dpo
            with keeping_precision(self.model):
                trainer = make(plan, tokenizer, arguments, beta)
            trainer.compute_loss_context_manager = lambda: in_its_precision(self.config)
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(keeper)
            try:
                with deterministic(self.config):
                    trainer.train()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise TrainingError(f"Training needs more memory than there is: {error}", _SHORTER) from error
            if "ref" in self.model.peft_config:  # DPO's copy of the adapter before
                self.model.delete_adapter("ref")
        if not keeper.losses or not all(torch.isfinite(torch.tensor(keeper.losses))):
            raise TrainingError(
                "The loss is not a finite number; nothing was saved.", "Lower the learning rate and train again."
            )
        if not all(torch.isfinite(parameter).all() for parameter in trainable(self.model).values()):
            raise TrainingError("A weight is not a finite number; nothing was saved.", "Lower the learning rate.")
        self.steps += 1
        return OfflineMetrics(
            loss=sum(keeper.losses) / len(keeper.losses),
            first_loss=keeper.losses[0],
            last_loss=keeper.losses[-1],
            grad_norm=sum(keeper.norms) / len(keeper.norms),
            optimizer_steps=len(keeper.losses),
            tokens_trained=plan.learned_tokens,
            accuracy=trainer.preferred / trainer.compared if isinstance(trainer, _GivenPairs) else 0.0,
            step_s=time.perf_counter() - started,
        )

    def _check_vocabulary(self, plan: OfflinePlan) -> None:
        size = self.model.get_input_embeddings().weight.shape[0]
        examples = [*plan.sft, *(example for pair in plan.dpo for example in pair)]
        largest = max((max(example.token_ids) for example in examples), default=0)
        if largest >= size:
            raise TrainingError(
                f"The tokenizer gives token id {largest}, outside the base model's vocabulary of {size}.",
                "Put the tokenizer that the base model was trained with into its directory.",
            )

    def save_adapter(self, directory: Path) -> None:
        """Write the adapter, as vLLM and PEFT load it."""
        save_adapter(directory, self.model, self.config)

    def save_rest(self, directory: Path) -> None:
        """Write what is needed beside it to go on exactly."""
        save_rest(directory, self.model, self.optimizer, self.steps, self.config, self._loss)

    def load(self, directory: Path, method: Method) -> str:
        """Go on by this method from what a learner saved; see `Learner.load`. Raises TrainingError when it is missing,
        damaged or of another shape."""
        self.steps, note = load_state(directory, self.model, self.optimizer, self.config, method)
        return note

    def _sft(self, plan: OfflinePlan, tokenizer: Any, arguments: dict[str, Any], _beta: float) -> Any:
        rows = {
            "input_ids": [list(example.token_ids) for example in plan.sft],
            "labels": [_labels(example) for example in plan.sft],
        }
        given: dict[str, Any] = {"model": self.model, "processing_class": tokenizer}
        given["train_dataset"] = Dataset.from_dict(rows)
        if plan.steps:
            return _GivenSteps.of(plan.steps, given, arguments, self.optimizer)
        return SFTTrainer(**given, args=_sft_arguments(arguments), optimizers=(self.optimizer, None))

    def _dpo(self, plan: OfflinePlan, tokenizer: Any, arguments: dict[str, Any], beta: float) -> Any:
        rows = [_pair(chosen, rejected) for chosen, rejected in plan.dpo]
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
        return _GivenPairs(
            model=self.model,
            args=on_one_card(DPOConfig(**arguments, max_length=None, beta=beta)),
            train_dataset=Dataset.from_list(rows),
            data_collator=_GivenMasks(pad_token_id=pad),
            processing_class=tokenizer,
            optimizers=(self.optimizer, None),
        )


class _GivenSteps(SFTTrainer):  # type: ignore[misc]
    """Optimizer steps that are given: each on its own number of the next examples, at its own learning rate. The rows
    of a step come as one batch, of which a few at a time go through the model."""

    given: tuple[GivenStep, ...] = ()

    @classmethod
    def of(
        cls,
        steps: tuple[GivenStep, ...],
        given: Mapping[str, Any],
        arguments: Mapping[str, Any],
        optimizer: torch.optim.Optimizer,
    ) -> _GivenSteps:
        """A trainer for these steps, of what SFTTrainer is made of."""
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = 1.0
        rates = [step.learning_rate for step in steps]
        # It is asked for one rate more than there are steps.
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: rates[min(at, len(rates) - 1)])
        whole = _sft_arguments({**arguments, "gradient_accumulation_steps": 1, "num_train_epochs": 1})
        made = cls(**given, args=whole, optimizers=(optimizer, schedule))
        made.given = steps
        return made

    def get_train_dataloader(self) -> Any:
        """A batch for each step, in their order."""
        ends = list(itertools.accumulate(step.examples for step in self.given))
        shares = [list(range(end - step.examples, end)) for end, step in zip(ends, self.given, strict=True)]
        loader = torch.utils.data.DataLoader(self.train_dataset, batch_sampler=shares, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """The loss of a step: the mean over its learned tokens, whichever rows they stand in."""
        losses = [
            super(_GivenSteps, self).training_step(model, rows, num_items_in_batch) for rows in _few_at_a_time(inputs)
        ]
        return torch.stack(losses).sum()


def _few_at_a_time(batch: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """The rows of a batch, `_ROWS` at a time, without padding that only longer ones needed."""
    for first in range(0, len(batch["input_ids"]), _ROWS):
        rows = {name: tensor[first : first + _ROWS] for name, tensor in batch.items()}
        longest = int(rows["attention_mask"].sum(-1).max())
        yield {name: tensor[:, :longest] for name, tensor in rows.items()}


class _GivenPairs(DPOTrainer):  # type: ignore[misc]
    """Every pair of an optimizer step counts alike: TRL takes the mean over its micro-batches, of which the last may
    have fewer. `compared` pairs were seen, and in `preferred` of them the chosen run was preferred."""

    compared = 0
    preferred = 0.0

    def _prepare_dataset(self, dataset: Any, *_args: Any, **_kwargs: Any) -> Any:
        return dataset  # it is token ids already

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """The micro-batches of an optimizer step."""
        batches, items = super().get_batch_samples(*args, **kwargs)
        self._pairs_of_step = sum(map(_pairs_in, batches))
        return batches, items

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """The mean over the pairs, by how many of the step's they are; transformers divides by the micro-batches."""
        loss: torch.Tensor = super().compute_loss(model, inputs, *args, **kwargs)
        pairs = _pairs_in(inputs)
        self.compared += pairs
        self.preferred += pairs * self._metrics["train"]["rewards/accuracies"][-1]
        return loss * (pairs * self.current_gradient_accumulation_steps / self._pairs_of_step)


class _GivenMasks(DataCollatorForPreference):  # type: ignore[misc]
    """TRL takes all that follows the prompt for the answer; tool results between the answers are not."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super().torch_call(examples)
        given = [example["chosen_mask"] for example in examples] + [example["rejected_mask"] for example in examples]
        mask = torch.zeros_like(batch["completion_mask"])
        for row, learned in zip(mask, given, strict=True):
            row[: len(learned)] = torch.tensor(learned)
        batch["completion_mask"] = mask
        return batch


class _Keeper(TrainerCallback):  # type: ignore[misc]
    def __init__(self, progress: Callable[[int], Tell] | None) -> None:
        self._progress = progress
        self._tell: Tell = lambda _done, _note: None
        self.losses: list[float] = []
        self.norms: list[float] = []

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if self._progress is not None:
            self._tell = self._progress(state.max_steps)

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]))
            self._tell(len(self.losses), f"; loss {self.losses[-1]:.4f}")
            self.norms.append(float(logs.get("grad_norm", 0.0)))


def _pairs_in(batch: Mapping[str, Any]) -> int:
    """Chosen and rejected runs are rows of their own."""
    return len(batch["input_ids"]) // 2


def _labels(example: TrainingExample) -> list[int]:
    return [id if learned else -100 for id, learned in zip(example.token_ids, example.learned, strict=True)]


def _pair(chosen: TrainingExample, rejected: TrainingExample) -> dict[str, list[int]]:
    shared = shared_context(chosen, rejected)
    return {
        "prompt_ids": list(chosen.token_ids[:shared]),
        "chosen_ids": list(chosen.token_ids[shared:]),
        "rejected_ids": list(rejected.token_ids[shared:]),
        "chosen_mask": [int(flag) for flag in chosen.learned],
        "rejected_mask": [int(flag) for flag in rejected.learned],
    }


def _sft_arguments(arguments: Mapping[str, Any]) -> Any:
    return on_one_card(SFTConfig(**arguments, max_length=None, dataset_kwargs={"skip_prepare_dataset": True}))


def _arguments(config: LearnerConfig, scratch: Path, batch_size: int, examples: int) -> dict[str, Any]:
    at_once = _ROWS - batch_size % _ROWS
    return {
        "output_dir": str(scratch),
        "use_cpu": config.runs_on == "cpu",
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": config.gradient_checkpointing,
        "seed": config.seed,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": config.max_grad_norm,
        "router_aux_loss_coef": 0.0,  # a router that is not trained needs no balance
        "num_train_epochs": config.epochs,
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": -(-min(batch_size, examples) // at_once),
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
    }
