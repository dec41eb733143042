"""A shop's clerk as a LlamaIndex workflow: a FunctionAgent that hands over to another one for the discount. Nothing
here knows of arttrace."""

import os
import sys
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.workflow import WorkflowRuntimeError
from llama_index.llms.openai_like import OpenAILike
from prices import discount, price


def price_of(item: str) -> str:
    """What an item costs."""
    return f"{item} costs {price(item)}"


def discount_of(customer: str) -> str:
    """What a customer gets off."""
    return f"{customer} gets {discount(customer)} off"


def clerk(**settings: Any) -> AgentWorkflow:
    """The workflow; settings are those of OpenAILike, LlamaIndex's client of a server with OpenAI's API."""
    llm = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=48, **settings)
    sales = FunctionAgent(
        name="sales",
        description="Knows prices.",
        system_prompt="You know prices. Hand over to accounts for the discount.",
        tools=[price_of],
        llm=llm,
        streaming=False,
        can_handoff_to=["accounts"],
    )
    accounts = FunctionAgent(
        name="accounts",
        description="Knows discounts.",
        system_prompt="You know discounts. Answer with the price less the discount.",
        tools=[discount_of],
        llm=llm,
        streaming=False,
        can_handoff_to=[],
    )
    return AgentWorkflow(agents=[sales, accounts], root_agent="sales", timeout=120)


async def answer(workflow: AgentWorkflow, question: str) -> str:
    """What the clerk says; "" where it came to no end."""
    try:
        return str(await workflow.run(user_msg=question, max_iterations=6)).strip()
    except (WorkflowRuntimeError, ValueError):
        return ""


if __name__ == "__main__":
    import asyncio

    async def main() -> None:
        workflow = clerk(
            model=os.environ.get("MODEL", "policy:latest"),
            api_base=os.environ["OPENAI_BASE_URL"],
            api_key=os.environ["OPENAI_API_KEY"],
        )
        print(await answer(workflow, " ".join(sys.argv[1:])))

    asyncio.run(main())
