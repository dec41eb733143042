"""Scenarios for an MCP server: tasks that its tools and resources can solve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from arttrace.loop import scenarios
from arttrace.loop.scenarios import Scenario
from arttrace.mcp.connection import Offer, Server, connect, read_offer
from arttrace.rewards.judge import DEFAULT_JUDGE


async def generate_scenarios(
    server: Server | Offer,
    count: int = 24,
    model: str = DEFAULT_JUDGE,
    extra_litellm_params: dict[str, Any] | None = None,
    *,
    instructions: str = "",
    known: Sequence[Scenario] = (),
    on_batch: Callable[[list[Scenario]], None] | None = None,
) -> list[Scenario]:
    """Have a model write tasks that an agent with this server's tools can solve.

    Args:
        server: The server, or what `read_offer` returned for it.
        count: The number of scenarios to return, those in `known` included.
        model: The model that writes them, by the name that litellm has for it.
        extra_litellm_params: Further arguments of litellm's `acompletion`, such as `api_base` and `api_key`.
        instructions: Further requirements for the tasks, in words.
        known: Existing scenarios.
        on_batch: Called with all scenarios so far after each answer, so that they can be kept.

    Returns:
        `known` and the new ones after them, `count` in all.

    Raises:
        RolloutError: The server cannot be reached, or offers no tool.
        ArttraceError: The model wrote nothing new several times in a row.
        JudgeError: The model cannot be reached, or its answers cannot be used.
    """
    if not isinstance(server, Offer):
        async with connect(server) as client:
            server = await read_offer(client)
    about = f"{instructions}\n\n{server.described()}".strip()
    return await scenarios.generate_scenarios(about, count, model, extra_litellm_params, known=known, on_batch=on_batch)
