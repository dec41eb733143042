"""An agent of LlamaIndex takes each step in a task: a stand-in for its workflow, with the real openai client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from chat_server import ChatServer

import arttrace
from arttrace.capture.patches import registry
from arttrace.capture.patches.frameworks import llama_index
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories


@pytest.fixture(autouse=True)
def _unhooked_afterwards() -> Iterator[None]:
    before = list(registry._patches)
    yield
    registry._patches[:] = before


async def test_an_agent_whose_history_is_cut_between_steps_is_one(
    server: ChatServer, spans: Callable[[], list[SpanRow]]
) -> None:
    async with openai.AsyncOpenAI(base_url=server.url, api_key="sk-test-0123456789") as client:

        class Workflow:
            def run(self) -> Any:
                return SimpleNamespace(_result_task=asyncio.create_task(self.steps()))

            async def steps(self) -> None:
                for number in range(3):
                    ev = SimpleNamespace(current_agent_name="helper", number=number)
                    await asyncio.create_task(self.run_agent_step(None, ev))

            async def run_agent_step(self, ctx: Any, ev: Any) -> None:
                kept: Any = [{"role": "user", "content": f"What is left at step {ev.number}"}]
                await client.chat.completions.create(model="m", messages=kept)

            async def call_tool(self, ctx: Any, ev: Any) -> None: ...

        llama_index.install_agent(SimpleNamespace(BaseWorkflowAgent=Workflow))  # type: ignore[arg-type]
        async with arttrace.trajectory(name="run"):
            await Workflow().run()._result_task
            await asyncio.sleep(0)  # it is seen to be done
    (run,) = build_trajectories(spans())
    assert [(agent.name, agent.inferred) for agent in run.agents] == [("run", False), ("helper", False)]
    assert {call.agent_id for call in run.calls} == {run.agents[1].id}
    assert (len(run.calls), run.incomplete) == (3, "")
