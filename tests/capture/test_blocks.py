"""`with` blocks around a `yield`, and of a generator that is left early: what is inside them, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

import arttrace
from arttrace.capture.calls.routing import apply
from arttrace.capture.context import flow
from arttrace.capture.context.flow import calling_flow
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]

REQUEST = httpx.Request("POST", "http://vendor/v1/chat/completions", content=b'{"model":"gpt-4o"}')


@arttrace.tool
def helper(name: str) -> str:
    return name


def routed() -> Any:
    return apply(REQUEST, {})[1]


def where() -> tuple[str, bool, Any]:
    """The innermost scope's name, whether nothing is recorded, and the model that a route takes a call from."""
    at = calling_flow()
    return ("" if at.scope is None else at.scope.name, bool(at.muted), routed())


def switched() -> Iterator[Any]:
    """Where it is before and behind each of its steps."""
    with arttrace.agent(name="inner"):
        yield where()
        with arttrace.route("gpt-4o", to="p", base_url="http://policy:1/v1"):
            yield where()
            yield where()
            with arttrace.no_capture():
                yield where()
                yield where()
        yield where()
    yield where()


async def switched_async() -> AsyncIterator[Any]:
    for each in switched():
        yield each


async def all_of(generator: Any) -> list[Any]:
    """What it yields, each with where its consumer is then."""
    if isinstance(generator, AsyncIterator):
        return [(each, where()) async for each in generator]
    return [(each, where()) for each in generator]


INSIDE = [
    *[("inner", False, None), ("inner", False, "gpt-4o"), ("inner", False, "gpt-4o")],
    *[("inner", True, "gpt-4o"), ("inner", True, "gpt-4o"), ("inner", False, None)],
]


@pytest.mark.parametrize("outer", ["", "outer"])
@pytest.mark.parametrize("function", [switched, switched_async])
async def test_a_decorated_generator_goes_on_in_its_blocks_and_its_consumer_is_in_none(
    function: Any, outer: str, spans: Spans
) -> None:
    decorated = (arttrace.agent if outer else arttrace.trajectory)(function)
    if outer:
        with arttrace.trajectory(name=outer):
            found = await all_of(decorated())
    else:
        found = await all_of(decorated())
    assert [its for its, _ in found] == [*INSIDE, (function.__name__, False, None)]
    assert {its for _, its in found} == {(outer, False, None)}
    assert where() == ("", False, None)
    assert [span.attributes.get(semconv.INTERRUPTED) for span in spans()] == [None] * (3 if outer else 2)


async def test_the_steps_of_a_decorated_generator_may_be_asked_for_in_several_tasks(spans: Spans) -> None:
    generator = arttrace.trajectory(switched_async)()
    found = [await asyncio.create_task(anext(generator)) for _ in range(7)]
    await generator.aclose()
    assert found == [*INSIDE, ("switched_async", False, None)]
    assert [span.attributes.get(semconv.INTERRUPTED) for span in spans()] == [None, "closed"]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_run_that_leaves_a_generator_early_is_over_for_whoever_called_it(waits: bool, spans: Spans) -> None:
    """The next run of the same task was a sub-agent of it."""

    async def answers() -> AsyncIterator[str]:
        with arttrace.agent(name="within"):
            yield helper("one")

    @arttrace.trajectory
    async def first(name: str) -> None:
        async for _ in answers():
            break
        if waits:
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # the event loop has closed the generator

    for name in ("a", "b"):
        await first(name)
        assert where() == ("", False, None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert where() == ("", False, None)
    runs = build_trajectories(spans())
    assert [[agent.name for agent in run.agents] for run in runs] == [["first", "within"]] * 2
    assert {run.incomplete for run in runs} == {""}, "it left the agent within, and went on to its own end"


async def test_a_block_ends_though_a_generator_inside_it_was_left_in_one(
    spans: Spans, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "_warned", False)

    async def searching() -> AsyncIterator[str]:
        with arttrace.tool(name="search"):
            yield "found"

    async def quietly() -> AsyncIterator[str]:
        with arttrace.no_capture():
            yield "found"

    for generator, waits in ((searching, False), (searching, True), (quietly, False), (quietly, True)):
        with arttrace.trajectory(name="run"):
            async for _ in generator():
                break
            for _ in range(2 * waits):
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert where() == ("", False, None)
    assert [run.incomplete for run in build_trajectories(spans())] == [""] * 4
    assert "left in another task" not in caplog.text


async def test_a_block_that_outlasts_its_run_makes_the_run_incomplete(spans: Spans) -> None:
    def agent() -> Iterator[str]:
        with arttrace.agent(name="later"):
            yield "in time"
            yield helper("too late")

    with arttrace.trajectory(name="run"):
        generator = agent()
        next(generator)
    assert where() == ("", False, None)
    assert list(generator) == ["too late"]
    (run,) = build_trajectories(spans())
    assert run.incomplete == "interrupted: left in another task or thread than it was entered in"


@pytest.mark.parametrize(
    "made",
    [
        arttrace.no_capture,
        lambda: arttrace.trajectory(name="run"),
        lambda: arttrace.route("gpt-4o", to="p", base_url="http://policy:1/v1"),
    ],
)
async def test_one_object_in_a_generator_that_is_left_and_around_it(made: Callable[[], Any], spans: Spans) -> None:
    """Of `no_capture` the consumer was muted for good."""
    shared = made()

    async def inside() -> AsyncIterator[int]:
        with shared:
            yield 1

    with shared:
        async for _ in inside():
            break
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert where() == ("", False, None)
