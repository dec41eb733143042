"""GivenTrajectoriesTrainer: TRL's GRPOTrainer on trajectories that were sampled elsewhere.

TRL's own loss, clipping, gradient accumulation and optimizer step are used as they are. Three things are replaced,
each through a method that TRL or transformers call by name:

- `get_train_dataloader` and `_prepare_inputs` hand out our micro-batches. TRL's own way regroups rows for generation:
  it drops a short tail, repeats batches, shuffles, and pads every row to the longest.
- `_get_per_token_logps_and_entropies` computes log-probabilities at the targets only, a part at a time (packed/head.py:
  on CUDA by TRL's own kernel), where TRL computes all positions of the completion and needs Triton for it.
- `log` keeps the numbers instead of printing them.

The split that TRL wants: the first token is the prompt, the rest is the completion, and the weights of the targets
stand in `tool_mask`. All rows then have prompts of one length, so that rows are padded on the right only and causal
attention needs no mask. Captured log-probabilities are the old policy's; vLLM's importance correction stays off, since
it would count the same ratio twice.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from arttrace.system.errors import TrainingError
from trainer.learner.config import LearnerConfig
from trainer.learner.packed.head import Head, log_probabilities, of_logits
from trainer.learner.packed.losses import FARTHEST, is_far
from trainer.learner.policy_model import as_reference, in_its_precision, on_one_card
from trainer.learner.samples import MicroBatch, TokenRow
from trainer.learner.tally import StepTally
from trainer.output.quiet import import_trl
from trainer.policies.learned_file import Fates

_trl = import_trl()
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from transformers import PreTrainedTokenizerFast, PrinterCallback, TrainerCallback  # noqa: E402
from trl import GRPOConfig  # noqa: E402


class GivenTrajectoriesTrainer(_trl.GRPOTrainer):  # type: ignore[misc, name-defined]
    """One `optimise` is one optimizer step over all micro-batches of one minibatch."""

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        config: LearnerConfig,
        check: Callable[[StepTally], None],
        output_directory: Path,
    ) -> None:
        """`model` is a PEFT model, `check` is called before each optimizer step. Nothing is written into
        `output_directory`."""
        self.learner_config = config
        self.tally = StepTally()
        self._micro_batches: list[dict[str, torch.Tensor]] = []
        self._targets: torch.Tensor | None = None
        self._temperatures: torch.Tensor | None = None
        self._scored: tuple[torch.Tensor, torch.Tensor] | None = None
        self._logps: torch.Tensor | None = None
        self._computed: Callable[[int], None] = lambda _: None
        self._rows: Iterator[Sequence[TokenRow]] = iter(())
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=on_one_card(_arguments(config, output_directory)),
            # TRL insists on a data set and a tokenizer; neither is ever looked into.
            train_dataset=Dataset.from_dict({"prompt": ["", ""]}),
            processing_class=_blank_tokenizer(),
            optimizers=(optimizer, None),
        )
        self._head = self._head_alone()
        if "ref" in self.model.peft_config:  # TRL's copy of the adapter as it was; our reference is not that
            self.model.delete_adapter("ref")
        self.remove_callback(PrinterCallback)
        self.add_callback(_BeforeOptimizerStep(lambda: self._check_counted(check)))

    def prepare(self, batches: Sequence[MicroBatch], normaliser: float) -> list[dict[str, torch.Tensor]]:
        """The micro-batches of one optimizer step under the names that TRL's loss reads."""
        return [self._inputs(batch, normaliser) for batch in batches]

    def optimise(
        self,
        micro_batches: list[dict[str, torch.Tensor]],
        rows: Sequence[Sequence[TokenRow]],
        tally: StepTally,
        computed: Callable[[int], None],
    ) -> None:
        """Take one optimizer step; `rows` are those of each micro-batch, `computed` is called with the number of tokens
        of each. Raises TrainingError before a step whose numbers are not sound."""
        self.tally, self._micro_batches, self._computed = tally, micro_batches, computed
        self._logps, self._rows = None, iter(rows)
        self.args.gradient_accumulation_steps = self.args.steps_per_generation = len(micro_batches)
        # transformers collects garbage at the start of every run: a quarter of a second over all the objects that an
        # imported torch keeps alive, unless they are set aside. What the program has set aside itself stays so: nothing
        # puts back a part.
        ours = gc.get_freeze_count() == 0
        if ours:
            gc.freeze()
        try:
            self.train()
        finally:
            if ours:
                gc.unfreeze()
            self._micro_batches = []
            self._targets = self._logps = self._temperatures = self._scored = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The micro-batches of this run, in order; transformers iterates over them once per epoch."""
        return DataLoader(self._micro_batches, batch_size=None, shuffle=False)

    def _prepare_inputs(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return inputs

    def _inputs(self, batch: MicroBatch, normaliser: float) -> dict[str, torch.Tensor]:
        """One micro-batch under those names."""
        prompt, completion = batch.token_ids[:, :1], batch.token_ids[:, 1:]
        inputs = {
            "prompt_ids": prompt,
            "prompt_mask": torch.ones_like(prompt),
            "completion_ids": completion,
            "completion_mask": torch.ones_like(completion),
            "tool_mask": batch.weights.clone(),
            "targets": batch.weights > 0,
            "advantages": batch.advantages,
            "captured": batch.logprobs,
            "old_per_token_logps": batch.logprobs.clone(),
            "current": batch.current,
            "temperatures": batch.temperatures,
            "num_items_in_batch": batch.weights.new_tensor(normaliser),
        }
        if self.beta:
            self._targets, self._temperatures = batch.weights > 0, batch.temperatures
            with as_reference(self.model, self.learner_config):
                inputs["ref_per_token_logps"], _ = self._score(batch.token_ids, self._targets)
        return inputs

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """As TRL has it. Unsloth puts one of its own into the trainer, past what is counted and checked here."""
        return self._compute_loss(model, inputs)

    def _check_counted(self, check: Callable[[StepTally], None]) -> None:
        if self._logps is None:
            raise TrainingError(
                "The loss was computed by another library than TRL, past the check of its log-probabilities.",
                "Train with --loader transformers.",
            )
        check(self.tally)

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self._targets, self._temperatures = inputs["targets"], inputs["temperatures"]
        self._scored = self._score(torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1), self._targets)
        if self.tally.optimizer_steps == 0:
            self._leave_out_strangers(inputs, self._scored[0].detach())
        inputs = self._without_far(inputs, self._scored[0].detach())
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        self._count(inputs, float(loss.detach()))
        self._computed(inputs["prompt_ids"].numel() + inputs["completion_ids"].numel())
        return loss

    def _get_per_token_logps_and_entropies(
        self, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        assert self._scored is not None
        logps, entropies = self._scored
        self._logps = logps.detach()
        self.tally.entropy += float(entropies.sum())
        return logps, entropies, None

    def _leave_out_strangers(self, inputs: dict[str, torch.Tensor], logps: torch.Tensor) -> None:
        """Targets of the current version beyond the bound get no weight, in this pass and the later ones.

        Without a weight, but a ratio that is not finite would be one in the gradient all the same: theirs is 1."""
        gap = (logps - inputs["captured"]).abs() * inputs["temperatures"]
        strange = inputs["current"] & inputs["targets"] & ~(gap <= self.learner_config.logprob_bound)
        inputs["tool_mask"].masked_fill_(strange, 0.0)
        inputs["old_per_token_logps"].copy_(torch.where(strange, logps, inputs["old_per_token_logps"]))

    def _without_far(self, inputs: dict[str, torch.Tensor], logps: torch.Tensor) -> dict[str, torch.Tensor]:
        """The inputs of this pass: targets whose ratio is too large to be computed with have no weight in it, and 1
        as their ratio."""
        shift = self._shift(inputs, logps)
        own = logps - inputs["old_per_token_logps"]
        far = is_far(self.learner_config, shift, own).expand_as(logps) & (inputs["tool_mask"] > 0)
        self.tally.far += int(far.sum())
        changed = {
            "tool_mask": inputs["tool_mask"].masked_fill(far, 0.0),
            "old_per_token_logps": torch.where(far, logps, inputs["old_per_token_logps"]),
        }
        if self.beta:
            changed["ref_per_token_logps"] = torch.minimum(inputs["ref_per_token_logps"], logps + FARTHEST)
        return {**inputs, **changed}

    def _shift(self, inputs: dict[str, torch.Tensor], logps: torch.Tensor) -> torch.Tensor:
        """The logarithm of each target's ratio."""
        shift = logps - inputs["old_per_token_logps"]
        if self.importance_sampling_level == "sequence":
            kept = inputs["tool_mask"] > 0
            shift = (shift * kept).sum(1, keepdim=True) / kept.sum(1, keepdim=True).clamp(min=1)
        return shift

    def _score(self, token_ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies, both (B, L-1), of each next token where `targets` (B, L-1) is set, else 0.

        Where a model does more to its logits than its head says, the head sees the chosen positions only: a hook picks
        them from its input, and whatever the model does afterwards still happens.
        """
        empty = torch.zeros(targets.shape, dtype=torch.float32, device=targets.device)
        if self._head is not None:
            with in_its_precision(self.learner_config):
                hidden = self._decoder()(input_ids=token_ids[:, :-1], use_cache=False).last_hidden_state[targets]
            heat = torch.ones_like(targets, dtype=torch.float32) if self._temperatures is None else self._temperatures
            logps, entropy = log_probabilities(self._head, hidden, token_ids[:, 1:][targets], heat[targets])
            empty = empty.to(logps.dtype)
            return empty.masked_scatter(targets, logps), empty.masked_scatter(targets, entropy)
        with _only_positions(self.model.get_output_embeddings(), targets), in_its_precision(self.learner_config):
            logits = self.model(input_ids=token_ids[:, :-1], use_cache=False).logits
        logits = logits.reshape(-1, logits.shape[-1])
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        if self._temperatures is not None:
            logits = logits / self._temperatures[targets].unsqueeze(-1).to(logits.dtype)
        logps, entropy = of_logits(logits, token_ids[:, 1:][targets])
        empty = empty.to(logits.dtype)
        return empty.masked_scatter(targets, logps), empty.masked_scatter(targets, entropy)

    def _decoder(self) -> Any:
        return self.model.get_base_model().get_decoder()

    def _head_alone(self) -> Head | None:
        """The output head, where the model's logits are what it gives; None for a model that does more to them."""
        # Several tokens: one alone may be the padding, whose embedding and logits are zeros whatever is done to them.
        ids = torch.arange(8, device=self.learner_config.device)[None]
        with torch.no_grad(), in_its_precision(self.learner_config):
            head = Head.of(self.model.get_base_model())
            hidden = self._decoder()(input_ids=ids, use_cache=False).last_hidden_state
            return head if head.gives(self.model(input_ids=ids, use_cache=False).logits, hidden) else None

    def scored(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The log-probabilities of the targets by the model as it is now, and its entropies there; both (B, L-1)."""
        self._temperatures = batch.temperatures
        with torch.no_grad():
            return self._score(batch.token_ids, batch.weights > 0)

    def compare_ahead(self, minibatch: Sequence[dict[str, torch.Tensor]], tally: StepTally) -> None:
        """Compare what the current version sampled with it before the first optimizer step: at a later minibatch's turn
        the weights are others. Its targets beyond the bound get no weight."""
        for inputs in minibatch:
            targets = inputs["targets"]
            if not bool((inputs["current"] & targets).any()):
                continue
            self._targets, self._temperatures = targets, inputs["temperatures"]
            with torch.no_grad():
                logps, _ = self._score(torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1), targets)
            self._leave_out_strangers(inputs, logps)
            self._compare(inputs, logps, tally)

    def _compare(self, inputs: dict[str, torch.Tensor], logps: torch.Tensor, tally: StepTally) -> None:
        targets = inputs["targets"]
        captured, current, heat = (inputs[name][targets] for name in ("captured", "current", "temperatures"))
        tally.compare(logps[targets], captured, current, heat, self.learner_config.logprob_bound)

    def _count(self, inputs: dict[str, torch.Tensor], loss: float) -> None:
        assert self._targets is not None
        assert self._logps is not None
        tally, targets = self.tally, self._targets
        shift = self._shift(inputs, self._logps).clamp(max=FARTHEST)
        ratio = shift.exp().expand_as(targets)[targets]
        gains = inputs["advantages"].expand_as(targets)[targets] > 0
        low, high = self.learner_config.clip_range
        tally.loss += loss
        tally.targets += ratio.numel()
        tally.ratio += float(ratio.sum())
        if self.loss_type == "cispo":
            clipped = ratio > self.epsilon_high
        else:
            falling = ratio < low
            if self.args.delta is not None:
                falling |= ratio > self.args.delta
            clipped = torch.where(gains, ratio > high, falling)
        tally.clipped += int(clipped.sum())
        if self.beta:
            to_base = (inputs["ref_per_token_logps"] - self._logps)[targets]
            tally.kl += float((to_base.exp() - to_base - 1).sum())
        logps, left_out = self._logps[targets], inputs["tool_mask"][targets] == 0
        tally.keep(next(self._rows), logps, ratio, Fates(clipped, left_out, torch.zeros_like(clipped)))
        self._compare(inputs, self._logps, tally)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Called by transformers after each optimizer step, and once more at the end of a run without `grad_norm`."""
        self._metrics["train"].clear()
        if "grad_norm" in logs:
            self.tally.optimizer_steps += 1
            self.tally.grad_norm += float(logs["grad_norm"])


class _BeforeOptimizerStep(TrainerCallback):  # type: ignore[misc]
    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def on_pre_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        self._check()


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
    low, high = config.clip_range
    return GRPOConfig(
        output_dir=str(output_directory),
        use_cpu=config.runs_on == "cpu",
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
        num_train_epochs=1,
        per_device_train_batch_size=2,
        num_generations=2,
        # "dapo" with our own weights and normaliser is every loss that clips the ratio, see samples.py.
        loss_type="cispo" if config.loss == "cispo" else "dapo",
        importance_sampling_level="sequence" if config.ratio_of_trajectory else "token",
        delta=config.delta,
        epsilon=1 - low,
        epsilon_high=config.cispo_max_ratio if config.loss == "cispo" else high - 1,
        beta=config.kl_weight,
        use_bias_correction_kl=config.use_bias_correction_kl,
        scale_rewards="none",
        router_aux_loss_coef=0.0,  # a router that is not trained needs no balance
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
