"""The demo's tiny base model for end-to-end tests: built once per session, in one cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from arttrace.paths import DataDir

SEED = 1


@pytest.fixture(scope="session")
def demo_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """XDG_CACHE_HOME of this session, for its subprocesses too: the given one, else a directory of its own."""
    given = os.environ.get("XDG_CACHE_HOME")
    with pytest.MonkeyPatch.context() as patch:
        cache = Path(given) if given else tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield cache


@pytest.fixture(scope="session")
def demo_base_model(demo_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the base model of seed 1, made by the demo's own code."""
    from trainer.demo.pipeline import Settings, prepare_base_model
    from trainer.demo.screen import Screen

    data = DataDir(tmp_path_factory.mktemp("demonstrations"))
    model = prepare_base_model(Settings(data, SEED, steps=1), Screen())
    assert model.is_relative_to(demo_cache)
    return model
