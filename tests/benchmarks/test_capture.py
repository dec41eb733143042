"""benchmarks/capture.py runs and prints every row: its structure, not its times, which a loaded machine cannot give."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CAPTURE = Path(__file__).parents[2] / "benchmarks" / "capture.py"


def test_the_quick_run_measures_every_row_and_shows_that_everything_was_kept() -> None:
    command = [sys.executable, str(CAPTURE), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.split("\n\n")
    assert "kept of a call: the question yes, the answer yes, ids yes, log-probs yes" in head
    titles = [row.partition(":")[0] for row in rows]
    assert titles == [
        "a short call",
        "40 messages with tools",
        "a stream of 200 chunks",
        "200 tokens with log-probabilities and ids",
        "32 calls at a time",
    ]
    for row in rows:
        assert re.search(r"bare \d+ us on the user's thread, \d+ us wall", row)
        assert re.search(r"\n  arttrace +[+-]\d+ +[+-]\d+ +[+-]\d+ +\d", row)
