"""Ages, sizes and numbers of things as people write them: 30d, 12h, 10GB, 1 run, 2 runs."""

from __future__ import annotations

import re

SECONDS_OF_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SECOND = 1_000_000_000
_MOST = (1 << 63) - 1  # a column's; the module of such ranges needs msgspec, which a machine with a card may lack
_SIZES = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}


def age_ns(text: str) -> int:
    """The age in nanoseconds, at most what a column holds. Raises ValueError if the text is not an age."""
    found = re.fullmatch(r"(\d+)([smhdw])", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not an age such as 30d, 12h or 2w")
    return int(min(float(found[1]) * SECONDS_OF_UNIT[found[2]], _MOST // _SECOND)) * _SECOND


def size_bytes(text: str) -> int:
    """The size in bytes, at most what a column holds. Raises ValueError if the text is not a size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip().upper())
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 10GB or 500MB")
    return int(min(float(found[1]) * _SIZES[found[2]], _MOST))


def size_text(size: int) -> str:
    """So many bytes in the largest unit that fits: 312 B, 4.1 KB, 71 GB."""
    value, names = float(size), [f"{name}B" for name in _SIZES]
    while value >= 999.5 and len(names) > 1:
        value, names = value / 1000, names[1:]
    return f"{value:.1f} {names[0]}" if 0 < value < 9.95 and names[0] != "B" else f"{value:.0f} {names[0]}"


def quantity(number: int, noun: str) -> str:
    """So many of what `noun` names in the singular: 1 run, 2000 runs, 2 trajectories."""
    return f"{number} {noun}" if number == 1 else f"{number} {re.sub('(?<=[^aeiou])y$', 'ie', noun)}s"


def counted(number: int, nouns: str) -> str:
    """So many of what `nouns` names in the plural, or in a word that has none: 1 run, 2 runs, 2 otlp."""
    return f"{number} {re.sub('ie$', 'y', nouns.removesuffix('s'))}" if number == 1 else f"{number} {nouns}"


def duration_text(seconds: float) -> str:
    """So many seconds in the two largest units: 4 s, 1 min 15 s, 2 h 1 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
