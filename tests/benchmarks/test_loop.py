"""benchmarks/loop.py runs and prints a row for the daemon and one for the loop: its structure, not its times."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

LOOP = Path(__file__).parents[2] / "benchmarks" / "loop.py"


@pytest.mark.full
def test_the_steps_of_a_loop_are_measured_beside_the_daemons() -> None:
    command = [sys.executable, str(LOOP), "--steps", "2", "--groups", "1", "--runs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    head, _, *rows, compared = done.stdout.splitlines()
    assert head == "2 times 2 steps of 1 groups of 2 runs, in turn, tiny model, one thread"
    assert [row.split()[0] for row in rows] == ["daemon", "loop"]
    assert re.fullmatch(r"the loop's rest is \d+\.\d\d of the daemon's", compared)
