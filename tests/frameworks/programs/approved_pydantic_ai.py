"""PydanticAI: runs that wait for a person's yes to a tool, and go on: with a yes, other arguments, and a no."""

import asyncio

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(
    OpenAIChatModel("gpt-4o"), instructions="You erase.", name="eraser", output_type=[str, DeferredToolRequests]
)


@agent.tool_plain(requires_approval=True)
def erase(number: int) -> str:
    """Erase a number."""
    return f"{number} erased"


async def decided(task: str, *said: bool | ToolApproved | ToolDenied) -> str:
    first = await agent.run(task)
    assert isinstance(first.output, DeferredToolRequests)
    ids = [call.tool_call_id for call in first.output.approvals]
    results = DeferredToolResults(approvals=dict(zip(ids, said, strict=True)))
    done = await agent.run(message_history=first.all_messages(), deferred_tool_results=results)
    return str(done.output)


async def main() -> list[str]:
    both = await decided("Erase 3 and 4", True, ToolApproved(override_args={"number": 40}))
    return [both, await decided("Erase 5", ToolDenied("no"))]


if __name__ == "__main__":
    print(asyncio.run(main()))
