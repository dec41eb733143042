"""A backend whose commands need no model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from backend_commands import COMMANDS, running

import arttrace
from arttrace.loop import LocalBackend, TrainableModel


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LocalBackend]:
    script = tmp_path / "commands.py"
    script.write_text(COMMANDS.replace("\\\\", "\\"))
    arttrace.init()  # nothing of an earlier test
    backend = LocalBackend(tmp_path / "data")
    backend._program = running(script)
    yield backend
    arttrace.shutdown(5.0)  # what an earlier test left for a collector that is gone is not waited for


@pytest.fixture
def model(tmp_path: Path) -> TrainableModel:
    return TrainableModel("policy", tmp_path / "base")
