"""Capture under test: failures of ours are raised, spans go to a temporary spool and are read back from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chat_server import ChatServer, serve
from opentelemetry import context
from spool import read_spool

import arttrace
from arttrace.capture.base import remote_context
from arttrace.capture.context import program
from arttrace.capture.context.flow import EMPTY_FLOW, set_flow
from arttrace.records.record import Record
from arttrace.records.span import SpanRow
from arttrace.system import native_threads


@pytest.fixture(autouse=True)
def _strict_and_outside_any_scope(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever an earlier test of this process left: a scope, a span or baggage of OpenTelemetry's, a program's run."""
    monkeypatch.setenv("ARTTRACE_RAISE", "1")
    monkeypatch.delenv(remote_context.VARIABLE, raising=False)
    monkeypatch.setattr(native_threads, "_switching", True)  # not so after a test that has a process end
    monkeypatch.setattr(program, "_scope", None)
    monkeypatch.setattr(program, "_enabled", False)
    set_flow(EMPTY_FLOW)
    token = context.attach(context.Context())
    yield
    context.detach(token)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Callable[[], list[Record]]]:
    """Flushes capture and gives what it recorded, in order of ending."""
    arttrace.init(project="test", dir=tmp_path / "data")

    def read() -> list[Record]:
        arttrace.flush()
        return read_spool(tmp_path / "data")

    yield read
    arttrace.flush()


@pytest.fixture
def spans(records: Callable[[], list[Record]]) -> Callable[[], list[SpanRow]]:
    """Flushes capture and gives the spans that ended, in order of ending.

    One that lasts, as any may on a slow machine, is recorded before its end as well: `records` has that too.
    """
    return lambda: [record for record in records() if isinstance(record, SpanRow) and record.end_ns]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serve() as running:
        yield running
