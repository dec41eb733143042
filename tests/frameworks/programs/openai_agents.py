"""OpenAI Agents SDK: a front desk hands over to a specialist, who uses a function tool; by either API of openai's."""

import asyncio
import os
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI()
model: Any = "gpt-4o"
if os.environ.get("API") == "chat":
    model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client)


@function_tool
def refund(order: int) -> str:
    """Pay an order back."""
    return f"refunded {order}"


specialist = Agent(name="Refunds", instructions="You refund.", tools=[refund], model=model)
desk = Agent(name="Front desk", instructions="You dispatch.", handoffs=[specialist], model=model)


async def streamed() -> str:
    result = Runner.run_streamed(desk, "Refund order 4")
    kinds = [event.type async for event in result.stream_events()]
    return f"{result.final_output} {sorted(set(kinds))}"


async def main() -> list[str]:
    result = await Runner.run(desk, "Refund order 3")
    return [str(result.final_output), result.last_agent.name, await streamed()]


if __name__ == "__main__":
    print(asyncio.run(main()))
