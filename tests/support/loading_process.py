"""A stand-in for the process that loads a collector's store."""

from __future__ import annotations

import subprocess
import sys

import pytest


def load_by_printing(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Have a collector start, in its place, a process that prints these lines, and reads two of its own."""
    said = "\n".join(lines)
    program = f"import sys; print({said!r}, flush=True); sys.stdin.readline(); sys.stdin.readline()"
    command = [sys.executable, "-c", program]
    started = subprocess.Popen[bytes]
    monkeypatch.setattr(subprocess, "Popen", lambda _, **given: started(command, **given))
