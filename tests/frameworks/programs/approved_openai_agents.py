"""OpenAI Agents SDK: runs that wait for a person's yes to a tool, and go on: with a yes, another, and a no."""

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool(needs_approval=True)
def erase(number: int) -> str:
    """Erase a number."""
    return f"{number} erased"


async def one_yes_after_the_other(eraser: Agent) -> str:
    result = await Runner.run(eraser, "Erase 3 and 4")
    while result.interruptions:
        state = result.to_state()
        state.approve(result.interruptions[0])
        result = await Runner.run(eraser, state)
    return str(result.final_output)


async def a_no(eraser: Agent) -> str:
    result = Runner.run_streamed(eraser, "Erase 5")
    async for _ in result.stream_events():
        pass
    state = result.to_state()
    state.reject(result.interruptions[0], rejection_message="no")
    return str((await Runner.run(eraser, state)).final_output)


async def main() -> list[str]:
    async with AsyncOpenAI() as client:
        model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client)
        eraser = Agent(name="eraser", instructions="You erase.", model=model, tools=[erase])
        return [await one_yes_after_the_other(eraser), await a_no(eraser)]


if __name__ == "__main__":
    print(asyncio.run(main()))
