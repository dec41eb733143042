"""AutoGen: an assistant with a tool, streamed, that reflects on what the tool gave."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def area(width: int, height: int) -> int:
    """The area of a rectangle."""
    return width * height


async def main() -> list[str]:
    client = OpenAIChatCompletionClient(model="gpt-4o")
    agent = AssistantAgent(
        "surveyor",
        client,
        tools=[area],
        system_message="You measure.",
        reflect_on_tool_use=True,
        model_client_stream=True,
    )
    result = await agent.run(task="How large is 3 by 4?")
    await client.close()
    return [type(message).__name__ for message in result.messages] + [result.messages[-1].to_text()]


if __name__ == "__main__":
    print(asyncio.run(main()))
