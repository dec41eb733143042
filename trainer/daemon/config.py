"""DaemonConfig: all that `arttrace train --daemon` takes from a file, the environment and flags.

A name that is no field is an error wherever it stands, in the environment too.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError
from pydantic_core import ErrorDetails

from arttrace.records.values.lenient_json import well_formed
from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.addresses import without_login
from arttrace.system.errors import TrainingError
from arttrace.system.files import written_text
from trainer.grpo.advantages import STD_FLOOR, Scale
from trainer.learner.config import LearnerConfig
from trainer.policies.retention import Keep

PREFIX = "ARTTRACE_TRAIN_"
_LEARNER = "learner"
_JUDGE_URL = "judge_base_url"
_LISTS = ("decay", "adam_betas", "lora_targets")
"""Fields of the learner that the environment has as comma lists."""
_LONGEST_S = 1e9
"""Thirty years: what the clock and a condition's timeout can be asked for."""


def _learner(given: Any) -> Any:
    """A LearnerConfig that makes sense, from its fields; numbers may be text, as the environment has them."""
    if isinstance(given, LearnerConfig):
        return given.checked()
    if isinstance(given, dict) and (unknown := given.keys() - set(LearnerConfig.__dataclass_fields__)):
        raise ValueError(f"no such field: {', '.join(sorted(map(str, unknown)))}")
    if isinstance(given, dict):
        listed = {name: names(value) for name in _LISTS if isinstance(value := given.get(name), str) and "," in value}
        given = {**given, **listed}
    try:
        return msgspec.convert(given, LearnerConfig, strict=False).checked()
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def names(given: Any) -> Any:
    """A comma list as the tuple it means."""
    return tuple(name.strip() for name in given.split(",") if name.strip()) if isinstance(given, str) else given


Learner = Annotated[LearnerConfig, BeforeValidator(_learner), PlainSerializer(msgspec.to_builtins)]


