"""Evaluations of a policy's versions: the scores of runs that are not trained on, in a file of JSON lines.

`model.log`, `arttrace autorl` and `arttrace demo` append to it, a line per evaluation: {"step", "time", and numbers by
name}; step 0 is the base model. The viewer and `arttrace policies` read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from arttrace.system.paths import DataDir
from arttrace.system.private_files import make_directory

_MOST_BYTES = 16 << 20
_NO_NUMBERS = ("step", "time")
_TRAINED_ON = "train/"


def evaluations_file(data: DataDir, policy: str) -> Path:
    """Where the evaluations of a policy are kept."""
    return data.root / "logs" / f"{policy}.jsonl"


def add_evaluation(data: DataDir, policy: str, step: int, numbers: Mapping[str, float]) -> None:
    """Append the numbers of one evaluation. Raises OSError."""
    file = evaluations_file(data, policy)
    make_directory(file.parent)
    line = json.dumps({"step": step, "time": time.time(), **numbers}).encode() + b"\n"
    with file.open("a+b") as lines:
        lines.seek(max(0, lines.seek(0, os.SEEK_END) - 1))
        ends_well = lines.read() in (b"", b"\n")  # the last line was not cut off
        lines.write(line if ends_well else b"\n" + line)


def read_evaluations(data: DataDir, policy: str) -> dict[int, dict[str, float]]:
    """The numbers of each step by their names, without the number of runs; if a number was logged again, the last.
    Those of what a version was trained on ("train/...") are no evaluation, and the version has them. Of a file of more
    than 16 MiB only the end is read; damaged lines are skipped."""
    found: dict[int, dict[str, float]] = {}
    if Path(policy).name != policy:
        return found
    try:
        with evaluations_file(data, policy).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _MOST_BYTES))
            lines = file.read(_MOST_BYTES).splitlines()[1 if size > _MOST_BYTES else 0 :]
    except OSError:
        return found
    for line in lines:
        with contextlib.suppress(ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError):
            said = json.loads(line)
            numbers = {name: float(value) for name, value in said.items() if _is_number(name, value)}
            found.setdefault(int(said["step"]), {}).update(numbers)
    return dict(sorted(found.items()))


def _is_number(name: str, value: object) -> bool:
    is_none = name in _NO_NUMBERS or name.endswith("/runs") or name.startswith(_TRAINED_ON)
    if is_none or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max  # false for NaN, and for integers that no float holds
