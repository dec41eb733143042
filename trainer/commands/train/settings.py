"""TrainSettings: the settings of a training by its method; those that the method does not read are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from arttrace.system.errors import TrainingError
from trainer.daemon.config import names
from trainer.grpo.advantages import STD_FLOOR, Scale
from trainer.learner import LearnerConfig
from trainer.policies.retention import KEPT_STATES

METHODS = ("grpo", "sft", "dpo")
"""Those of an order; the command has "distill" besides."""

_OFFLINE = ("sft", "dpo")
SAMPLED = ("grpo", "distill")
"""The methods that train on what the policy itself sampled."""
_READ_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("advantages", "std_floor"), ("grpo",)),
    **dict.fromkeys(("teacher", "teacher_model"), ("distill",)),
    **dict.fromkeys(("steps", "max_staleness"), SAMPLED),
    **dict.fromkeys(("engine", "micro_batch_tokens", "minibatches", "max_logprob_difference"), SAMPLED),
    **dict.fromkeys(("loss", "epsilon_low", "epsilon_high", "delta", "cispo_max_ratio", "dr_grpo_length"), SAMPLED),
    **dict.fromkeys(("importance", "importance_clip_min", "importance_clip_max"), SAMPLED),
    **dict.fromkeys(("importance_sampling_level", "kl_weight", "kl_estimator", "kl_reference"), SAMPLED),
    **dict.fromkeys(("use_bias_correction_kl", "max_kl"), SAMPLED),
    "min_reward": ("sft",),
    "min_gap": ("dpo",),
    "max_length": _OFFLINE,
    "again": _OFFLINE,
}
"""The methods that read a setting; a setting that is not listed is read by all."""
_ORDERED = ("learning_rate", "warmup_steps", "decay", "epochs", "min_reward", "again")
"""Settings of SFT in whose place batches stand."""
_LEAST = {"steps": 1, "keep_states": 0, "max_staleness": 0, "max_length": 2, "min_gap": 0}


class TrainSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `arttrace train`, by their names; those of the learner are in `learner`."""

    method: str = "grpo"
    steps: int = 1
    advantages: Scale = "none"
    std_floor: float = STD_FLOOR
    keep_states: int = KEPT_STATES
    max_staleness: int | None = None
    min_reward: float | None = None
    min_gap: float = 0.1
    max_length: int | None = None
    again: bool = False
    teacher: str | None = None
    teacher_model: str | None = None
    report_to: tuple[str, ...] = ()
    learner: LearnerConfig = LearnerConfig()


def parse_settings(given: dict[str, Any]) -> TrainSettings:
    """Settings from one flat mapping of options. Raises a TrainingError that names what is wrong."""
    of_learner = {name: value for name, value in given.items() if name in LearnerConfig.__dataclass_fields__}
    own = {name: value for name, value in given.items() if name not in of_learner}
    if "learner" in own:
        raise TrainingError("There is no setting 'learner'.", "Pass its fields by their names: learning_rate=1e-4.")
    if isinstance(own.get("report_to"), str):
        own["report_to"] = names(own["report_to"])
    try:
        learner = msgspec.convert(of_learner, LearnerConfig).checked()
        settings = msgspec.structs.replace(msgspec.convert(own, TrainSettings), learner=learner)
    except msgspec.ValidationError as error:
        raise TrainingError(
            f"The settings of the training are wrong: {error}.", "See `arttrace train --help`."
        ) from None
    if settings.method == "distill":
        raise TrainingError(
            "A training loop's orders have no method 'distill'.", "Use `arttrace train --method distill` beside it."
        )
    if settings.method not in METHODS:
        raise TrainingError(f"There is no method {settings.method!r}.", "Use grpo, sft or dpo.")
    for name, methods in not_read(settings):
        raise TrainingError(
            f"{name} is a setting of {' and '.join(methods)}, and does nothing for {settings.method}.",
            "Leave it out, or train by a method that reads it.",
        )
    if not settings.std_floor > 0:
        raise TrainingError(f"std_floor must be above 0, not {settings.std_floor}.")
    for name, least in _LEAST.items():
        if (value := getattr(settings, name)) is not None and not value >= least:
            raise TrainingError(f"{name} must be at least {least}, not {value}.")
    return settings


def require_for_batches(settings: TrainSettings) -> None:
    """Raise TrainingError for a setting that batches do not read: their runs, and how often and by how much they are
    learned, are ordered."""
    if settings.method != "sft":
        raise TrainingError(f"Batches are imitated by sft, not by {settings.method}.", "Leave method out.")
    usual = TrainSettings()
    for name in _ORDERED:
        if _value(settings, name) != _value(usual, name):
            raise TrainingError(
                f"{name} does nothing where batches are given.",
                "Leave it out: each batch has its runs and its learning rate.",
            )


def not_read(settings: TrainSettings) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The settings that differ from their defaults and that the method does not read, with the methods that do."""
    usual = TrainSettings()
    for name, methods in _READ_BY.items():
        if settings.method not in methods and _value(settings, name) != _value(usual, name):
            yield name, methods


def _value(settings: TrainSettings, name: str) -> Any:
    return getattr(settings if name in settings.__struct_fields__ else settings.learner, name)
