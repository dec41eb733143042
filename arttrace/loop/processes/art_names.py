"""ART's names of a step's settings, and what they mean here; those that mean nothing here are refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeVar, get_args

from arttrace.loop.processes.art_arguments import OF_A_CONFIG, OF_AN_SFT_CONFIG, made_without
from arttrace.records.values.units import quantity
from arttrace.system.errors import ArttraceError, TrainingError

T = TypeVar("T")

_SAME = {
    "kl_penalty_coef": "kl_weight",
    "kl_ref_adapter_path": "kl_reference",
    "max_negative_advantage_importance_sampling_weight": "delta",
}
"""What has another name here. A None leaves it out."""
_AS_MANY_AS_FIT = "Pass micro_batch_tokens=; by default as many as the memory has room for."
_NOT_HERE: dict[str, tuple[Any, str]] = {
    "_config": (None, "Pass its keys by themselves, under the names of `arttrace train`: advantages='std'."),
    "adam_params": (None, "Pass its values by themselves: adam_betas=(0.9, 0.95), adam_epsilon=, weight_decay=."),
    "advantage_balance": (0.0, "Choose how rewards are scaled: advantages='none', 'std', 'batch' or 'rloo'."),
    "allow_training_without_logprobs": (False, "Runs of other models are trained on by method='sft' or 'dpo'."),
    "final_training_step": (None, "End the loop once model.get_step() is there."),
    "grad_accumulation_sequences": (None, "Pass minibatches=, the number of optimizer steps of each pass."),
    "kimi_k2_tau": (None, "Pass kl_weight=, which holds the policy near its reference."),
    "kl_penalty_source": ("current_learner", "Leave it out: the KL term is of the policy as it is trained."),
    "kl_penalty_reference_step": (None, "Pass kl_reference=, the directory of that version's adapter (step.adapter)."),
    "logprob_calculation_chunk_size": (1024, _AS_MANY_AS_FIT),
    "loss_fn_config": (None, "Pass its keys by themselves, under the names of `arttrace train`: epsilon_low=0.2."),
    "mask_prob_ratio": (False, "Pass importance='token_mask' with importance_clip_max=."),
    **dict.fromkeys(
        ("moe_routing_replay_bundle", "moe_routing_replay_path"),
        (None, "Leave it out: which experts the engine chose is not replayed."),
    ),
    "normalize_by_length": (True, "Pass loss='dr_grpo', which divides by dr_grpo_length=."),
    "num_trajectories_learning_rate_multiplier_power": (0.0, "Pass the learning_rate= of each call."),
    "optimizer_save_interval": (5, "Pass keep_states=, the number of newest versions that keep the optimizer's state."),
    "packed_sequence_length": (None, _AS_MANY_AS_FIT),
    "plot_tensors": (False, "`arttrace show ID --tokens` prints what is trained on."),
    "ppo": (False, "Pass loss_fn='ppo'."),
    "precalculate_logprobs": (False, "Pass importance='token_truncate', which takes those of the newest version."),
    "save_checkpoint": (True, "Every step is a version; model.delete_checkpoints() removes old ones."),
    "scale_learning_rate_by_reward_std_dev": (False, "Pass the learning_rate= of each call."),
    "top_k_entropy": (0, "Leave it out: the entropy of all tokens is among a step's numbers."),
}
"""What has no counterpart: the value by which ART does without it, and what does the like here, for GRPO at least."""
_LIKE_IT_IN_ANY_METHOD = frozenset(
    {
        *("adam_params", "allow_training_without_logprobs", "num_trajectories_learning_rate_multiplier_power"),
        *("final_training_step", "optimizer_save_interval", "plot_tensors", "save_checkpoint"),
        *("scale_learning_rate_by_reward_std_dev",),
    }
)
"""Those of them for which SFT and DPO have what is named there too."""
_A_RATE_EACH = "Pass a rate for each step: config=TrainSFTConfig(create_lr_schedule(steps, peak_lr))."
_AS_OFTEN = "Pass the trajectories as often as they are to be imitated, or a file: train_sft_from_file(epochs=2)."
_WHICH = "Pass the trajectories that are to be imitated: they are, whatever their rewards."
_NOT_OF_IMITATION: dict[str, tuple[Any, str]] = {
    **{
        name: (None, f"Pass it in the config: config=TrainSFTConfig({name}=...).")
        for name in ("assistant_turns", "batch_size", "learning_rate")
    },
    **dict.fromkeys(("custom_lr_schedule", "decay", "peak_lr", "schedule_type", "warmup_ratio"), (None, _A_RATE_EACH)),
    "warmup_steps": (0, _A_RATE_EACH),
    **dict.fromkeys(("epochs", "num_epochs"), (1, _AS_OFTEN)),
    "again": (False, _WHICH),
    "min_reward": (None, _WHICH),
    **dict.fromkeys(("loss", "loss_fn"), (None, "Leave it out: imitation has one loss.")),
}
"""What `train_sft` takes elsewhere than among its settings: the value that asks for nothing, and where."""
_OF_KEYS = frozenset({"_config", "loss_fn_config"})
_STATE = "missing: keep what a loop remembers in a file; iterate_dataset goes on at initial_step=model.get_step()"
_OF_MODELS = {
    **dict.fromkeys(
        ("activate_metrics_context", "cost_calculator", "set_cost_calculator"),
        "missing: `arttrace stats` sums up tokens",
    ),
    **dict.fromkeys(("merge_state", "overwrite_state", "read_state", "write_state"), _STATE),
    "metrics_builder": "model.log(metrics={...})",
    "model_copy": "copy.deepcopy(model)",
    "model_dump": "vars(model)",
    "safe_model_dump": "vars(model)",
    "train_sft": "an attribute of a TrainableModel",
    "update_wandb_config": "missing: report_to='wandb' reports the settings of the training",
}
"""What attributes of ART's models are here."""
_AUTO_BATCH = 2
_PPO_CLIP = 0.2
"""What ART's ppo clips its ratio by, on either side, where nothing is passed."""


