"""LlamaIndex: a FunctionAgent whose tool runs an AgentWorkflow of another, which has a tool of its own."""

import asyncio

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.llms.openai import OpenAI


def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


async def main() -> str:
    llm = OpenAI(model="gpt-4o")
    helper = FunctionAgent(name="helper", description="Doubles.", system_prompt="You double.", tools=[double], llm=llm)
    workflow = AgentWorkflow(agents=[helper], root_agent="helper")

    async def ask_helper(task: str) -> str:
        """Let the helper do something."""
        return str(await workflow.run(user_msg=task)).strip()

    boss = FunctionAgent(name="boss", system_prompt="You dispatch.", tools=[ask_helper], llm=llm)
    return str(await boss.run(user_msg="What is 21 doubled?")).strip()


if __name__ == "__main__":
    print(asyncio.run(main()))
