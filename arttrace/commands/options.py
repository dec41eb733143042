"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from arttrace.paths import DataDir

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _resolve(_ctx: click.Context, _param: click.Parameter, value: str | None) -> DataDir:
    return DataDir.resolve(value)


dir_option: _Decorator = click.option(
    "--dir",
    "data",
    type=click.Path(file_okay=False),
    callback=_resolve,
    help="Data directory (spool, store, policies).  [default: $ARTTRACE_DIR or ./.arttrace]",
)

json_option: _Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
