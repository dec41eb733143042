"""What the tests of the store store came in when the simulated agent ran, long ago, unless they say otherwise."""

from __future__ import annotations

import pytest
from simulated_agent import T0


@pytest.fixture(autouse=True)
def _came_as_it_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.store.ingest.writer._now_ns", lambda: T0)
