"""Decorated generators and coroutines converse and end as before; between their steps their scope is not current."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import json
import pickle
import types
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

import arttrace
from arttrace.capture.context import flow
from arttrace.capture.context.flow import current_flow
from arttrace.records import semconv
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]


@arttrace.trajectory
def module_level(x: int, y: int = 2) -> int:
    """Adds."""
    return x + y


def plain(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        return fn(*args)

    return wrapper


@arttrace.agent(name="helper")
def helper(x: int) -> int:
    return x


def talk(log: list[Any]) -> Iterator[Any]:
    try:
        got = yield 1
        log.append(("got", got))
        try:
            yield 2
        except KeyError as error:
            log.append(("caught", repr(error)))
            yield 3
        return "end"
    finally:
        log.append("closed")


def converse(generator: Any) -> list[Any]:
    said = [next(generator), generator.send("hello"), generator.throw(KeyError("x"))]
    try:
        next(generator)
    except StopIteration as stop:
        said.append(("returned", stop.value))
    return said


def test_a_generator_converses_as_before(spans: Spans) -> None:
    bare_log: list[Any] = []
    log: list[Any] = []
    decorated = arttrace.trajectory(talk)
    assert inspect.isgeneratorfunction(decorated)
    generator: Any = decorated(log)
    assert inspect.isgenerator(generator)
    assert log == []
    assert converse(generator) == converse(talk(bare_log))
    assert log == bare_log
    (span,) = spans()
    assert json.loads(span.attributes[semconv.ENTRY_RESULT]) == {"yielded": [1, 2, 3], "returned": "end"}


def test_between_the_steps_of_a_generator_its_scope_is_not_current(spans: Spans) -> None:
    inside: list[Any] = []

    @arttrace.trajectory
    def generator() -> Iterator[int]:
        for i in range(2):
            inside.append(arttrace.current_trajectory())
            yield i

    for _ in generator():
        assert arttrace.current_trajectory() is None
        module_level(1)
    assert all(inside)
    assert len(set(map(id, inside))) == 1
    roots = [span for span in spans() if span.parent_span_id is None]
    assert len(roots) == 3


def last_word() -> Iterator[int]:
    try:
        yield 1
    except GeneratorExit:
        return "last word"  # what `close` returns from Python 3.13 on


@pytest.mark.parametrize("decorator", [arttrace.trajectory, arttrace.no_capture()])
def test_what_a_generator_returns_where_it_is_closed_is_what_close_returns(decorator: Any, spans: Spans) -> None:
    bare: Any = last_word()
    generator: Any = decorator(last_word)()
    assert (next(bare), next(generator)) == (1, 1)
    assert generator.close() == bare.close()
    assert [span.attributes[semconv.INTERRUPTED] for span in spans()] == ["closed"] * (decorator is arttrace.trajectory)


@types.coroutine
def of_a_generator(steps: int) -> Any:
    for _ in range(steps):
        yield from asyncio.sleep(0).__await__()
    return [steps, current_flow().scope is None, current_flow().muted]


@pytest.mark.parametrize("wrapped", [of_a_generator, plain(of_a_generator)])
def test_a_coroutine_that_is_a_generator_is_awaited_as_before(wrapped: Any, spans: Spans) -> None:
    async def main() -> list[Any]:
        return [await wrapped(2), await arttrace.trajectory(wrapped)(2), await arttrace.no_capture()(wrapped)(2)]

    assert asyncio.run(main()) == [[2, True, False], [2, False, False], [2, True, True]]
    (span,) = spans()
    assert json.loads(span.attributes[semconv.ENTRY_RESULT]) == [2, False, False]


def test_a_generator_left_early_is_closed_and_marked(spans: Spans) -> None:
    log: list[Any] = []
    for _ in arttrace.trajectory(talk)(log):
        break
    assert log == ["closed"]
    (span,) = spans()
    assert span.attributes[semconv.INTERRUPTED] == "closed"
    assert span.status_code == 0


async def test_an_async_generator_converses_as_before(spans: Spans) -> None:
    @arttrace.trajectory
    async def generator(log: list[Any]) -> AsyncIterator[Any]:
        try:
            log.append((yield 1))
            try:
                yield 2
            except KeyError:
                yield 3
        finally:
            log.append("closed")

    assert inspect.isasyncgenfunction(generator)
    log: list[Any] = []
    stream: Any = generator(log)
    assert [await anext(stream), await stream.asend("hi"), await stream.athrow(KeyError())] == [1, 2, 3]
    assert arttrace.current_trajectory() is None
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    left: list[Any] = []
    stream = generator(left)
    await anext(stream)
    await stream.aclose()
    assert (log, left) == (["hi", "closed"], ["closed"])
    whole, early = spans()
    assert json.loads(whole.attributes[semconv.ENTRY_RESULT]) == [1, 2, 3]
    assert early.attributes[semconv.INTERRUPTED] == "closed"


async def test_a_cancelled_run_is_marked(spans: Spans) -> None:
    @arttrace.trajectory
    async def waits() -> None:
        await asyncio.sleep(30)

    task = asyncio.create_task(waits())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (span,) = spans()
    assert span.attributes[semconv.INTERRUPTED] == "cancelled"


def test_a_plain_function_that_returns_a_coroutine_ends_when_it_does(spans: Spans) -> None:
    async def work(x: int) -> int:
        return helper(x)

    entry = arttrace.trajectory(functools.partial(work, 3))
    assert asyncio.run(entry()) == 3
    inner, root = spans()
    assert inner.parent_span_id == root.span_id
    assert root.attributes[semconv.ENTRY_RESULT] == "3"


async def as_a_task(x: int) -> int:
    return helper(x)


async def work() -> int:
    return 1


def closed(coroutine: Coroutine[Any, Any, Any]) -> None:
    coroutine.close()


def dropped(coroutine: Coroutine[Any, Any, Any]) -> None:
    del coroutine


def thrown_into(coroutine: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(KeyError):
        coroutine.throw(KeyError("x"))


def cancelled(coroutine: Coroutine[Any, Any, Any]) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(coroutine)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())


@pytest.mark.parametrize("never_begun", [closed, dropped, thrown_into, cancelled])
@pytest.mark.parametrize(
    "decorated", [arttrace.trajectory, arttrace.no_capture(), lambda fn: arttrace.trajectory(plain(fn))]
)
def test_a_coroutine_that_never_begins_warns_as_before(
    never_begun: Callable[[Any], None], decorated: Callable[[Any], Any], spans: Spans
) -> None:
    def warned(fn: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            never_begun(fn())
            gc.collect()
        return [str(each.message) for each in seen]

    assert warned(decorated(work)) == warned(work)


def test_a_run_whose_coroutine_or_generator_never_begins_has_ended(spans: Spans) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    closed(arttrace.trajectory(plain(work))())
    dropped(arttrace.trajectory(plain(numbers))())
    dropped(arttrace.trajectory(plain(later))())
    assert [span.attributes[semconv.INTERRUPTED] for span in spans()] == ["closed"] * 3


def test_a_generator_below_a_plain_decorator_ends_when_it_does(spans: Spans) -> None:
    @arttrace.trajectory
    @plain
    def generator() -> Iterator[str]:
        run = arttrace.current_trajectory()
        yield run.id if run else ""

    (inside,) = generator()
    (root,) = spans()
    assert root.attributes[semconv.TRAJECTORY_ID] == inside


def test_a_generator_leaves_its_consumers_scope_as_it_was(spans: Spans) -> None:
    @arttrace.agent
    def numbers() -> Iterator[int]:
        yield from range(3)

    with arttrace.trajectory(name="root"):
        running = numbers()
        next(running)
        with arttrace.agent(name="consumer"):
            next(running)
            scope = current_flow().scope
            with arttrace.tool(name="inner"):
                pass
        running.close()
    inner = next(span for span in spans() if span.name == "execute_tool inner")
    assert scope is not None
    assert inner.parent_span_id == f"{scope.context.span_id:016x}"


async def test_a_block_in_an_async_generator_that_is_left_early_ends_there(spans: Spans) -> None:
    async def run(name: str) -> AsyncIterator[int]:
        with arttrace.trajectory(name=name), arttrace.agent(name="within"):
            yield helper(1)

    async def first(name: str) -> None:
        async for _ in run(name):
            return

    for name in ("one", "two"):
        await first(name)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the event loop has closed the generator, in a task of its own
        assert arttrace.current_trajectory() is None
    ended = [(span.attributes[semconv.AGENT_NAME], span.parent_span_id is None) for span in spans()]
    assert sorted(ended) == [*[("helper", False)] * 2, ("one", True), ("two", True), *[("within", False)] * 2]


async def test_a_muted_block_stays_muted_though_a_generators_block_was_left_in_another_task(spans: Spans) -> None:
    async def run() -> AsyncIterator[int]:
        with arttrace.trajectory(name="run"):
            yield 1

    async for _ in run():
        break
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with arttrace.no_capture(), arttrace.trajectory(name="muted"):
        helper(1)
    assert [span.attributes[semconv.AGENT_NAME] for span in spans()] == ["run"]


async def test_a_block_that_is_left_in_another_task_ends_and_is_incomplete(
    spans: Spans, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "_warned", False)
    shared = arttrace.trajectory(name="shared")
    for _ in range(2):
        await asyncio.create_task(shared.__aenter__())
        await asyncio.create_task(shared.__aexit__(None, None, None))
    with shared, arttrace.no_capture(), shared:
        pass
    ended = [span.attributes.get(semconv.INTERRUPTED) for span in spans()]
    assert ended == [*["left in another task or thread than it was entered in"] * 2, None]
    assert caplog.text.count("left in another task") == 1
    assert copy.copy(pickle.loads(pickle.dumps(shared)))


async def test_capture_goes_on_where_a_generator_was_left_that_had_switched_it_off(spans: Spans) -> None:
    hold = asyncio.Event()

    async def outlasts() -> None:
        await hold.wait()
        helper(2)

    async def quiet(started: list[Any]) -> AsyncIterator[int]:
        with arttrace.no_capture():
            started.append(asyncio.create_task(outlasts()))
            yield helper(1)

    started: list[Any] = []
    with arttrace.trajectory(name="run"):
        async for _ in quiet(started):
            break
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the event loop has closed the generator, in a task of its own
        helper(3)
        await asyncio.create_task(as_a_task(4))
        hold.set()
        await started[0]
    *helped, _root = spans()
    assert [json.loads(each.attributes[semconv.ENTRY_RESULT]) for each in helped] == [3, 4]


@pytest.mark.parametrize("is_muted", [False, True])
async def test_however_many_such_generators_were_left(spans: Spans, is_muted: bool) -> None:
    async def quiet() -> AsyncIterator[None]:
        with arttrace.no_capture():
            yield

    with arttrace.trajectory(name="run"), arttrace.no_capture() if is_muted else contextlib.nullcontext():
        for number in range(3000):
            async for _ in quiet():
                break
            if number > 2000:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        helper(1)
        async for _ in quiet():
            break
        assert not hasattr(getattr(current_flow().muted, "before", None), "before") or is_muted
    assert len(spans()) == 1 + (not is_muted)


async def test_each_of_many_tasks_in_one_object_is_captured_after_its_block(spans: Spans) -> None:
    quiet, let_go = arttrace.no_capture(), asyncio.Event()

    async def one() -> None:
        with quiet:
            await let_go.wait()
        assert not current_flow().muted

    tasks = [asyncio.create_task(one()) for _ in range(1500)]
    await asyncio.sleep(0)
    let_go.set()
    await asyncio.gather(*tasks)
