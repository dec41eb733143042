"""Which weights a base model has, by a few of their bytes: its directory keeps its name when others come in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

_KINDS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.bin")
"""The files of weights, as they are loaded: of an earlier kind where there are any. Others lie beside them, such as the
same weights in Mistral's own form."""
_PLACES, _BYTES = 16, 4096
"""How many places of each file of weights are read, and how much there."""


def weights_digest(directory: Path, kinds: Sequence[str] = _KINDS) -> str:
    """A digest of the weights in a model's directory: names, sizes and some of the bytes of their files.

    Args:
        directory: The model's directory.
        kinds: Patterns of files of weights; the first that matches any is taken.

    Returns:
        32 hexadecimal digits, or "" where there are no weights.
    """
    found = hashlib.blake2b(digest_size=16)
    there = ([path for path in directory.glob(kind) if path.is_file()] for kind in kinds)
    weights = sorted(next(filter(None, there), []))
    for path in weights:
        size = path.stat().st_size
        found.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for place in range(_PLACES):
                file.seek(max(0, size - _BYTES) * place // (_PLACES - 1))
                found.update(file.read(_BYTES))
    return found.hexdigest() if weights else ""


def weights_digest_in_0_1(directory: Path) -> str:
    """The digest that arttrace 0.1 made of a model's directory: of all files of the format.

    Args:
        directory: The model's directory.

    Returns:
        As `weights_digest`.
    """
    return weights_digest(directory, _KINDS[1:])
