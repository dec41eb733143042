"""LlamaIndex: agents whose workflow asks the model once more behind their steps, for a form or for an early end."""

import asyncio

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.llms.openai import OpenAI
from pydantic import BaseModel


class Number(BaseModel):
    """A number."""

    number: int


def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


def agent(name: str, **more: object) -> FunctionAgent:
    return FunctionAgent(
        name=name,
        description=name,
        system_prompt=f"You are {name}.",
        tools=[double],
        llm=OpenAI(model="gpt-4o"),
        **more,
    )


async def main() -> list[str]:
    formed = await agent("former", output_cls=Number).run(user_msg="What is 21 doubled?")
    team = AgentWorkflow(agents=[agent("stopper")], root_agent="stopper", early_stopping_method="generate")
    stopped = await team.run(user_msg="Go on doubling 21", max_iterations=2)
    return [str(formed.structured_response), str(stopped).strip()]


if __name__ == "__main__":
    print(asyncio.run(main()))
