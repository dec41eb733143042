"""AutoGen: an agent of one's own and a team on a runtime that began outside the run, as a program's only one does."""

import asyncio
import contextvars
from dataclasses import dataclass

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import (
    AgentId,
    DefaultTopicId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TypeSubscription,
    message_handler,
)
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient


@dataclass
class Question:
    text: str


class Clerk(RoutedAgent):
    """Asks the model what it is asked."""

    def __init__(self, client: OpenAIChatCompletionClient) -> None:
        super().__init__("Answers.")
        self.client = client

    @message_handler
    async def answer(self, message: Question, ctx: MessageContext) -> Question:
        answer = await self.client.create([UserMessage(content=message.text, source="user")])
        return Question(str(answer.content))


async def main() -> list[str]:
    client = OpenAIChatCompletionClient(model="gpt-4o")
    runtime = SingleThreadedAgentRuntime()
    await Clerk.register(runtime, "clerk", lambda: Clerk(client))
    await runtime.add_subscription(TypeSubscription("questions", "clerk"))

    async def begin() -> None:
        runtime.start()

    await asyncio.create_task(begin(), context=contextvars.Context())
    asked = await runtime.send_message(Question("asked"), AgentId("clerk", "default"))
    await runtime.publish_message(Question("published"), DefaultTopicId("questions"))
    surveyor = AssistantAgent("surveyor", client, system_message="You measure.")
    team = RoundRobinGroupChat([surveyor], termination_condition=MaxMessageTermination(2), runtime=runtime)
    done = await team.run(task="measured")
    await runtime.stop_when_idle()
    await client.close()
    return [asked.text, done.messages[-1].to_text()]


if __name__ == "__main__":
    print(asyncio.run(main()))
