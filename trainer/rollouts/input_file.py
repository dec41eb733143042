"""The inputs of rollouts from a file: a JSON object of arguments or fields by name on each line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.errors import RolloutError
from arttrace.system.files import written_text


def read_inputs(file: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, without empty lines. Raises RolloutError for a line that is none."""
    inputs = []
    try:
        lines = written_text(file).split("\n")
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise RolloutError(f"line {number} of {file} is no JSON object: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                inputs.append(msgspec.json.decode(line, type=dict[str, Any]))
            except UNREADABLE as error:
                raise RolloutError(
                    f"line {number} of {file} is no JSON object: {error}",
                    'Each line holds the arguments of one input by name, such as {"question": "imported mango"}.',
                ) from error
    return inputs