class DaemonConfig(BaseModel):
    """The daemon's settings, in the order of its state machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    policy: str | None = Field(None, description="Name of the policy.")
    base_model: Path | None = Field(None, description="Model directory to train on.")
    min_groups: int = Field(4, ge=1, description="Groups per step; those that have been ready longest come first.")
    max_wait: float = Field(
        300.0, ge=0, le=_LONGEST_S, description="Seconds after which a step takes fewer groups, where some are ready."
    )
    group_size: int = Field(4, ge=2, description="A group is ready when it has this many complete runs.")
    poll: float = Field(
        2.0,
        gt=0,
        le=_LONGEST_S,
        description="Seconds between two checks of the store; at least four times what a check takes, up to 60.",
    )
    judge: str | None = Field(
        None, description="Judge model that scores ready groups; without one, only rewarded runs count."
    )
    judge_base_url: str | None = Field(
        None, pattern="^https?://", description="Ask this server (chat completions) for judgements."
    )
    rubric: str | None = Field(None, description="What a good run is: a file, or words.")
    votes: int = Field(1, ge=1, le=15, description="Judgements per group, each in another order.")
    advantages: Scale = Field("none", description="How rewards are scaled within a group.")
    std_floor: float = Field(STD_FLOOR, gt=0, description="Least standard deviation that rewards are divided by.")
    max_staleness: int | None = Field(
        None, ge=0, description="Leave out runs sampled more than this many steps before."
    )
    max_steps: int | None = Field(None, ge=1, description="Stop when the policy is at this version.")
    max_skips: int = Field(10, ge=1, description="Stop after this many rounds in a row that could not be computed.")
    solved_pause: float = Field(
        600.0,
        ge=0,
        le=_LONGEST_S,
        description="Seconds for which runs of a scenario wait after its rewards were all equal; doubled each time.",
    )
    keep: Keep = Field(Keep(), description="Which versions keep their weights.")  # type: ignore[call-arg]
    report_to: Annotated[tuple[str, ...], BeforeValidator(names)] = Field(
        (), description="Also report to these: wandb, tensorboard, trackio, mlflow."
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Serve Prometheus metrics on this port; without it they are beside the store's API.",
    )
    learner: Learner = Field(LearnerConfig(), description="How one step trains; see LearnerConfig.")


def load_config(
    file: Path | None, flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> DaemonConfig:
    """The config: flags before environment (ARTTRACE_TRAIN_MIN_GROUPS, ARTTRACE_TRAIN_LEARNER__LOSS) before file.

    Flags of the learner are fields of LearnerConfig by name; None means not given. Raises TrainingError that names
    what is wrong, and where it may be.
    """
    given = _of_file(file)
    for name, value in environment.items():
        if name.startswith(PREFIX):
            _put(given, name.removeprefix(PREFIX).lower().split("__"), value)
    for name, value in flags.items():
        if value is not None:
            path = name.split("__")
            _put(given, path if path[0] in DaemonConfig.model_fields else [_LEARNER, name], value)
    look = f"Look at the flags, at {PREFIX}... in the environment" + (f", and at {file}." if file else ".")
    if (unreadable := _not_utf8(given)) is not None:
        raise TrainingError(f"The configuration of the daemon is wrong at {unreadable!a}: it is not UTF-8.", look)
    try:
        return DaemonConfig.model_validate(given)
    except ValidationError as error:
        raise TrainingError(
            f"The configuration of the daemon is wrong at {'; at '.join(map(_wrong, error.errors()))}.",
            look,
        ) from None


def _not_utf8(given: Any) -> str | None:
    """The first name or value of bytes that are not UTF-8: a file of the configuration, which is TOML, or of a
    version, which is JSON, cannot have it."""
    if isinstance(given, dict):
        given = [part for setting in given.items() for part in setting]
    if isinstance(given, list | tuple):
        return next((found for one in given if (found := _not_utf8(one)) is not None), None)
    text = str(given) if isinstance(given, str | Path) else ""
    return text if well_formed(text) != text else None


def _wrong(error: ErrorDetails) -> str:
    """A setting that cannot be taken, and why, in words that name no type of Python's."""
    why = {"extra_forbidden": "there is no such setting", "path_type": "a path as text is expected"}
    return f"{'.'.join(map(str, error['loc']))}: {why.get(error['type'], error['msg'])}"


def shown_config(config: DaemonConfig) -> dict[str, Any]:
    """The whole config as JSON has it, for people and logs: the judge's address is without the login in it."""
    document = config.model_dump(mode="json")
    if config.judge_base_url is not None:
        document[_JUDGE_URL] = without_login(config.judge_base_url)
    return document


def print_config(config: DaemonConfig) -> str:
    """The whole config as a TOML file that means the same; what has no value is a comment. A login in the judge's
    address is left out, and a comment says where to give it."""
    document = shown_config(config)
    tables = {name: value for name, value in document.items() if isinstance(value, dict)}
    lines = [_line(name, value) for name, value in document.items() if name not in tables]
    if document[_JUDGE_URL] != config.judge_base_url:
        place = lines.index(_line(_JUDGE_URL, document[_JUDGE_URL]))
        lines[place] += f"  # its login is not printed: give it in {PREFIX}{_JUDGE_URL.upper()}"
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(_line(key, value) for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} ="
    return f"{name} = {msgspec.json.encode(value).decode()}"  # what JSON and TOML have in common


def _of_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(written_text(file))
    except OSError as error:
        raise TrainingError(f"The configuration {file} cannot be read: {error}.") from error
    except UNREADABLE as error:
        hint = "Write it as TOML, NAME = VALUE a line; `arttrace train --daemon --print-config` prints all of them."
        raise TrainingError(f"The configuration {file} is no TOML: {error}.", hint) from error


def _put(document: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = document.setdefault(name, {})
        if not isinstance(inner, dict):
            raise TrainingError(f"{name} in the configuration of the daemon holds fields, not a value.")
        document = inner
    document[path[-1]] = value
