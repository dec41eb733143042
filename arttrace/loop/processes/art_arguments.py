"""ART's arguments that functions and classes here do not have: whoever passes one is told what to do instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=type)

_OWN_SETTINGS = "pass settings to the step itself, under ART's names or those of `arttrace train`: "
OF_A_MODEL = {
    "_internal_config": "pass options to `arttrace serve`, and to model.train(groups, lora_rank=8)",
    "base_path": "LocalBackend(path=...) names the directory",
    "entity": "set WANDB_ENTITY, and report by model.train(groups, report_to='wandb')",
    "id": "leave it out: models are told apart by their names",
    "report_metrics": "name trackers where numbers are made: model.train(groups, report_to='wandb'), model.log",
    "run_id": "leave it out: each policy has a run of its own in a tracker",
}
OF_A_BACKEND = {
    "gpu_cost_per_hour_usd": "leave it out: a step's numbers have its seconds, `arttrace stats` sums up tokens",
    "in_process": "leave it out: engine and trainer are always processes of their own",
}
OF_A_GATHER = {
    "max_metrics": "leave it out: `arttrace stats` and `arttrace diff` have all of them",
    "pbar_total_completion_tokens": "leave it out: `arttrace stats` sums up tokens",
}
OF_A_GROUP = {"trajectories": "pass them by place: TrajectoryGroup(rollout(model, s) for _ in range(8))"}
OF_A_TRAJECTORY = {
    "final_policy_version": "leave it out: each call has the version that answered it",
    "initial_policy_version": "leave it out: each call has the version that answered it",
    "start_time": "leave it out: it is when the trajectory is made",
}
OF_REGISTRATION = {"_openai_client_config": "start the server before, with its options: `arttrace serve`"}
OF_TRAINING = {"trajectory_groups": "pass them by place: model.train(groups)"}
OF_A_CONFIG = dict.fromkeys(
    (
        *("_config", "adam_params", "advantage_balance", "epsilon", "epsilon_high", "importance_sampling_level"),
        *("final_training_step", "kl_penalty_source", "kl_ref_adapter_path", "loss_fn", "normalize_advantages"),
        *("optimizer_save_interval", "packed_sequence_length", "ppo", "scale_rewards"),
    ),
    f"{_OWN_SETTINGS}model.train(groups, loss_fn='ppo')",
)
OF_AN_SFT_CONFIG = {
    **dict.fromkeys(
        ("custom_lr_schedule", "peak_lr", "schedule_type", "warmup_ratio", "warmup_steps"),
        "pass a rate for each step: learning_rate=create_lr_schedule(steps, peak_lr)",
    ),
    **dict.fromkeys(
        ("epochs", "num_epochs"),
        "pass the trajectories as often, or a file: train_sft_from_file(epochs=2)",
    ),
    "adam_params": f"{_OWN_SETTINGS}model.train_sft(trajectories, config, adam_betas=(0.9, 0.95))",
}


def refusing(arguments: Mapping[str, str]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Of a function: a keyword that is among these raises TypeError with what to do instead.

    Args:
        arguments: By the name of an argument, what to do.
    """

    def decorate(called: Callable[_P, _R]) -> Callable[_P, _R]:
        name = called.__qualname__.removesuffix(".__init__")
        unknown = arguments.keys() - inspect.signature(called).parameters

        @functools.wraps(called)
        def checked(*given: _P.args, **named: _P.kwargs) -> _R:
            for one in named:
                if one in unknown:
                    raise TypeError(f"{name}() has no argument {one!r}, which ART's has: {arguments[one]}")
            return called(*given, **named)

        return checked

    return decorate


def made_without(arguments: Mapping[str, str]) -> Callable[[_C], _C]:
    """The same of a class.

    Args:
        arguments: By the name of an argument, what to do.
    """

    def decorate(made: _C) -> _C:
        setattr(made, "__init__", refusing(arguments)(made.__init__))  # type: ignore[misc]  # noqa: B010
        return made

    return decorate
