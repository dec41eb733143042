"""OpenAI Agents SDK: an agent that has another agent as a tool."""

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


async def main() -> str:
    model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=AsyncOpenAI())
    helper = Agent(name="helper", instructions="You double.", tools=[double], model=model)
    tool = helper.as_tool("ask_helper", "Let the helper do something.")
    boss = Agent(name="boss", instructions="You dispatch.", tools=[tool], model=model)
    return str((await Runner.run(boss, "What is 21 doubled?")).final_output)


if __name__ == "__main__":
    print(asyncio.run(main()))
