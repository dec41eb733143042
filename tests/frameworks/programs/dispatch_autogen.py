"""AutoGen: an assistant that has another assistant as a tool."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


async def main() -> str:
    client = OpenAIChatCompletionClient(model="gpt-4o", parallel_tool_calls=False)
    helper = AssistantAgent(
        "helper",
        client,
        description="Doubles.",
        tools=[double],
        system_message="You double.",
        reflect_on_tool_use=True,
    )
    tool = AgentTool(helper, return_value_as_last_message=True)
    boss = AssistantAgent("boss", client, tools=[tool], system_message="You dispatch.", reflect_on_tool_use=True)
    result = await boss.run(task="What is 21 doubled?")
    await client.close()
    return result.messages[-1].to_text().strip()


if __name__ == "__main__":
    print(asyncio.run(main()))
