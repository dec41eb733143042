"""Functions of libraries that are hooked, in a version that takes or calls something more: the program gets on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.patches import model_clients, registry
from arttrace.capture.patches.frameworks import agno, openai_agents, pydantic_ai


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
    model_clients.install_botocore(SimpleNamespace(URLLib3Session=sessions))  # type: ignore[arg-type]
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