@made_without(OF_A_CONFIG)
@dataclass(frozen=True)
class TrainConfig:
    """Settings of a step, by the names that ART's programs use; None leaves the default of `arttrace train`.

    Args:
        learning_rate: AdamW's learning rate.
        beta: The weight of the KL divergence from the reference model (`kl_weight` of `arttrace train`).
        kl_penalty_coef: The same, by the name that newer programs use.
        grad_accumulation_sequences: Refused: pass `minibatches` to `model.train` instead.

    Raises:
        TrainingError: A setting that has no counterpart is passed, or two names of one.
    """

    learning_rate: float | None = None
    beta: float | None = None
    kl_penalty_coef: float | None = None
    grad_accumulation_sequences: int | None = None

    def __post_init__(self) -> None:
        self.settings()

    def settings(self) -> dict[str, Any]:
        """The options of `arttrace train` by their names."""
        named = {"learning_rate": self.learning_rate, "kl_weight": self.beta, "kl_penalty_coef": self.kl_penalty_coef}
        named["grad_accumulation_sequences"] = self.grad_accumulation_sequences
        return own_settings({name: value for name, value in named.items() if value is not None})


AssistantTurns = Literal["all", "last"]


@made_without(OF_AN_SFT_CONFIG)
@dataclass(frozen=True)
class TrainSFTConfig:
    """How `train_sft` shares trajectories out over optimizer steps, by the names that ART's programs use.

    Args:
        learning_rate: AdamW's learning rate, for all steps or one for each.
        batch_size: The number of trajectories in a step; "auto" is 2, as in ART.
        assistant_turns: Which messages of the role assistant are imitated: all, or the last of each trajectory, the
            others being context.

    Raises:
        TrainingError: A value is not one of these.
    """

    learning_rate: float | Sequence[float] = 5e-5
    batch_size: int | Literal["auto"] = "auto"
    assistant_turns: AssistantTurns = "all"

    def __post_init__(self) -> None:
        if self.batch_size != "auto" and not (isinstance(self.batch_size, int) and self.batch_size > 0):
            raise TrainingError(f"batch_size is {self.batch_size!r}", "Pass a number from 1 on, or 'auto'.")
        if self.assistant_turns not in get_args(AssistantTurns):
            raise TrainingError(f"assistant_turns is {self.assistant_turns!r}", "Pass 'all' or 'last'.")
        given: Any = self.learning_rate
        for rate in given if isinstance(given, Sequence) else (given,):
            if not isinstance(rate, Real) or not 0 <= float(rate) < math.inf:
                raise TrainingError(f"learning_rate is {given!r}", "Pass a finite number from 0 on, or a list of such.")

    @property
    def trajectories_per_step(self) -> int:
        """The number of trajectories in a step."""
        return _AUTO_BATCH if self.batch_size == "auto" else int(self.batch_size)

    def learning_rates(self, steps: int) -> list[float]:
        """The learning rate of each step.

        Args:
            steps: The number of steps.

        Raises:
            TrainingError: There are more or fewer of them.
        """
        given = self.learning_rate
        rates = list(given) if isinstance(given, Sequence) else [given] * steps
        if len(rates) != steps:
            raise TrainingError(
                f"there are {quantity(len(rates), 'learning rate')} for {quantity(steps, 'optimizer step')}",
                f"Pass one number, or one for each step of {quantity(self.trajectories_per_step, 'trajectory')}.",
            )
        return [float(rate) for rate in rates]


def settings_of(config: TrainConfig | None) -> dict[str, Any]:
    """The options of `arttrace train` that a config sets. Raises ArttraceError where it is something else."""
    if config is None:
        return {}
    if not isinstance(config, TrainConfig):
        raise ArttraceError(
            f"a {type(config).__name__} is no TrainConfig",
            "Pass config=TrainConfig(learning_rate=1e-5), or the options themselves: learning_rate=1e-5.",
        )
    return config.settings()


