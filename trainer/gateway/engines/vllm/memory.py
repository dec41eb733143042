"""The share of a card that vLLM takes if a learner may run on the same one. Pure, except for the card's size.

vLLM reserves its share at the start, weights and KV cache together, and by itself it takes 92 %: a learner that comes
after finds no room. So what the learner needs is estimated, and the engine gets the rest.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from trainer.learner.machine.needs import LearnerNeeds

_GIB = 1 << 30
_MOST = 0.92
"""What vLLM takes by default."""
_LEAST_TOKENS, _MOST_TOKENS = 8192, 65_536
"""Tokens of the micro-batch that the learner must have room for, and for which it can use more."""
_LEARNER_CONTEXT = 3 * _GIB // 2
_ENGINE_OVERHEAD, _LEAST_CACHE = 2 * _GIB, _GIB
"""Beside its weights: activations and graphs; and the least KV cache that serves anything."""


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The share of the card that vLLM takes, None for its own default, and why."""

    value: float | None
    reason: str


def share_of_card(total: int | None, needs: LearnerNeeds, *, sleeps: bool, alone: bool) -> MemoryShare:
    """The engine's share of a card with `total` bytes (None: not known). `sleeps`: it gives its memory back while the
    learner steps. `alone`: no learner comes to its card."""
    if alone:
        return MemoryShare(None, "another card is left to the learner")
    if total is None:
        return MemoryShare(0.6 if sleeps else None, "the card's memory is not known")
    kept = needs.weights + needs.lora + _LEARNER_CONTEXT
    learner = kept
    if not sleeps:
        spare = total - kept - needs.weights - _ENGINE_OVERHEAD - _LEAST_CACHE
        learner += max(_LEAST_TOKENS * needs.token, min(_MOST_TOKENS * needs.token, spare // 2))
    share = min(_MOST, int(100 * (total - learner) / total) / 100)
    doing = "keeps between its steps" if sleeps else "needs beside it"
    if share * total < needs.weights + _ENGINE_OVERHEAD + _LEAST_CACHE:
        way = "another card, or a smaller base model" if sleeps else "another card, or --sleep-while-training"
        return MemoryShare(None, f"no room for the {learner / _GIB:.1f} GiB that a learner {doing}: it needs {way}")
    return MemoryShare(
        share, f"of {total / _GIB:.1f} GiB, a learner on the same card {doing} {learner / _GIB:.1f} GiB by estimate"
    )


def card_bytes(card: str | None) -> int | None:
    """The memory of a card as nvidia-smi prints it, by its number or name; None: the first. None where it cannot be
    asked."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command + (["-i", card] if card else []), capture_output=True, text=True, timeout=10, check=False
        )
        return int(done.stdout.split()[0]) * (1 << 20) if done.returncode == 0 else None
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None
