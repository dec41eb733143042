"""PydanticAI: an agent with a tool and a typed result, two runs at once."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel


class City(BaseModel):
    name: str
    degrees: int


agent = Agent(OpenAIChatModel("gpt-4o"), instructions="You tell the weather.", output_type=City)


@agent.tool_plain
def weather(city: str) -> int:
    """The temperature of a city in degrees."""
    return len(city)


async def main() -> list[str]:
    runs = await asyncio.gather(agent.run("Weather in Rome"), agent.run("Weather in Athens"))
    return [str(run.output) for run in runs]


if __name__ == "__main__":
    print(asyncio.run(main()))
