"""What whoever runs the agent has stopped, as trio, gevent and task groups do too: no failure, no run to be judged."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from model_server import ModelServer, serve_model
from spool import finished_spans

import arttrace
from arttrace.capture.base.values import is_cancellation
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]

GREENLETS = """
from gevent import monkey
monkey.patch_all()
import gevent
from gevent.event import Event
import arttrace

limit, begun = gevent.Timeout(0.01, False), Event()

@arttrace.trajectory
def out_of_time():
    limit.start()
    gevent.sleep(300)

@arttrace.trajectory
def killed():
    begun.set()
    gevent.sleep(300)

with limit:
    limit.cancel()
    out_of_time()
job = gevent.spawn(killed)
begun.wait()
job.kill()
"""


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    with serve_model() as running:
        yield running


def why_incomplete(spans: list[SpanRow]) -> set[str]:
    return {each.incomplete for each in build_trajectories(spans)}


@pytest.mark.parametrize(("model", "stream"), [("hang", False), ("stall", True)])
def test_a_call_that_trio_cancels(model: str, stream: bool, model_server: ModelServer, spans: Spans) -> None:
    trio = pytest.importorskip("trio")

    @arttrace.trajectory(name="run")
    async def run(client: Any) -> None:
        asked = [{"role": "user", "content": "hi"}]
        async for _ in await client.chat.completions.create(model=model, messages=asked, stream=stream):
            pass

    async def main() -> None:
        async with (
            openai.AsyncOpenAI(base_url=model_server.url, api_key="sk-test-0123456789", max_retries=0) as client,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(run, client)
            await trio.to_thread.run_sync(model_server.holding.wait, 60)
            await trio.sleep(0.1)  # what was said before has been read
            nursery.cancel_scope.cancel()

    trio.run(main)
    ended = spans()
    assert [span.attributes[semconv.INTERRUPTED] for span in ended] == ["cancelled"] * 2
    assert why_incomplete(ended) == {"interrupted: cancelled"}


async def test_a_run_that_stops_the_slower_of_two_agents_is_complete(model_server: ModelServer, spans: Spans) -> None:
    asked = [{"role": "user", "content": "hi"}]

    @arttrace.agent
    async def one_of_two(client: Any, model: str) -> None:
        await client.chat.completions.create(model=model, messages=asked)

    @arttrace.trajectory
    async def run(client: Any) -> None:
        slow = asyncio.create_task(one_of_two(client, "hang"))
        await asyncio.to_thread(model_server.holding.wait, 60)
        await one_of_two(client, "m")
        slow.cancel()
        await asyncio.wait([slow])

    async with openai.AsyncOpenAI(base_url=model_server.url, api_key="sk-test-0123456789", max_retries=0) as client:
        await run(client)
    ended = spans()
    assert why_incomplete(ended) == {""}
    assert [span.attributes.get(semconv.INTERRUPTED) for span in ended] == [None, None, "cancelled", "cancelled", None]


def test_a_run_that_trio_cancels_outside_any_call(spans: Spans) -> None:
    trio = pytest.importorskip("trio")

    @arttrace.trajectory
    async def waits_for_two() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 300)
            nursery.start_soon(trio.sleep, 300)

    async def main() -> None:
        with trio.move_on_after(0.05):
            await waits_for_two()

    trio.run(main)
    assert why_incomplete(spans()) == {"interrupted: cancelled"}


def test_runs_that_gevent_stops(tmp_path: Path) -> None:
    pytest.importorskip("gevent")
    data = tmp_path / "data"
    environment = {**os.environ, "ARTTRACE_DIR": str(data), "ARTTRACE_RAISE": "1"}
    command = [sys.executable, "-c", GREENLETS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    ended = finished_spans(data)
    assert len(ended) == 2
    assert why_incomplete(ended) == {"interrupted: cancelled"}


def test_of_a_group_all_has_to_say_so() -> None:
    stopped = BaseExceptionGroup("tasks", [asyncio.CancelledError(), BaseExceptionGroup("more", [KeyboardInterrupt()])])
    assert is_cancellation(stopped)
    assert not is_cancellation(BaseExceptionGroup("tasks", [asyncio.CancelledError(), ValueError("no")]))
    assert not is_cancellation(ExceptionGroup("tasks", [ValueError("no")]))


async def test_a_tools_request_that_is_cancelled_has_not_failed(
    model_server: ModelServer, spans: Spans, tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", http_spans=True)

    @arttrace.tool
    async def looks() -> None:
        async with httpx.AsyncClient() as client:
            await client.post(f"{model_server.url}/moderations", json={"model": "hang"})

    with arttrace.trajectory(name="run"):
        task = asyncio.create_task(looks())
        await asyncio.to_thread(model_server.holding.wait, 60)
        task.cancel()
        await asyncio.wait([task])
    (request,) = [span for span in spans() if semconv.HTTP_METHOD in span.attributes]
    assert request.attributes[semconv.INTERRUPTED] == "cancelled"
    assert semconv.ERROR_TYPE not in request.attributes
