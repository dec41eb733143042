"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from arttrace.errors import ArttraceError
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


def _read_key(_ctx: click.Context, _param: click.Parameter, file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("ARTTRACE_API_KEY") or None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise ArttraceError(f"the key file {file} is no text file", "Put a long random key into it.") from None
    if not key or not key.isascii() or not key.isprintable():
        what = "is empty" if not key else "holds more than one line of printable ASCII"
        raise ArttraceError(f"the key file {file} {what}", "Put a long random key into it, and nothing else.")
    return key


api_key_file_option: _Decorator = click.option(
    "--api-key-file",
    "api_key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_read_key,
    help="Clients must send the key in this file.  [default: $ARTTRACE_API_KEY, else none is asked for]",
)
"""The key is in a file: a command line can be read by every user of the machine."""

json_option: _Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
