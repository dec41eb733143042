"""Microsoft Agent Framework: an agent that has another agent as a tool."""

import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient


def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


async def main() -> str:
    client = OpenAIChatCompletionClient(model="gpt-4o")
    helper = Agent(client, "You double.", name="helper", description="Doubles.", tools=[double])
    tool = helper.as_tool(name="ask_helper", description="Let the helper do something.", arg_name="task")
    boss = Agent(client, "You dispatch.", name="boss", tools=[tool])
    return str((await boss.run("What is 21 doubled?")).text)


if __name__ == "__main__":
    print(asyncio.run(main()))
