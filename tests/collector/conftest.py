"""A collector in the test's own process: its parts and a client, and one that refuses some of what it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from refusing_site import Site
from starlette.testclient import TestClient

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.spool import Spool
from arttrace.store.server.auth import Authorizer
from arttrace.system.paths import DataDir


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(DataDir(tmp_path))
    yield site
    site.sink.close()


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path)


@pytest.fixture
def sink(data: DataDir) -> Iterator[Spool]:
    sink = Spool(data)
    yield sink
    sink.close()


@pytest.fixture
def app(sink: Spool, data: DataDir) -> CollectorApp:
    return CollectorApp(sink, Forward(data), Authorizer("token"), max_body_bytes=100_000, in_flight_bytes=250_000)


@pytest.fixture
def client(app: CollectorApp) -> TestClient:
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
