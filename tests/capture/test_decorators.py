"""Decorated callables keep kind, laziness, values and exceptions; what they did is recorded under the right scope."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import json
import pickle
import random
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from chat_server import ChatServer
from openai import OpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import arttrace
from arttrace.capture.context import scope
from arttrace.capture.rollout.entries import bind
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]


@arttrace.trajectory
def module_level(x: int, y: int = 2) -> int:
    """Adds."""
    return x + y


@arttrace.agent(name="helper")
def helper(x: int) -> int:
    return x


class Agent:
    @arttrace.trajectory
    def method(self, x: int) -> tuple[Agent, int]:
        return self, x

    @arttrace.trajectory
    @classmethod
    def above_classmethod(cls, x: int) -> tuple[type, int]:
        return cls, x

    @classmethod
    @arttrace.trajectory
    def below_classmethod(cls, x: int) -> tuple[type, int]:
        return cls, x

    @staticmethod
    @arttrace.trajectory
    def static(x: int) -> int:
        return x

    @arttrace.trajectory
    async def coroutine(self, x: int) -> int:
        return x


def arguments(span: SpanRow) -> Any:
    return json.loads(span.attributes[semconv.ENTRY_ARGUMENTS])


def test_a_function_keeps_its_identity(spans: Spans) -> None:
    assert module_level(1) == 3
    assert (module_level.__name__, module_level.__doc__) == ("module_level", "Adds.")
    assert str(inspect.signature(module_level)) == "(x: 'int', y: 'int' = 2) -> 'int'"
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    (span,) = spans()
    assert span.name == "invoke_agent module_level"
    assert arguments(span) == {"x": 1, "y": 2}
    assert span.attributes[semconv.ENTRY_RESULT] == "3"
    assert span.attributes[semconv.ENTRY].endswith("test_decorators:module_level")
    assert span.attributes[semconv.PROJECT] == "test"


@pytest.mark.parametrize("decorate", [arttrace.trajectory, arttrace.agent, arttrace.tool])
def test_annotations_may_name_what_type_checkers_alone_import(decorate: Callable[[Any], Any], spans: Spans) -> None:
    """From Python 3.14 on annotations are computed where they are read; before, a module asks for them as text."""
    asked = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    module: dict[str, Any] = {"__name__": "desk"}
    written = f"{asked}def book(room: Room, nights: int = 1) -> Booking: return room, nights"
    exec(compile(written, "desk.py", "exec", dont_inherit=True), module)
    book = decorate(module["book"])
    with arttrace.trajectory(name="run"):
        assert book("blue", nights=2) == ("blue", 2)
    span = next(each for each in spans() if "book" in each.name)
    given = span.attributes[semconv.TOOL_CALL_ARGUMENTS if decorate is arttrace.tool else semconv.ENTRY_ARGUMENTS]
    assert json.loads(given) == {"room": "blue", "nights": 2}
    assert bind(book, {"room": "blue", "nights": 2}) == (("blue", 2), {})


def test_methods_of_every_kind(spans: Spans) -> None:
    agent = Agent()
    assert agent.method(1) == (agent, 1)
    assert Agent.method(agent, 2) == (agent, 2)
    assert Agent.above_classmethod(3) == agent.above_classmethod(3) == (Agent, 3)
    assert agent.below_classmethod(4) == (Agent, 4)
    assert Agent.static(5) == 5
    assert asyncio.run(agent.coroutine(6)) == 6
    assert inspect.iscoroutinefunction(agent.coroutine)
    assert [arguments(span)["x"] for span in spans()] == [1, 2, 3, 3, 4, 5, 6]


def test_what_a_property_gives_is_the_users_own(spans: Spans) -> None:
    class Planner:
        @arttrace.trajectory
        @property
        def plan(self) -> int:
            """What is to do."""
            return module_level(1)

        @plan.setter
        def plan(self, value: int) -> None:
            self.set = value

        @arttrace.trajectory
        @functools.cached_property
        def planned_once(self) -> list[int]:
            return [1]

    planner = Planner()
    planner.plan = 5
    assert (planner.set, type(planner.plan), Planner.plan.__doc__) == (5, int, "What is to do.")
    assert planner.planned_once is planner.planned_once
    assert [span.name.split()[1] for span in spans()] == ["module_level", "plan", "planned_once"]


def test_a_method_can_be_held_weakly_as_signals_hold_their_receivers(spans: Spans) -> None:
    agent = Agent()
    held = weakref.WeakMethod(agent.method)
    receiver = held()
    assert receiver is not None
    assert receiver(2) == (agent, 2)
    assert agent.method.__func__(agent, 3) == (agent, 3)
    assert not hasattr(Agent.method, "__func__")
    assert not hasattr(agent.static, "__func__")
    del receiver, agent
    gc.collect()
    assert held() is None
    assert [arguments(span) for span in spans()][:1] == [{"x": 2}]


@pytest.mark.parametrize("decorator", ["trajectory", "agent", "tool"])
def test_a_name_in_the_place_of_the_function_is_refused_where_it_stands(decorator: str, spans: Spans) -> None:
    """What it made was called later, and recorded as a run that failed."""
    decorate: Any = getattr(arttrace, decorator)
    with pytest.raises(
        TypeError, match=rf"arttrace\.{decorator} takes a function, .* arttrace\.{decorator}\(name='x'\)"
    ):
        decorate("x")
    with decorate(name="x"):
        pass
    assert [span.name for span in spans()] == (["invoke_agent x"] if decorator == "trajectory" else [])


def test_wrong_arguments_raise_as_before_and_at_the_call(spans: Spans) -> None:
    @arttrace.trajectory
    async def coroutine(x: int) -> int:
        return x

    @arttrace.trajectory
    def generator(x: int) -> Iterator[int]:
        yield x

    for fn in (coroutine, generator, module_level):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            fn()  # type: ignore[call-arg]


def test_an_error_passes_through_and_is_recorded(spans: Spans) -> None:
    error = LookupError("no such shop")

    @arttrace.trajectory
    def fails() -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        fails()
    assert caught.value is error
    (span,) = spans()
    assert (span.status_code, span.status_message) == (2, "no such shop")
    assert span.attributes[semconv.ERROR_TYPE] == "LookupError"


def test_nesting_makes_one_trajectory(records: Callable[[], list[Record]]) -> None:
    @arttrace.tool
    def look(q: str) -> dict[str, str]:
        return {"found": q}

    @arttrace.trajectory(name="outer", group=lambda n: f"group {n}", scenario="s", tags=["a"], metadata={"k": 1})
    def outer(n: int) -> int:
        arttrace.update(metadata={"more": [1, 2]}, tags=["a", "b"])
        arttrace.reward(0.5, name="resolved")
        run = arttrace.current_trajectory()
        assert run is not None
        seen.append(run.id)
        return helper(n) + module_level(n) + len(look("x"))

    seen: list[str] = []
    assert outer(1) == 5
    reward, *spans = records()
    assert isinstance(reward, Reward)
    assert (reward.trajectory_id, reward.value, reward.name, reward.source) == (seen[0], 0.5, "resolved", "code")
    rows = {span.name: span for span in spans if isinstance(span, SpanRow)}
    root = rows["invoke_agent outer"]
    for name in ("invoke_agent helper", "invoke_agent module_level", "execute_tool look"):
        assert rows[name].parent_span_id == root.span_id
        assert rows[name].trace_id == root.trace_id
    assert {row.attributes[semconv.TRAJECTORY_ID] for row in rows.values()} == set(seen)
    assert root.attributes[semconv.GROUP] == "group 1"
    assert root.attributes[semconv.SCENARIO] == "s"
    assert root.attributes[semconv.TAGS] == ["a", "b"]
    assert json.loads(root.attributes[semconv.METADATA]) == {"k": 1, "more": [1, 2]}
    assert root.attributes[semconv.TRAJECTORY_SPAN_COUNT] == 3
    assert json.loads(rows["execute_tool look"].attributes[semconv.TOOL_CALL_RESULT]) == {"found": "x"}
    assert arttrace.current_trajectory() is None


def test_a_run_is_as_deep_as_tasks_go_and_the_next_one_is_its_own(spans: Spans, server: ChatServer) -> None:
    """A task that starts the next one is no recursion of the user's."""
    client = OpenAI(base_url=server.url, api_key="sk-test-0123456789")
    deepest = sys.getrecursionlimit()

    @arttrace.trajectory
    async def step(number: int) -> None:
        if number < deepest:
            tasks.append(asyncio.create_task(step(number + 1)))
        else:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "the end"}])
            arttrace.update(tags=["far"])

    async def run() -> None:
        await step(0)
        for task in tasks:
            await task

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(run())
    helper(1)
    *_, call, last = spans()
    assert (call.name, call.parent_span_id) == ("chat m", last.span_id)


