"""A front desk that hands a customer over to refunds or to shipping, by the OpenAI Agents SDK. Nothing here knows of
arttrace."""

import os
import sys

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from orders import amount, city

set_tracing_disabled(True)  # of the SDK itself, which sends traces to OpenAI


@function_tool
def refund(order: str) -> str:
    """Pay an order back."""
    return f"refunded {amount(order)}"


@function_tool
def track(order: str) -> str:
    """Where an order is."""
    return f"it is in {city(order)}"


def front_desk(client: AsyncOpenAI, model: str) -> Agent:
    """The agent that customers speak to."""
    calls = OpenAIChatCompletionsModel(model=model, openai_client=client)
    limits = ModelSettings(max_tokens=48)
    refunds = Agent(name="refunds", instructions="You refund.", tools=[refund], model=calls, model_settings=limits)
    shipping = Agent(name="shipping", instructions="You track.", tools=[track], model=calls, model_settings=limits)
    return Agent(
        name="desk",
        instructions="Hand over to refunds or to shipping.",
        handoffs=[refunds, shipping],
        model=calls,
        model_settings=limits,
    )


async def answer(desk: Agent, request: str) -> tuple[str, str]:
    """The answer and the agent that made it; "" where they came to no end, or called what is not there."""
    try:
        result = await Runner.run(desk, request, max_turns=6)
    except (MaxTurnsExceeded, ModelBehaviorError):
        return "", ""
    return str(result.final_output), result.last_agent.name


if __name__ == "__main__":
    import asyncio

    desk = front_desk(AsyncOpenAI(), os.environ.get("MODEL", "policy:latest"))
    said, by = asyncio.run(answer(desk, " ".join(sys.argv[1:])))
    print(f"{by or 'nobody'}: {said}")
