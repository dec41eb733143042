"""HTTP spans switched on, and each client that tools ask with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from http_site import CLIENTS, Site, serving

import arttrace
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


@pytest.fixture
def on(spans: Spans, tmp_path: Path) -> Callable[..., None]:
    """Switches the spans on, with further settings."""

    def switch(**settings: Any) -> None:
        arttrace.init(project="test", dir=tmp_path / "data", http_spans=True, **settings)

    switch()
    return switch


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Callable[..., bytes]:
    library, ask = CLIENTS[request.param]
    module = pytest.importorskip(library)
    return lambda *args, **options: ask(module, *args, **options)
