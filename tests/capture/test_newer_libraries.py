"""Functions of libraries that are hooked, in a version that takes or calls something more: the program gets on."""

from __future__ import annotations

import asyncio
import contextvars
from types import SimpleNamespace
from typing import Any

import pytest

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.patches import registry
from arttrace.capture.patches.frameworks import agno, openai_agents
from arttrace.capture.patches.frameworks.followed import pydantic_ai
from arttrace.capture.patches.frameworks.langchain import steps as langchain_steps
from arttrace.capture.patches.model_clients import bedrock


@pytest.fixture(autouse=True)
def _not_raising(monkeypatch: pytest.MonkeyPatch, records: Any) -> Any:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    before = list(registry._patches)
    yield
    registry._patches[:] = before
    guard.failures.clear()  # the first of each part is logged


class Newer:
    """A class of a library's, whose methods return what they were given."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    async def aexecute(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    _resolve_instrumentation_settings = send = execute


async def test_more_arguments_reach_the_library() -> None:
    tools = type("FunctionCall", (Newer,), {})
    agno.install_tools(SimpleNamespace(FunctionCall=tools, FunctionExecutionResult=None))  # type: ignore[arg-type]
    agents = type("Agent", (Newer,), {})
    pydantic_ai.install(SimpleNamespace(Agent=agents, InstrumentationSettings=None))  # type: ignore[arg-type]
    sessions = type("URLLib3Session", (Newer,), {})
    bedrock.install_requests(SimpleNamespace(URLLib3Session=sessions))  # type: ignore[arg-type]
    with arttrace.trajectory(name="run"):
        assert tools().execute(1, more=2) == ((1,), {"more": 2})
        assert await tools().aexecute(1, more=2) == ((1,), {"more": 2})
        assert agents()._resolve_instrumentation_settings(1, more=2) == ((1,), {"more": 2})
        request = SimpleNamespace(method="GET")
        assert sessions().send(request, 1, more=2) == ((request, 1), {"more": 2})


@pytest.mark.parametrize("asked", [object(), SimpleNamespace(tool_call=SimpleNamespace(name="to_b"))])
async def test_a_handoff_in_another_form_is_carried_out(asked: Any) -> None:
    async def execute_handoffs(**given: Any) -> Any:
        return given

    module = SimpleNamespace(execute_handoffs=execute_handoffs)
    openai_agents.install_handoffs(module)  # type: ignore[arg-type]
    with arttrace.trajectory(name="run"):
        given = {"run_handoffs": [asked, asked], "steps": []}
        assert await module.execute_handoffs(**given) == given


async def test_a_step_that_cannot_be_followed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise ZeroDivisionError

    async def given(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    chains = SimpleNamespace(
        coro_with_context=lambda coroutine, context: asyncio.create_task(coroutine, context=context),
        run_in_executor=lambda _, func, *args: asyncio.to_thread(func, *args),
        BaseChatModel=type("BaseChatModel", (), {"agenerate": given, "_agenerate_with_cache": given}),
        PregelRunner=type("PregelRunner", (), {"tick": lambda *args: args, "atick": lambda *args: args}),
        run_with_retry=lambda *args, **kwargs: (args, kwargs),
        arun_with_retry=given,
    )
    for install in (langchain_steps.install_chains, langchain_steps.install_models, langchain_steps.install_graphs):
        install(chains)  # type: ignore[arg-type]
    for name in ("waiting_execution", "go_on", "go_on_in", "_alone"):
        monkeypatch.setattr(langchain_steps, name, failing)
    with arttrace.trajectory(name="run"):
        assert await chains.coro_with_context(given(1), contextvars.copy_context()) == ((1,), {})
        assert await chains.run_in_executor(None, max, 1, 2) == 2
        model, runner, task = chains.BaseChatModel(), chains.PregelRunner(), SimpleNamespace()
        assert await model.agenerate([[1]], more=2) == ((model, [[1]]), {"more": 2})
        assert await model._agenerate_with_cache(1, more=2) == ((model, 1), {"more": 2})
        assert runner.tick([task], 1) == runner.atick([task], 1) == (runner, [task], 1)
        given_on = chains.run_with_retry(task, more=2), await chains.arun_with_retry(task, more=2)
        assert given_on == (((task,), {"more": 2}),) * 2
    assert guard.failures["following the steps of LangChain"] > 5
