"""Hooks what runs the steps of LangChain's chains and LangGraph's graphs: a step that its caller only waits for is in
the caller's flow of control, though it may run in a task or thread of its own.

Which of these it does depends on how a graph was asked. Steps at once are in flows of their own.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextvars import Context, ContextVar
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

from arttrace.capture.base.guard import Guard
from arttrace.capture.context.execution import Execution
from arttrace.capture.context.flow import current_flow, go_on, go_on_in, waiting_execution
from arttrace.capture.patches.registry import patch

_following = Guard("following the steps of LangChain")
_alone: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The steps of graphs that are taken alone, by their id()."""

_asking: ContextVar[Execution | None] = ContextVar("arttrace_langchain", default=None)
"""The flow that waits for one answer of a model."""


def install_chains(module: ModuleType) -> None:
    """Hook `langchain_core.runnables.base`."""
    patch(module, "coro_with_context", _in_task)
    patch(module, "run_in_executor", _in_executor)


def install_fallbacks(module: ModuleType) -> None:
    """Hook `langchain_core.runnables.fallbacks`."""
    patch(module, "coro_with_context", _in_task)


def install_models(module: ModuleType) -> None:
    """Hook `langchain_core.language_models.chat_models`."""
    patch(module.BaseChatModel, "agenerate", _generate)
    patch(module.BaseChatModel, "_agenerate_with_cache", _generate_one)


def install_nodes(module: ModuleType) -> None:
    """Hook the module of LangGraph that calls the functions of nodes."""
    patch(module, "asyncio", _Asyncio)
    patch(module, "run_in_executor", _in_executor)


def install_graphs(module: ModuleType) -> None:
    """Hook the module of LangGraph that takes the steps of a graph."""
    for name in ("tick", "atick"):
        patch(module.PregelRunner, name, _tick)
    patch(module, "run_with_retry", _step)
    patch(module, "arun_with_retry", _async_step)


class _Asyncio(ModuleType):
    """The module `asyncio` for one that awaits each task that it creates in a context."""

    def __init__(self, real: ModuleType) -> None:
        super().__init__(real.__name__, real.__doc__)
        self._real = real
        self.create_task = _in_task(real.create_task)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _in_task(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def hooked(coroutine: Any, *args: Any, **kwargs: Any) -> Any:
        task = create(coroutine, *args, **kwargs)
        with _following:
            context = kwargs.get("context") or (args[0] if args else None)
            if isinstance(task, asyncio.Task) and isinstance(context, Context):
                go_on_in(task, context)
        return task

    return hooked


def _generate(generate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(generate)
    async def hooked(self: Any, messages: Any, *args: Any, **kwargs: Any) -> Any:
        before = _asking.get()
        with _following:
            _asking.set(waiting_execution() if isinstance(messages, list) and len(messages) == 1 else None)
        try:
            return await generate(self, messages, *args, **kwargs)
        finally:
            _asking.set(before)

    return hooked


def _generate_one(generate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(generate)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _following:
            go_on(_asking.get())
        return await generate(self, *args, **kwargs)

    return hooked


def _in_executor(run_in_executor: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_in_executor)
    async def hooked(executor: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run = func
        with _following:
            if executor is None or isinstance(executor, dict):  # then it runs in a copy of this context
                run = _going_on(func)
        return await run_in_executor(executor, run, *args, **kwargs)

    return hooked


def _going_on(func: Callable[..., Any]) -> Callable[..., Any]:
    execution = waiting_execution()

    def run(*args: Any, **kwargs: Any) -> Any:
        with _following:
            go_on(execution)
        return func(*args, **kwargs)

    return run if execution is not None else func


def _tick(tick: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(tick)
    def hooked(self: Any, tasks: Any, *args: Any, **kwargs: Any) -> Any:
        with _following:
            if isinstance(tasks, (list, tuple)) and len(tasks) == 1:
                _alone[id(tasks[0])] = tasks[0]
        return tick(self, tasks, *args, **kwargs)

    return hooked


def _step(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def hooked(task: Any, *args: Any, **kwargs: Any) -> Any:
        _begin(task)
        return run(task, *args, **kwargs)

    return hooked


def _async_step(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    async def hooked(task: Any, *args: Any, **kwargs: Any) -> Any:
        _begin(task)
        return await run(task, *args, **kwargs)

    return hooked


def _begin(task: Any) -> None:
    with _following:
        if _alone.get(id(task)) is task:
            go_on(current_flow().execution)
