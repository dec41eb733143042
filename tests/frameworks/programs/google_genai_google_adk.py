"""Google ADK with Google's own client, which asks the server whose address is in GEMINI_URL."""

import asyncio
import os

from google.adk.agents import LlmAgent
from google.adk.models.google_llm import Gemini
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types


def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


model = Gemini(model="gemini-x", base_url=os.environ["GEMINI_URL"])
helper = LlmAgent(name="helper", model=model, instruction="You double.", description="Doubles.", tools=[double])
boss = LlmAgent(name="boss", model=model, instruction="You dispatch.", tools=[AgentTool(agent=helper)])


async def main() -> str:
    runner = InMemoryRunner(agent=boss, app_name="desk")
    session = await runner.session_service.create_session(app_name="desk", user_id="u")
    message = types.Content(role="user", parts=[types.Part(text="What is 21 doubled?")])
    texts = []
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        texts += [part.text for part in (event.content.parts if event.content else None) or () if part.text]
    return str(texts[-1])


if __name__ == "__main__":
    print(asyncio.run(main()))
