"""A tiny model to be trained, another that teaches it, and a store with runs that the first is said to have sampled; no
pauses between the tries of a request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from one_thread import one_thread as one_thread
from recorded_runs import recorded_group
from tiny_model import make_base_model

from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.commands.train.cli import command


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    """For every test in this folder."""


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.grpo.distill.served.PAUSES_S", (0.0, 0.0))


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("models") / "base", seed=0)


@pytest.fixture(scope="session")
def better(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("models") / "better", seed=1)


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    """Three runs of one task without a reward, and one alone with one."""
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append([*recorded_group("a", (None, None, None)), *recorded_group("b", (1.0,), at=5000)])
    return data


@pytest.fixture
def train(data: DataDir, base_model: Path) -> Callable[..., Result]:
    """`arttrace train --method distill`; the runs are of random tokens, which no policy sampled so."""

    def run(*arguments: str) -> Result:
        given = ["--dir", str(data.root), "--base-model", str(base_model), "--method", "distill"]
        return CliRunner().invoke(command, [*given, "--max-logprob-difference", "1000", *arguments])

    return run
