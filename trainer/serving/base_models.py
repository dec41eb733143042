"""Whether a version was made for a base model: on another of the same shape its LoRA would run, and mean nothing."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from arttrace.records.policy import PolicyStep
from arttrace.system.errors import TrainingError
from trainer.policies.checkpoints import Checkpoints
from trainer.serving.hub import hub_name

_PLACES, _BYTES = 16, 4096
"""How many places of each file of weights are compared, and how much there."""


def require_base(manifest: PolicyStep, given: str | Path) -> None:
    """Raise TrainingError, with both base models and the remedy, where the version was made for another base model than
    the given one: a directory, or a name on the hub."""
    recorded = manifest.base_model
    if is_base(recorded, str(given)):
        return
    hint = f"Give {recorded} as the base model (--base-model, base_model=), or begin a policy of another name."
    if Path(given).is_dir() and not Path(recorded).exists():
        hint += f" If both are the same model: ln -s {given} {recorded}"
    raise TrainingError(f"{manifest.version} is a LoRA on {recorded}, not on {given}.", hint)


def require_base_of_newest(checkpoints: Checkpoints, given: Path) -> None:
    """As `require_base`, for the version that the next one goes on from."""
    if (newest := checkpoints.latest()) is not None:
        require_base(checkpoints.manifest(newest), given)


def is_base(recorded: str, given: str) -> bool:
    """Whether what a manifest records as the base model is the given one.

    The same directory is, and one with the same weights, compared in some places. Where one of the two is not on this
    machine its name decides: a model may have been moved, and a policy may come from another machine.

    Args:
        recorded: A directory, "" where the manifest does not say: then any is.
        given: A directory, or a name on the hub.
    """
    then, now = Path(recorded), Path(given)
    if not recorded or then.resolve() == now.resolve():
        return True
    if then.is_dir() and now.is_dir():
        return _fingerprint(then) == _fingerprint(now)
    return _name(recorded) == _name(given)


def _name(model: str) -> str:
    """The model's name without whose it is: from the hub's cache, a directory, or a name on the hub."""
    cached = re.search(r"models--[^/]+--([^/]+)/snapshots/", f"{model}/")
    if cached is not None:
        return cached[1].lower()
    path = Path(model)
    return (path.resolve().name if path.is_dir() else hub_name(model).rstrip("/").rpartition("/")[2]).lower()


def _fingerprint(directory: Path) -> str:
    """Of the weights: names, sizes and some of the bytes of their files. Of the config where there are none."""
    found = hashlib.blake2b(digest_size=16)
    weights = sorted(path for kind in ("*.safetensors", "*.bin") for path in directory.glob(kind))
    for path in weights or [directory / "config.json"]:
        size = path.stat().st_size if path.is_file() else 0
        found.update(f"{path.name} {size}\n".encode())
        if size:
            with path.open("rb") as file:
                for place in range(_PLACES):
                    file.seek(max(0, size - _BYTES) * place // (_PLACES - 1))
                    found.update(file.read(_BYTES))
    return found.hexdigest()
