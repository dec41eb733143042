"""Ages and sizes as options: 30d, 12h, 10GB."""

from __future__ import annotations

import click

from arttrace.records.values import units


def age_ns(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """A callback: nanoseconds. Raises BadParameter for a text that is no age."""
    try:
        return None if value is None else units.age_ns(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def size_bytes(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """A callback: bytes. Raises BadParameter for a text that is no size."""
    try:
        return None if value is None else units.size_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
