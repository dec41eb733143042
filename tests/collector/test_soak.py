"""Memory stays where it is, however long spans come: the soak of benchmarks/collector.py with its bound."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "collector.py"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("collector_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_at_the_end_of_a_soak_is_that_at_a_fifth_of_it(benchmark: ModuleType) -> None:
    """Each tenth of it, over which a median is taken, holds more than DuckDB keeps in memory between checkpoints."""
    assert benchmark.soak(150.0, 8_000.0) <= 1.1
