"""What the machine and the base model decide where the config leaves it open: precision, memory, LoRA targets. Pure.

A fitted config has no None in these fields, so that what a step does can be read off it, and printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from arttrace.system.errors import TrainingError
from trainer.learner.config import Dtype, LearnerConfig

_SMALLEST, _LARGEST_ON_CPU, _LARGEST_ON_CUDA = 2048, 16_384, 65_536
_SHARE = 0.6
"""Of the free memory that micro-batches may fill; the rest is for what is estimated too low."""
_HIDDEN_KEPT, _WIDE_KEPT = 24, 6
"""Values of a token that a layer keeps for its backward pass: times the hidden and the feed-forward size."""
BYTES: dict[Dtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2}

FITTED = ("device", "dtype", "gradient_checkpointing", "lora_targets", "micro_batch_tokens")
"""Fields of a LearnerConfig that are set where they are left open, the device by `placed`, the others by `fitted`."""

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""The modules that a LoRA of a mixture of experts may reach."""


@dataclass(frozen=True)
class FittedOption:
    """What a setting that was left open became, and why."""

    name: str
    value: Any
    reason: str


def fitted(config: LearnerConfig, shape: Mapping[str, Any], free_bytes: int | None) -> LearnerConfig:
    """The config with what it leaves open chosen for a model whose text config is `shape` (a Hugging Face
    `config.json`) and a device with `free_bytes` beside the model's weights, None where that is not known."""
    chosen = {one.name: one.value for one in choices(config, shape, free_bytes) if one.name in FITTED}
    return replace(config, **chosen)


def choices(config: LearnerConfig, shape: Mapping[str, Any], free_bytes: int | None) -> list[FittedOption]:
    """What `fitted` chooses for what the config leaves open, and what else its open fields mean, with the reasons."""
    cuda = config.runs_on == "cuda"
    found: list[FittedOption] = []
    if config.dtype is None:
        why = "CUDA: that of the serving engine, so that log-probabilities agree" if cuda else "a CPU: full precision"
        found.append(FittedOption("dtype", config.computes_in, why))
    checkpointing = config.gradient_checkpointing
    if checkpointing is None:
        checkpointing = cuda
        why = "a CPU: memory is not what is short"
        if cuda:
            why = "CUDA: memory for longer rows, a third more computing"
            if config.engine == "packed":
                why += "; layers that the free memory has room for are kept all the same"
        found.append(FittedOption("gradient_checkpointing", cuda, why))
    if not config.lora_targets:
        many = experts(shape)
        why = f"a mixture of {many} experts: vLLM loads adapters of the attention alone" if many else "a dense model"
        if not shape:
            why = "the base model is not known; its attention alone, should it be a mixture of experts"
        found.append(FittedOption("lora_targets", ATTENTION if many else "all-linear", why))
    if config.micro_batch_tokens is None:
        tokens = room(config, shape, free_bytes, checkpointing=checkpointing)
        each = bytes_per_token(config, shape, checkpointing=checkpointing)
        why = "the free memory is not known: the least"
        if free_bytes is not None:
            why = f"{each / 1024:.0f} KiB a token by estimate, {free_bytes / (1 << 30):.1f} GiB free beside the weights"
        found.append(FittedOption("micro_batch_tokens", tokens, why))
    if config.max_logprob_difference is None:
        why = f"base model in {config.computes_in}"
        found.append(FittedOption("max_logprob_difference", config.logprob_bound, why))
    if config.importance is None and config.correction != "clip":
        why = f"a trajectory's ratio in {config.computes_in}: rounding alone would clip it"
        found.append(FittedOption("importance", config.correction, why))
    if config.loss != "cispo" and None in (config.epsilon_low, config.epsilon_high):
        low, high = config.clip_range
        why = "one ratio per trajectory" if config.ratio_of_trajectory else "one ratio per token"
        if config.epsilon_low is None:
            found.append(FittedOption("epsilon_low", round(1 - low, 6), why))
        if config.epsilon_high is None:
            found.append(FittedOption("epsilon_high", round(high - 1, 6), why))
    return found


def experts(shape: Mapping[str, Any]) -> int:
    """How many experts a layer of the model has; 0 for a dense model."""
    return max((value for name in _EXPERT_COUNTS if isinstance(value := shape.get(name), int)), default=0)


def refuse_experts(config: LearnerConfig, shape: Mapping[str, Any]) -> None:
    """Raises TrainingError when LoRA targets reach the experts or the router of a mixture of experts: vLLM loads no
    such adapter, and a router that moves apart from the engine's sends tokens elsewhere than they went."""
    targets = (config.lora_targets,) if isinstance(config.lora_targets, str) else config.lora_targets or ()
    if experts(shape) and (beyond := sorted(set(targets) - set(ATTENTION))):
        raise TrainingError(
            f"The base model is a mixture of {experts(shape)} experts, and the LoRA's targets {', '.join(beyond)} are "
            "more than its attention: vLLM loads no such adapter.",
            f"Leave lora_targets open, or name some of {', '.join(ATTENTION)}.",
        )


def room(config: LearnerConfig, shape: Mapping[str, Any], free_bytes: int | None, *, checkpointing: bool) -> int:
    """Tokens of a micro-batch that fit, a power of two within bounds."""
    if free_bytes is None:
        return _SMALLEST
    per_token = bytes_per_token(config, shape, checkpointing=checkpointing)
    largest = _LARGEST_ON_CUDA if config.runs_on == "cuda" else _LARGEST_ON_CPU
    tokens = _SMALLEST
    while 2 * tokens <= largest and 2 * tokens * per_token <= _SHARE * free_bytes:
        tokens *= 2
    return tokens


def bytes_per_token(config: LearnerConfig, shape: Mapping[str, Any], *, checkpointing: bool) -> int:
    """What a token's forward pass keeps for the backward pass, by estimate."""
    layers, hidden = _number(shape, "num_hidden_layers", 32), _number(shape, "hidden_size", 4096)
    wide = _number(shape, "intermediate_size", 4 * hidden)
    size = BYTES[config.computes_in]
    of_layer = (_HIDDEN_KEPT * hidden + _WIDE_KEPT * wide) * size
    return layers * hidden * size + of_layer if checkpointing else layers * of_layer


def layers_kept(config: LearnerConfig, shape: Mapping[str, Any], free_bytes: int | None, tokens: int) -> int:
    """How many layers of a micro-batch of so many tokens need not be computed again in the backward pass, as the free
    memory has room for what they keep. None of a mixture of experts, of which the estimate knows too little."""
    if free_bytes is None or tokens < 1 or experts(shape):
        return 0
    layers = _number(shape, "num_hidden_layers", 32)
    each = bytes_per_token(config, shape, checkpointing=False) // layers
    left = _SHARE * free_bytes / tokens - bytes_per_token(config, shape, checkpointing=True)
    return max(0, min(layers, int(left // each)))


def lora_bytes(config: LearnerConfig, shape: Mapping[str, Any]) -> int:
    """Of a LoRA on all linear layers, by estimate: weights, gradients and both moments, in float32."""
    layers, hidden = _number(shape, "num_hidden_layers", 32), _number(shape, "hidden_size", 4096)
    wide = _number(shape, "intermediate_size", 4 * hidden)
    return 4 * 4 * config.rank * layers * (8 * hidden + 3 * (hidden + wide))


def _number(shape: Mapping[str, Any], name: str, usual: int) -> int:
    value = shape.get(name)
    return value if isinstance(value, int) and value > 0 else usual
