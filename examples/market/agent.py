"""A market clerk: a planner sends out one price checker per good, in parallel, and puts their answers together.

Plain `openai` client code. OPENAI_BASE_URL and OPENAI_API_KEY say where the model is, MODEL which one it is.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable

import world
from openai import AsyncOpenAI

client = AsyncOpenAI()
MODEL = os.environ.get("MODEL", "policy:latest")
MAX_TURNS = 3


def tool(name: str, description: str) -> dict:
    """A tool that takes one item by its name."""
    item = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": item}}


PLANNER = "You quote the prices of two goods. Ask a checker for each of them."
PLANNER_TOOLS = [tool("ask_checker", "Have the price of an item checked.")]
CHECKER = "You check the price of one item. A service may be out of date."
CHECKER_TOOLS = [tool("list_price", "Look into the printed list."), tool("live_price", "Ask the live feed.")]

Act = Callable[[str, str], Awaitable[str]]
"""Carries out a tool call: tool name and item in, result out."""


async def run_agent(system: str, request: str, tools: list[dict], act: Act, temperature: float) -> str:
    """Let the model call tools, those of one turn in parallel, until it answers in words."""
    messages: list = [{"role": "system", "content": system}, {"role": "user", "content": request}]
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(
            model=MODEL, messages=messages, tools=tools, temperature=temperature, max_tokens=64
        )
        reply = completion.choices[0].message
        if not reply.tool_calls:
            return reply.content or ""
        messages.append(reply)
        results = await asyncio.gather(*(call(act, made.function) for made in reply.tool_calls))
        for made, result in zip(reply.tool_calls, results, strict=True):
            messages.append({"role": "tool", "tool_call_id": made.id, "content": result})
    return "no answer"


async def call(act: Act, function) -> str:
    """The result of one tool call; what makes no sense is answered, not raised."""
    try:
        item = json.loads(function.arguments)["item"]
    except (ValueError, KeyError, TypeError):
        return "unknown"
    return await act(function.name, str(item))


async def answer(question: str, day: int = 0, temperature: float = 1.0) -> str:
    """Answer a question such as "fresh apple and canned bean" with both prices on that day."""

    async def ask_service(service: str, item: str) -> str:
        return world.quote(service, item, day)

    async def ask_checker(name: str, item: str) -> str:
        if name != "ask_checker":
            return "unknown"
        return await run_agent(CHECKER, item, CHECKER_TOOLS, ask_service, temperature)

    return await run_agent(PLANNER, question, PLANNER_TOOLS, ask_checker, temperature)


if __name__ == "__main__":
    print(asyncio.run(answer(" ".join(sys.argv[1:]) or "fresh apple and canned bean")))
