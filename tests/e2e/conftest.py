"""The demo's tiny base model for end-to-end tests: built once per session, in one cache that its workers share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from arttrace.system.paths import DataDir

SEED = 1


@contextmanager
def building(cache: Path) -> Iterator[None]:
    """Whoever may build the model does it in this block: one process of the session after another."""
    with (cache / "building.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def demo_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """XDG_CACHE_HOME of this session, for its subprocesses too: the given one, else a directory of its own."""
    given = os.environ.get("XDG_CACHE_HOME")
    base = tmp_path_factory.getbasetemp()
    own = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "demo-cache"
    with pytest.MonkeyPatch.context() as patch:
        cache = Path(given) if given else own
        cache.mkdir(parents=True, exist_ok=True)
        patch.setenv("XDG_CACHE_HOME", str(cache))
        # Where all others of the session have it: what vLLM has found out about a model takes it ten seconds.
        patch.setenv("VLLM_CACHE_ROOT", str(Path(given or Path.home() / ".cache") / "vllm"))
        yield cache


@pytest.fixture(scope="session")
def demo_base_model(demo_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the base model of seed 1, made by the demo's own code."""
    from trainer.demo.pipeline import DemoSettings, prepare_base_model
    from trainer.demo.screen import Screen

    data = DataDir(tmp_path_factory.mktemp("demonstrations"))
    with building(demo_cache):
        model = prepare_base_model(DemoSettings(data, SEED, steps=1), Screen())
    assert model.is_relative_to(demo_cache)
    return model


@pytest.fixture
def building_demo(demo_cache: Path) -> Iterator[ExitStack]:
    """For a test that builds the model by the demo itself: until it closes this, nobody else builds it."""
    with ExitStack() as block:
        block.enter_context(building(demo_cache))
        yield block
