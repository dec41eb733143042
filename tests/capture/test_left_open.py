"""What is still going when a run's root ends: the run is complete when that has ended too, and not a moment before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from chat_server import ChatServer
from spool import finished_spans

import arttrace
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

Begin = Callable[[threading.Event, threading.Event], None]
"""Does something that begins, says so, and lasts until it is let go."""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataDir]:
    monkeypatch.setattr("arttrace.capture.export.recorder._SHOWN_AFTER_S", 600.0)  # what lasts is shown anyway
    arttrace.init(project="test", dir=tmp_path / "data")
    yield DataDir(tmp_path / "data")
    arttrace.shutdown()


def stored(data: DataDir) -> Trajectory:
    arttrace.flush()
    with Store.open(data, create=True) as store:
        [trajectory] = store.trajectories()
    return trajectory


@contextmanager
def left_open(work: Begin) -> Iterator[None]:
    """A run whose root has ended, and whose thread has not."""
    begun, let_go = threading.Event(), threading.Event()

    @arttrace.trajectory
    def root() -> None:
        thread.start()
        begun.wait(60)

    thread = threading.Thread(target=lambda: work(begun, let_go))
    root()
    try:
        yield
    finally:
        let_go.set()
        thread.join()


def sub_agent(begun: threading.Event, let_go: threading.Event) -> None:
    @arttrace.agent
    def sub() -> None:
        begun.set()
        let_go.wait(60)

    sub()


def tool(begun: threading.Event, let_go: threading.Event) -> None:
    @arttrace.tool
    def look() -> str:
        begun.set()
        let_go.wait(60)
        return "found"

    look()


@pytest.mark.parametrize(("work", "said"), [(sub_agent, "agent in progress"), (tool, "step in progress")])
def test_an_agent_or_tool_that_goes_on_after_the_root(data: DataDir, work: Begin, said: str) -> None:
    with left_open(work):
        assert stored(data).incomplete == said
    assert stored(data).incomplete == ""


def test_a_call_that_goes_on_after_the_root(data: DataDir, server: ChatServer) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="k", max_retries=0, timeout=600)

    def call(begun: threading.Event, let_go: threading.Event) -> None:
        letting_go = threading.Thread(target=lambda: (let_go.wait(60), server.hold.set()))
        letting_go.start()
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "stall"}], stream=True
        )  # fmt: skip
        next(iter(stream))
        begun.set()
        for _ in stream:
            pass
        letting_go.join()

    with left_open(call):
        assert stored(data).incomplete == "call in progress"
    trajectory = stored(data)
    assert trajectory.incomplete == ""
    [placed] = trajectory.calls
    assert [choice.message.text for choice in placed.call.choices] == ["answer 0 to stall "]


@pytest.mark.parametrize("begins", ["before the root ends", "after it"])
@pytest.mark.parametrize("kind", ["agent", "tool", "call"])
def test_what_ends_after_the_root_stands_in_for_nothing_that_is_lost(
    data: DataDir, server: ChatServer, kind: str, begins: str
) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="k", max_retries=0)
    root_ended = threading.Event()

    def later() -> None:
        if begins == "after it":
            root_ended.wait(60)
        if kind == "call":
            asked = [{"role": "user", "content": "hi"}]
            stream = client.chat.completions.create(model="m", messages=asked, stream=True)  # type: ignore[arg-type]
            begun.set()
            root_ended.wait(60)
            list(stream)
            return
        with arttrace.agent(name="late") if kind == "agent" else arttrace.tool(name="late"):
            begun.set()
            root_ended.wait(60)

    begun, thread = threading.Event(), threading.Thread(target=later)
    with arttrace.trajectory(name="root"):
        with arttrace.tool(name="early"):
            pass
        thread.start()
        if begins != "after it":
            begun.wait(60)
    root_ended.set()
    thread.join()
    arttrace.flush()
    spans = finished_spans(data.root)
    assert [run.incomplete for run in build_trajectories(spans)] == [""]
    early, *others = spans
    assert early.name == "execute_tool early"
    assert [run.incomplete for run in build_trajectories(others)] == ["1 of 3 spans missing"]


def test_what_has_ended_before_the_root_is_not_said_to_be_open(data: DataDir) -> None:
    """Nor does the root itself stand in the spool twice."""

    @arttrace.agent
    def sub() -> str:
        return "x"

    @arttrace.trajectory
    def root() -> str:
        return sub()

    root()
    arttrace.flush()
    with Store.open(data, create=True) as store:
        assert store.sql("SELECT count(*), count(*) FILTER (end_ns = 0) FROM span_records")[1] == [(2, 0)]
