"""The file of what a step computed for each token, written beside the version that came out of it."""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from arttrace.records.values.learned_tokens import (
    CLIPPED,
    LEARNED_TOKENS,
    LEFT_OUT,
    MASKED,
    Columns,
    encode_learned,
    little_endian,
)

_log = logging.getLogger("trainer")


class Fates(NamedTuple):
    """What became of targets, masks of shape (M,): see the file's flags."""

    clipped: torch.Tensor
    left_out: torch.Tensor
    masked: torch.Tensor

    def flags(self) -> torch.Tensor:
        """As the file's flags, uint8."""
        found = torch.zeros_like(self.clipped, dtype=torch.uint8)
        for mask, flag in zip(self, (CLIPPED, LEFT_OUT, MASKED), strict=True):
            found |= mask.to(torch.uint8) * flag
        return found


def columns_of(
    rows: Iterable[tuple[str, Sequence[float], Sequence[bool]]],
    logps: torch.Tensor,
    ratios: torch.Tensor,
    flags: torch.Tensor,
) -> Iterator[Columns]:
    """The key, advantages (T,) or (1,), and targets (T,) of each row, with its part of the tensors, all (M,): one entry
    per target."""
    arrays = logps.cpu().numpy().astype("<f2"), ratios.cpu().numpy().astype("<f2"), flags.cpu().numpy()
    first = 0
    for key, advantages, targets in rows:
        places = array("I", (place for place, target in enumerate(targets) if target))
        last = first + len(places)
        same = len(advantages) == 1
        own = b"" if same else little_endian(array("f", (advantages[place] for place in places)))
        logprobs, ratio, fates = (one[first:last].tobytes() for one in arrays)
        yield Columns(key, advantages[0] if same else None, little_endian(places), logprobs, ratio, fates, own)
        first = last


def write_learned(directory: Path, sequences: Sequence[Columns]) -> None:
    """Put the file into a version's directory; a disk that refuses it costs the file, and a warning."""
    path = directory / LEARNED_TOKENS
    try:
        path.write_bytes(encode_learned(sequences))
    except OSError as error:
        _log.warning(
            "%s was not written: %s. The version is whole; the viewer shows no log-probability of the learner for it.",
            path,
            error.strerror or error,
        )
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
