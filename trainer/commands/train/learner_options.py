"""The options that set how to train; unset ones take the learner's default."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, get_args

import click

from trainer.learner.config import (
    Device,
    Dtype,
    Engine,
    Importance,
    ImportanceLevel,
    KlEstimator,
    LearnerConfig,
    Loader,
    Loss,
)

_OPTIONS: dict[str, tuple[Any, str]] = {
    "engine": (click.Choice(get_args(Engine)), "Engine that computes the step; both give the same result."),
    "loader": (click.Choice(get_args(Loader)), "Library that loads the base model."),
    "loss": (click.Choice(get_args(Loss)), "Which of GRPO's losses."),
    "learning_rate": (float, "AdamW's learning rate."),
    "importance": (
        click.Choice(get_args(Importance)),
        "Correction of the importance ratio to the policy that sampled the tokens.",
    ),
    "importance_clip_min": (float, "Least weight of that correction; none without."),
    "importance_clip_max": (float, "Largest weight of that correction."),
    "importance_sampling_level": (click.Choice(get_args(ImportanceLevel)), "One ratio per token or per trajectory."),
    "epsilon_low": (float, "The ratio is clipped below 1 by so much; 0.2, for a trajectory's ratio 0.0003."),
    "epsilon_high": (float, "The ratio is clipped above 1 by so much; 0.28, for a trajectory's ratio 0.0004."),
    "delta": (float, "Bound of the ratio where the advantage is negative (dual clip); none without."),
    "cispo_max_ratio": (float, "Bound of cispo's ratio."),
    "dr_grpo_length": (int, "What dr_grpo divides a trajectory's sum by: the most tokens that a run may sample."),
    "kl_weight": (float, "Weight of KL(policy || reference)."),
    "kl_estimator": (click.Choice(get_args(KlEstimator)), "How that KL is estimated."),
    "use_bias_correction_kl": (
        bool,
        "The KL term times the importance ratio, which bounds a token's weight; on unless --no-use-bias-correction-kl.",
    ),
    "kl_reference": (click.UNPROCESSED, "Directory of the reference adapter; the base model without one."),
    "max_kl": (float, "Stop above this KL to the reference, in nats per token; needs --kl-weight."),
    "epochs": (int, "Passes over the data."),
    "minibatches": (int, "Optimizer steps per pass."),
    "lora_rank": (
        int,
        "Rank of the adapter; the policy's, of a new one 16. Above 32 it needs `serve --vllm-arg=--max-lora-rank=64`.",
    ),
    "lora_alpha": (int, "Scale of the adapter, divided by its rank; the policy's, of a new one 32."),
    "micro_batch_tokens": (int, "Tokens that go through the model at once; as many as fit without."),
    "gradient_checkpointing": (bool, "Less memory for more time; on CUDA unless --no-gradient-checkpointing."),
    "torch_compile": (bool, "Compile norms, rotary positions and feed-forward parts in the first step."),
    "use_liger_kernel": (bool, "Take Liger's kernels for them (CUDA)."),
    "full_determinism": (bool, "The same step, bit for bit, from the same runs on the same machine; may take longer."),
    "load_in_4bit": (bool, "Base model's weights in 4 bits (CUDA)."),
    "device": (click.Choice(get_args(Device)), "Where to train; on a CUDA card where there is one."),
    "dtype": (click.Choice(get_args(Dtype)), "Precision: as serve was told; else bfloat16 on CUDA, float32 on a CPU."),
    "max_logprob_difference": (float, "How far a captured log-probability may be from the learner's, in nats."),
    "seed": (int, "Seed of the adapter's first weights."),
}


def learner_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds options for the fields of LearnerConfig; the command gets them as one argument, `learner`."""
    default = LearnerConfig()

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        chosen = {name: value for name in _OPTIONS if (value := given.pop(name)) is not None}
        return function(learner=dataclasses.replace(default, **chosen), **given)

    for name, (kind, meaning) in reversed(_OPTIONS.items()):
        flag = "--" + name.replace("_", "-")
        usual = getattr(default, name)
        shown = meaning if usual is None else f"{meaning}  [default: {usual}]"
        if kind is bool:
            both = flag if usual is False else f"{flag}/--no-{flag[2:]}"
            command = click.option(both, name, is_flag=True, default=None, help=meaning)(command)
        else:
            command = click.option(flag, name, type=kind, help=shown)(command)
    return command
