"""Whether a version was made for a base model: on another of the same shape its LoRA would run, and mean nothing."""

from __future__ import annotations

import re
from pathlib import Path

from arttrace.records.policy import PolicyStep
from arttrace.system.errors import TrainingError
from trainer.gateway.status import ServingFile
from trainer.policies.base_weights import weights_digest, weights_digest_in_0_1
from trainer.policies.checkpoints import Checkpoints
from trainer.serving.hub import hub_name


def require_base(manifest: PolicyStep, given: str | Path) -> None:
    """Raise TrainingError, with both base models and the remedy, where the version was made for another base model than
    the given one: a directory, or a name on the hub."""
    recorded = manifest.base_model
    if is_base(recorded, str(given), manifest.base_weights):
        return
    if Path(recorded).resolve() == Path(given).resolve():
        raise TrainingError(
            f"{manifest.version} is a LoRA on other weights than are in {given} now.",
            "Put the weights back that it was made for, or begin a policy of another name.",
        )
    hint = f"Give {recorded} as the base model (--base-model, base_model=), or begin a policy of another name."
    if Path(given).is_dir() and not Path(recorded).exists():
        hint += f" If both are the same model: ln -s {given} {recorded}"
    raise TrainingError(f"{manifest.version} is a LoRA on {recorded}, not on {given}.", hint)


def require_served(serving: ServingFile | None, policy: str, base_model: Path | None) -> None:
    """Raise TrainingError if the running gateway would serve the result as another policy's version."""
    if serving is None:
        return
    if serving.policy != policy:
        raise TrainingError(
            f"`arttrace serve` runs on this directory for the policy {serving.policy!r}, not {policy!r}.",
            f"Train {serving.policy!r}, or restart it with --policy {policy}.",
        )
    if base_model is not None and base_model.resolve() != Path(serving.base_model).resolve():
        raise TrainingError(
            f"`arttrace serve` runs on this directory with the base model {serving.base_model}, not {base_model}.",
            "Leave --base-model out, or restart it with the other base model.",
        )


def require_base_of_newest(checkpoints: Checkpoints, given: Path) -> None:
    """As `require_base`, for the version that the next one goes on from."""
    if (newest := checkpoints.latest()) is not None:
        require_base(checkpoints.manifest(newest), given)


def is_base(recorded: str, given: str, weights: str = "") -> bool:
    """Whether what a manifest records as the base model is the given one.

    A directory with the same weights is, compared in some places, wherever it is. Of a manifest that does not say which
    they were, the recorded directory is taken as it is now. Where one of the two is not on this machine its name
    decides: a model may have been moved, and a policy may come from another machine.

    Args:
        recorded: A directory, "" where the manifest does not say: then any is.
        given: A directory, or a name on the hub.
        weights: The recorded `weights_digest`, "" where the manifest does not say.
    """
    then, now = Path(recorded), Path(given)
    if now.is_dir() and weights and (found := weights_digest(now)):
        return found == weights or weights_digest_in_0_1(now) == weights
    if not recorded or then.resolve() == now.resolve():
        return True
    if then.is_dir() and now.is_dir() and (found := weights_digest(now)):
        return found == weights_digest(then)
    return _name(recorded) == _name(given)


def _name(model: str) -> str:
    """The model's name without whose it is: from the hub's cache, a directory, or a name on the hub."""
    cached = re.search(r"models--[^/]+--([^/]+)/snapshots/", f"{model}/")
    if cached is not None:
        return cached[1].lower()
    path = Path(model)
    return (path.resolve().name if path.is_dir() else hub_name(model).rstrip("/").rpartition("/")[2]).lower()
