"""How a process ended is reported with the signal's name and its usual cause."""

import subprocess
import sys

import pytest

from arttrace.system.exit_status import how_ended


@pytest.mark.parametrize(
    ("name", "cause"),
    [("SIGILL", "built for a CPU that has more instructions"), ("SIGKILL", "out of memory"), ("SIGSEGV", "crashed")],
)
def test_a_signal_is_named_with_its_usual_cause(name: str, cause: str) -> None:
    die = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    code = subprocess.run([sys.executable, "-c", die], check=False).returncode
    assert how_ended(code).startswith(f"signal {name}: ")
    assert cause in how_ended(code)
    assert how_ended(128 - code).startswith(f"exit code {128 - code}, signal {name}: ")  # as a shell or a guard says it


@pytest.mark.parametrize(
    ("code", "shown"),
    [(0, "exit code 0"), (7, "exit code 7"), (255, "exit code 255"), (-15, "signal SIGTERM"), (None, "no exit code")],
)
def test_an_exit_code_is_reported_as_it_is(code: int | None, shown: str) -> None:
    assert how_ended(code) == shown


DYING = """
import os, signal, sys
from pathlib import Path

class IllegalInstruction:
    # A stand-in for a compiled package that this CPU cannot run.
    def find_spec(self, name, path=None, target=None):
        if name == "unsloth":
            os.kill(os.getpid(), signal.SIGILL)

sys.meta_path.insert(0, IllegalInstruction())
from trainer.learner import LearnerConfig, make_learner
make_learner(Path("nowhere"), LearnerConfig(loader="unsloth"))
"""


def test_a_learner_that_a_compiled_package_kills_says_where() -> None:
    done = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True, timeout=600)
    assert how_ended(done.returncode).startswith("signal SIGILL: ")
    assert "Fatal Python error: Illegal instruction" in done.stderr
    assert "in import_unsloth" in done.stderr