def own_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as options of `arttrace train`, those among them that have the names of ART's `backend.train` too.

    Args:
        given: Settings by either name; without `method` those of GRPO.

    Returns:
        The options by their names; what had these names already is as it was.

    Raises:
        TrainingError: One has no counterpart here, or two of them name the same option.
    """
    if (config := given.get("config")) is not None:
        raise _config_refused(config)
    own = {name: value for name, value in given.items() if name not in _OF_ART}
    for name, (without, _) in _NOT_HERE.items():
        if given.get(name, without) != without:
            raise TrainingError(
                f"there is no {name} here, which ART's {name}={given[name]!r} asks for",
                _remedy(name, given.get("method", "grpo")),
            )
    translated = {_SAME[name]: given[name] for name in _SAME if given.get(name) is not None}
    if given.get("loss_fn") is not None or given.get("epsilon") is not None:  # else `epsilon_high` is our option
        translated |= _loss(given)
        own.pop("epsilon_high", None)
    scales = [given[name] for name in ("normalize_advantages", "scale_rewards") if name in given]
    if scales:
        translated["advantages"] = "std" if all(scales) else "none"
    if (bound := given.get("truncated_importance_sampling")) is not None:
        translated |= {"importance": "token_truncate", "importance_clip_max": bound}
    for name in sorted(translated.keys() & own.keys()):
        raise TrainingError(f"{name} is passed twice, by ART's name for it too", "Pass one of them.")
    return {**own, **translated}


def _config_refused(config: object) -> TrainingError:
    """Whoever passes a config where options are passed learns which options it sets."""
    sets = config.settings() if isinstance(config, TrainConfig) else {}
    options = ", ".join(f"{name}={value!r}" for name, value in sets.items()) or "learning_rate=1e-5"
    if isinstance(config, TrainConfig) and not sets:
        return TrainingError("backend.train takes no config, and this one sets nothing", "Leave it out.")
    return TrainingError(
        "backend.train takes no config, which is of model.train(groups, config=...)",
        f"Pass its settings by themselves: backend.train(model, groups, {options}).",
    )


def settings_of_imitation(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `train_sft` as options of `arttrace train --method sft`.

    Args:
        given: Settings by either name.

    Raises:
        TrainingError: One is said elsewhere, by the config or by the trajectories that are passed, or as by
            `own_settings`.
    """
    for name, (nothing, remedy) in _NOT_OF_IMITATION.items():
        if given.get(name) not in (None, nothing):
            raise TrainingError(f"{name} is no setting of train_sft", remedy)
    asked = {name: value for name, value in given.items() if name not in _NOT_OF_IMITATION}
    return own_settings({"method": "sft", **asked})


_OF_ART = {
    *_SAME,
    *_NOT_HERE,
    *("loss_fn", "epsilon", "normalize_advantages", "scale_rewards", "truncated_importance_sampling"),
    "config",
    "verbose",  # a step says how far it is, whatever it is
}


def _remedy(name: str, method: str) -> str:
    """What is passed in the place of a setting of ART that has no counterpart, for a method."""
    if method == "grpo" or name in _LIKE_IT_IN_ANY_METHOD:
        return _NOT_HERE[name][1]
    what = "Pass its keys by themselves" if name in _OF_KEYS else "Leave it out; other options are passed by themselves"
    return f"{what}, under the names of `arttrace train --method {method}`: max_length=4096."


def _loss(given: Mapping[str, Any]) -> dict[str, Any]:
    """The loss that `loss_fn` names, and the bounds of its ratio that `epsilon` and `epsilon_high` are."""
    loss_fn, low, high = (given.get(name) for name in ("loss_fn", "epsilon", "epsilon_high"))
    if loss_fn not in (None, "cispo", "ppo"):
        raise TrainingError(f"there is no loss_fn {loss_fn!r}", "Pass loss=, as `arttrace train --help` lists them.")
    named = {} if loss_fn is None else {"loss": "dapo" if loss_fn == "ppo" else "cispo"}
    if named.get("loss", given.get("loss", "cispo")) != "cispo":
        low = _PPO_CLIP if low is None else low
        return {**named, "epsilon_low": low, "epsilon_high": low if high is None else high}
    if low is not None and low < 1:
        raise TrainingError(
            f"there is no lower bound of cispo's ratio here, which ART's epsilon={low!r} asks for",
            "Leave it out, or pass loss_fn='ppo', which has one.",
        )
    return named if high is None else {**named, "cispo_max_ratio": 1 + high}


def said_of_attribute(of: str, name: str) -> str:
    """What an AttributeError says of an attribute that a model lacks, and what ART's is here.

    Args:
        of: The class's name.
        name: The attribute's.
    """
    here = f"; ART's {name} is here {_OF_MODELS[name]}" if name in _OF_MODELS else ""
    return f"{of!r} object has no attribute {name!r}{here}"


def either(ours: T | None, of_art: T | None, names: str) -> T | None:
    """An argument that may be passed by ART's name. Raises TypeError where both are.

    Args:
        ours: What was passed by our name.
        of_art: What was passed by ART's.
        names: Both names, for the error.
    """
    if ours is not None and of_art is not None:
        raise TypeError(f"{names} are the same: pass one")
    return of_art if ours is None else ours
