"""A collector that refuses some of what it is sent, in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from refusing_site import Site

from arttrace.system.paths import DataDir


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(DataDir(tmp_path))
    yield site
    site.sink.close()
