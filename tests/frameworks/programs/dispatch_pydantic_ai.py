"""PydanticAI: an agent whose tool runs another agent, which has a tool of its own."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

model = OpenAIChatModel("gpt-4o")
helper = Agent(model, name="helper", instructions="You double.")
boss = Agent(model, name="boss", instructions="You dispatch.")


@helper.tool_plain
def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


@boss.tool_plain
async def ask_helper(task: str) -> str:
    """Let the helper do something."""
    return str((await helper.run(task)).output)


async def main() -> str:
    return str((await boss.run("What is 21 doubled?")).output)


if __name__ == "__main__":
    print(asyncio.run(main()))
