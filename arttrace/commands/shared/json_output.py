"""What commands print for programs: one JSON value, whatever the paths and variables that it names are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from arttrace.records.values.lenient_json import well_formed


def print_json(value: Any, *, enc_hook: Callable[[Any], Any] | None = None) -> None:
    """Prints a value as JSON, on one line of standard output. Letters of a path, an argument or a variable that are no
    UTF-8, and that JSON cannot have, are each U+FFFD."""
    try:
        text = msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        text = msgspec.json.encode(well_formed(msgspec.to_builtins(value, enc_hook=enc_hook)))
    click.echo(text)
