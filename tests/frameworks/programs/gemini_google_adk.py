"""Google ADK with a model of its own (in the place of Gemini): no hook sees its client, and ADK exports no content."""

import asyncio
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types


class Scripted(BaseLlm):
    """Calls its tool once, then answers."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer as the script says."""
        last = llm_request.contents[-1].parts[-1]
        if last.function_response is not None:
            part = types.Part(text="It is 42.")
        elif "double" in llm_request.tools_dict:
            part = types.Part(function_call=types.FunctionCall(name="double", args={"number": 21}, id="fc1"))
        else:
            part = types.Part(function_call=types.FunctionCall(name="helper", args={"request": "Double 21"}, id="fc2"))
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=3)
        content = types.Content(role="model", parts=[part])
        yield LlmResponse(content=content, usage_metadata=usage, finish_reason="STOP")


def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


model = Scripted(model="gemini-scripted")
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
