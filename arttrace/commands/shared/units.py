"""Ages and sizes as options: 30d, 12h, 10GB."""

from __future__ import annotations

import re

import click

from arttrace.views.run_filter import SECONDS_OF_UNIT

_SIZES = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}


def age_ns(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """A callback: nanoseconds. Raises BadParameter for a text that is no age."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+)([smhdw])", value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is no age such as 30d, 12h or 2w")
    return int(found[1]) * SECONDS_OF_UNIT[found[2]] * 1_000_000_000


def size_bytes(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """A callback: bytes. Raises BadParameter for a text that is no size."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", value.strip().upper())
    if found is None:
        raise click.BadParameter(f"{value!r} is no size such as 10GB or 500MB")
    return int(float(found[1]) * _SIZES[found[2]])