@pytest.mark.parametrize("error", [RecursionError, KeyboardInterrupt])
def test_a_scope_that_could_not_be_entered_is_not_the_next_ones(
    error: type[BaseException], spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    with monkeypatch.context() as patched:
        patched.setattr(scope, "claim_execution", Mock(side_effect=error))
        with contextlib.suppress(KeyboardInterrupt):
            assert module_level(1) == 3
    assert module_level(1) == 3
    assert [span.parent_span_id for span in spans()] == [None, None]


def test_agents_and_tools_outside_a_trajectory_record_nothing(spans: Spans) -> None:
    assert helper(1) == 1
    with arttrace.tool(name="t") as run:
        run.set_result(1)
    assert spans() == []


async def test_concurrent_runs_of_one_decorator_do_not_mix(spans: Spans) -> None:
    @arttrace.trajectory
    async def outer(n: int) -> int:
        await asyncio.sleep(0.001 * (5 - n))
        async with arttrace.agent(name=f"inner {n}"):
            await asyncio.sleep(0.001 * n)
        return n

    assert await asyncio.gather(*map(outer, range(5))) == list(range(5))
    rows = spans()
    roots = {row.span_id: arguments(row)["n"] for row in rows if row.parent_span_id is None}
    inner = [row for row in rows if row.parent_span_id is not None]
    assert sorted(roots.values()) == list(range(5))
    assert all(row.name == f"invoke_agent inner {roots[row.parent_span_id or '']}" for row in inner)


async def test_one_context_manager_object_entered_by_several_tasks(spans: Spans) -> None:
    shared = arttrace.trajectory(name="shared")

    async def use(n: int) -> None:
        with shared as run:
            await asyncio.sleep(0.001 * (3 - n))
            run.set_arguments(n=n)
            with shared as nested:
                nested.set_arguments(nested=n)

    await asyncio.gather(*map(use, range(3)))
    rows = spans()
    roots = {row.span_id: arguments(row)["n"] for row in rows if row.parent_span_id is None}
    assert sorted(roots.values()) == [0, 1, 2]
    for row in rows:
        if row.parent_span_id is not None:
            assert arguments(row)["nested"] == roots[row.parent_span_id]


def test_a_users_own_tracing_is_joined_and_not_disturbed(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    users = TracerProvider(sampler=ALWAYS_OFF)
    users._disabled = False
    with users.get_tracer("user").start_as_current_span("request") as outer, arttrace.trajectory(name="root"):
        assert trace.get_current_span() is outer
        helper(1)
    child, root = spans()
    context = outer.get_span_context()
    assert root.trace_id == child.trace_id == f"{context.trace_id:032x}"
    assert root.parent_span_id == f"{context.span_id:016x}"


def test_the_users_random_numbers_are_untouched_and_do_not_repeat_our_ids(spans: Spans) -> None:
    random.seed(7)
    expected = random.random()
    for _ in range(2):
        random.seed(7)
        module_level(1)
        assert random.random() == expected
    first, second = spans()
    assert first.span_id != second.span_id
    assert first.attributes[semconv.TRAJECTORY_ID] != second.attributes[semconv.TRAJECTORY_ID]


def test_disabled_is_transparent(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTTRACE_DISABLED", "1")
    arttrace.init(dir=tmp_path / "off")
    assert module_level(1) == 3
    with arttrace.trajectory(name="x") as run:
        run.set_arguments(a=1)
        run.update(tags=["t"])
        run.reward(1.0)
    arttrace.reward(1.0, trajectory_id="x")
    assert arttrace.shutdown()
    assert not (tmp_path / "off").exists()


def test_a_clock_that_is_set_back_lets_no_span_end_before_it_began(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    @arttrace.trajectory
    def outer() -> None:
        at = time.time_ns()
        monkeypatch.setattr("time.time_ns", lambda: at - 3600 * 10**9)

    outer()
    monkeypatch.undo()
    [span] = spans()
    assert span.start_ns == span.end_ns


def test_no_warning_of_ours_about_an_awaited_coroutine() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(Agent().coroutine(1))


def test_threads_started_in_a_run_are_as_python_has_them(spans: Spans) -> None:
    users: contextvars.ContextVar[str] = contextvars.ContextVar("users", default="unset")
    seen: list[Any] = []

    class Own(threading.Thread):
        def run(self) -> None:
            seen.append((users.get(), "run" in self.__dict__, arttrace.current_trajectory() is not None))

    def in_context() -> None:
        users.set("mine")
        with arttrace.trajectory(name="x"):
            thread = Own()
            thread.start()
            thread.join()
            with pytest.raises(RuntimeError, match="only be started once"):
                thread.start()
            assert "run" not in thread.__dict__
            with ThreadPoolExecutor(1) as pool:
                seen.append(pool.submit(users.get).result())

    contextvars.copy_context().run(in_context)
    assert seen == [("unset", False, True), "unset"]


def test_callable_objects_of_every_kind(spans: Spans) -> None:
    class Plain:
        def __call__(self, x: int) -> int:
            return x

    class Async:
        async def __call__(self, x: int) -> int:
            return x

    class Lazy:
        def __call__(self, x: int) -> Iterator[str]:
            run = arttrace.current_trajectory()
            yield run.id if run else ""

    assert arttrace.trajectory(Plain())(1) == asyncio.run(arttrace.trajectory(Async())(1)) == 1
    (inside,) = arttrace.trajectory(Lazy())(1)
    assert [span.name for span in spans()] == [f"invoke_agent {name}" for name in ("Plain", "Async", "Lazy")]
    assert spans()[-1].attributes[semconv.TRAJECTORY_ID] == inside


def research(model: str, question: str, depth: int = 1) -> str:
    return f"{model} {question} {depth}"


def numbers(first: int, last: int) -> Iterator[int]:
    helper(first)
    yield from range(first, last)


async def translate(language: str, text: str) -> str:
    return f"{text} {language}"


def test_a_partial_object_is_its_functions_run_unless_it_has_a_name(spans: Spans) -> None:
    named = functools.partial(research, "large")
    named.__name__ = "deep_research"  # type: ignore[attr-defined]
    assert arttrace.trajectory(functools.partial(research, "small", depth=2))("why") == "small why 2"
    assert arttrace.trajectory(named)("why") == "large why 1"
    assert list(arttrace.trajectory(functools.partial(functools.partial(numbers, 3), last=5))()) == [3, 4]
    assert asyncio.run(arttrace.trajectory(functools.partial(translate, "de"))("yes")) == "yes de"
    small, large, inside, generator, coroutine = spans()
    assert small.attributes[semconv.ENTRY] == f"{__name__}:research"
    assert large.attributes[semconv.ENTRY] == f"{__name__}:deep_research"
    assert [span.name.split()[1] for span in (small, large, generator, coroutine)] == [
        "research", "deep_research", "numbers", "translate",
    ]  # fmt: skip
    assert arguments(small) == {"model": "small", "question": "why", "depth": 2}
    assert arguments(large) == {"question": "why", "depth": 1}
    assert (inside.parent_span_id, arguments(generator)) == (generator.span_id, {"first": 3, "last": 5})
    assert arguments(coroutine) == {"language": "de", "text": "yes"}


@pytest.mark.skipif(not hasattr(functools, "Placeholder"), reason="functools.Placeholder is of Python 3.14")
def test_what_a_partial_object_leaves_to_its_call_is_recorded_in_its_place(spans: Spans) -> None:
    left = functools.Placeholder  # type: ignore[attr-defined, unused-ignore]
    assert arttrace.trajectory(functools.partial(research, left, "why"))("small", 3) == "small why 3"
    nested = functools.partial(functools.partial(research, left, "why"), "large")
    assert arttrace.trajectory(nested)(depth=2) == "large why 2"
    assert list(map(arguments, spans())) == [
        {"model": "small", "question": "why", "depth": 3},
        {"model": "large", "question": "why", "depth": 2},
    ]


def test_a_tool_that_is_a_partial_object_has_its_functions_name_and_the_calls_arguments(spans: Spans) -> None:
    with arttrace.trajectory(name="x"):
        arttrace.tool(functools.partial(research, "small"))("why")
    tool, _root = spans()
    assert tool.attributes[semconv.TOOL_NAME] == "research"
    assert json.loads(tool.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"question": "why", "depth": 1}


@pytest.mark.parametrize("decorator", [arttrace.trajectory, arttrace.agent(name="bot"), arttrace.tool])
def test_a_class_is_decorated_and_that_is_said(decorator: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Other libraries decorate an agent's class, and record its method; here only the making of an object would be."""

    class Bot:
        def run(self) -> str:
            return "done"

    assert decorator(Bot)().run() == "done"
    (said,) = [record.getMessage() for record in caplog.records if record.name == "arttrace"]
    assert "Bot records what happens while an object is made" in said
    assert "decorate the method" in said
