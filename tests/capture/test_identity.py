"""From real calls to the agent tree: what capture records is enough to tell undecorated sub-agents apart."""

from __future__ import annotations

import _thread
import asyncio
import inspect
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from chat_server import ChatServer

import arttrace
from arttrace.capture.export.lifecycle import recorder
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]


def planner(client: Any) -> str:
    """A plain agent: plans, starts two sub-agents in threads, merges their answers."""
    messages: list[Any] = [{"role": "user", "content": "plan"}]
    say(client, messages)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(sub_agent, [client, client]))
    messages.append({"role": "user", "content": "merge " + " ".join(answers)})
    return say(client, messages)


def sub_agent(client: Any) -> str:
    messages: list[Any] = [{"role": "user", "content": "the same for both"}]
    say(client, messages)
    messages.append({"role": "user", "content": "and more"})
    return say(client, messages)


def say(client: Any, messages: list[Any]) -> str:
    answer = client.chat.completions.create(model="m", messages=messages).choices[0].message
    messages.append(answer)
    return str(answer.content)


async def async_planner(client: openai.AsyncOpenAI) -> str:
    messages: list[Any] = [{"role": "user", "content": "plan"}]
    await async_say(client, messages)
    answers = await asyncio.gather(async_sub_agent(client), async_sub_agent(client))
    messages.append({"role": "user", "content": "merge " + " ".join(answers)})
    return await async_say(client, messages)


async def async_sub_agent(client: openai.AsyncOpenAI) -> str:
    messages: list[Any] = [{"role": "user", "content": "the same for both"}]
    await async_say(client, messages)
    messages.append({"role": "user", "content": "and more"})
    return await async_say(client, messages)


async def async_say(client: openai.AsyncOpenAI, messages: list[Any]) -> str:
    answer = (await client.chat.completions.create(model="m", messages=messages)).choices[0].message
    messages.append(answer)
    return str(answer.content)


def tree(trajectory: Trajectory) -> list[int]:
    """Calls per agent, the root's first; every sub-agent must hang under the root."""
    root, *others = trajectory.agents
    assert {agent.parent_id for agent in others} <= {root.id}
    counts = [sum(call.agent_id == agent.id for call in trajectory.calls) for agent in trajectory.agents]
    assert trajectory.incomplete == ""
    return counts


def in_threads(server: ChatServer) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="sk-test-0123456789")
    arttrace.trajectory(planner)(client)


def in_tasks(server: ChatServer) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="sk-test-0123456789") as client:
            await arttrace.trajectory(async_planner)(client)

    asyncio.run(main())


def in_eager_tasks(server: ChatServer) -> None:
    """A sub-agent's task begins before the planner's waits, from Python 3.12 on."""

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", None))
        async with openai.AsyncOpenAI(base_url=server.url, api_key="sk-test-0123456789") as client:
            await arttrace.trajectory(async_planner)(client)

    asyncio.run(main())


def in_tasks_below_a_plain_function(server: ChatServer) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="sk-test-0123456789") as client:
            await async_planner(client)

    arttrace.trajectory(lambda: asyncio.run(main()))()


@pytest.mark.parametrize("run", [in_threads, in_tasks, in_eager_tasks, in_tasks_below_a_plain_function])
def test_twin_sub_agents_stay_apart_under_their_planner(
    run: Callable[[ChatServer], None], server: ChatServer, spans: Spans
) -> None:
    run(server)
    (trajectory,) = build_trajectories(spans())
    assert tree(trajectory) == [2, 2, 2]


async def test_a_call_that_the_agent_gives_a_time_limit_is_its_own(server: ChatServer, spans: Spans) -> None:
    """Python 3.11's `wait_for` makes a task of it: each was a sub-agent's. Two side by side are apart by any."""

    async with openai.AsyncOpenAI(base_url=server.url, api_key="sk-test-0123456789") as client:

        async def ask(text: str) -> None:
            await asyncio.wait_for(async_say(client, [{"role": "user", "content": text}]), 60)

        @arttrace.trajectory
        async def agent() -> None:
            await ask("one")
            await ask("two")
            await asyncio.gather(ask("three"), ask("four"))

        await agent()
    (trajectory,) = build_trajectories(spans())
    assert tree(trajectory) == [2, 1, 1]


