"""A stock clerk as a LangGraph graph: a model and its tools in a loop. Nothing here knows of arttrace."""

import os
import sys
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from stock import in_stock

SYSTEM = "You know the stock. An item lies in the north or in the south. Answer with the number in both together."


class Chat(TypedDict):
    """The graph's state."""

    messages: Annotated[list[AnyMessage], add_messages]


@tool
def north(item: str) -> str:
    """How many of an item lie in the north."""
    return in_stock("north", item)


@tool
def south(item: str) -> str:
    """How many of an item lie in the south."""
    return in_stock("south", item)


def clerk(**settings: Any) -> Any:
    """The compiled graph; settings are those of ChatOpenAI."""
    model = ChatOpenAI(**settings).bind_tools([north, south])

    async def think(state: Chat) -> Any:
        return {"messages": [await model.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    graph = StateGraph(Chat)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([north, south]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile(name="clerk")


async def answer(graph: Any, question: str) -> str:
    """What the clerk says; "" where it never came to an answer."""
    from langgraph.errors import GraphRecursionError

    try:
        end = await graph.ainvoke({"messages": [HumanMessage(question)]}, {"recursion_limit": 10})
    except GraphRecursionError:
        return ""
    return str(end["messages"][-1].content)


if __name__ == "__main__":
    import asyncio

    model = os.environ.get("MODEL", "policy:latest")
    print(asyncio.run(answer(clerk(model=model, max_tokens=64), " ".join(sys.argv[1:]))))