@pytest.mark.parametrize("name", ["start_new_thread", "start_new"])
@pytest.mark.parametrize("named", [{}, {"text": "hi"}])
def test_a_thread_below_the_threading_module_is_a_part_of_the_run(
    named: dict[str, str], name: str, server: ChatServer, spans: Spans
) -> None:
    def work(text: str) -> None:
        with openai.OpenAI(base_url=server.url, api_key="sk-test-0123456789") as client:
            say(client, [{"role": "user", "content": text}])
        done.release()

    done = threading.Semaphore(0)
    start = getattr(_thread, name)
    with arttrace.trajectory(name="run"):
        start(work, () if named else ("hi",), named)
        assert done.acquire(timeout=60)
    start(work, ("outside",))
    assert done.acquire(timeout=60)
    inside, outside = build_trajectories(spans())
    no_root = "no root: called outside any trajectory"
    assert [(run.incomplete, len(run.calls)) for run in (inside, outside)] == [("", 1), (no_root, 1)]


def test_what_the_threading_module_refuses_to_start_it_refuses_as_ever(spans: Spans) -> None:
    with arttrace.trajectory(name="run"):
        for wrong in ((), (1, ()), (print, 1)):
            with pytest.raises(TypeError) as ours:
                _thread.start_new_thread(*wrong)  # type: ignore[call-overload]
            with pytest.raises(TypeError) as pythons:
                inspect.unwrap(_thread.start_new_thread)(*wrong)  # type: ignore[call-overload]
            assert str(ours.value) == str(pythons.value)
    assert [span.name for span in spans()] == ["invoke_agent run"]


class Pickling(SimpleQueue[Any]):
    """The jobs of a pool whose threads run other interpreters."""

    def put(self, item: Any, *_: Any, **__: Any) -> None:
        pickle.dumps(getattr(item, "fn", None))
        super().put(item)


def test_a_pool_of_interpreters_gets_the_users_own_function(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the pool that Python has from 3.14 on."""
    monkeypatch.setitem(
        sys.modules, "concurrent.futures.interpreter", SimpleNamespace(InterpreterPoolExecutor=ThreadPoolExecutor)
    )
    with arttrace.trajectory(name="run"), ThreadPoolExecutor(1) as pool:
        pool._work_queue = Pickling()
        assert pool.submit(pow, 2, 3).result() == 8
        assert pool.submit(pow, 3, 2).result() == 9
    assert [span.name for span in spans()] == ["invoke_agent run"]


def test_a_worker_that_a_run_began_makes_runs_of_its_own_when_that_has_ended(spans: Spans) -> None:
    """As a service has it that starts its worker with the first request: every later job was a part of that request."""
    jobs: SimpleQueue[str | None] = SimpleQueue()

    @arttrace.trajectory
    def job(name: str) -> None:
        arttrace.reward(1.0)
        with arttrace.agent(name=name):
            pass

    def work() -> None:
        while (name := jobs.get()) is not None:
            job(name)

    @arttrace.trajectory
    def request() -> threading.Thread:
        job("within")
        worker = threading.Thread(target=work)
        worker.start()
        return worker

    worker = request()
    for name in ("first", "second", None):
        jobs.put(name)
    worker.join()
    runs = build_trajectories(spans())
    assert [[agent.name for agent in run.agents] for run in runs] == [
        ["request", "job", "within"],
        ["job", "first"],
        ["job", "second"],
    ]
    assert [run.incomplete for run in runs] == [""] * 3


@pytest.mark.parametrize("langfuse", [False, True])
async def test_a_task_that_outlives_its_run_begins_others_in_traces_of_their_own(
    spans: Spans, langfuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Langfuse the run's span is current in OpenTelemetry's context, which the task has a copy of. What is no
    `@trajectory` stays a part of the run that began it."""
    monkeypatch.setattr(recorder(), "names_runs", langfuse)
    over = asyncio.Event()

    @arttrace.agent
    async def part() -> None:
        pass

    @arttrace.trajectory
    async def job() -> None:
        await part()

    async def work() -> None:
        await over.wait()
        await job()
        await part()

    @arttrace.trajectory
    async def request() -> asyncio.Task[None]:
        return asyncio.create_task(work())

    task = await request()
    over.set()
    await task
    made = spans()
    assert len({span.trace_id for span in made}) == 2
    runs = {run.agents[0].name: run for run in build_trajectories(made)}
    assert {name: [agent.name for agent in run.agents] for name, run in runs.items()} == {
        "request": ["request", "part"],
        "job": ["job", "part"],
    }
    assert [span.name for span in made if span.parent_span_id is None] == ["invoke_agent request", "invoke_agent job"]
