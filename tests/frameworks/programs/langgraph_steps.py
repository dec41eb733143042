"""LangGraph: steps whose prompts have nothing in common, two of them at once, in each way that a graph can be run."""

import asyncio
from collections.abc import Callable
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

model = ChatOpenAI(model="gpt-4o", temperature=0)


def step(name: str) -> Callable[[MessagesState], dict[str, Any]]:
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke([SystemMessage(f"You {name}."), HumanMessage("Go on")])]}

    return ask


def async_step(name: str) -> Any:
    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([SystemMessage(f"You {name}."), HumanMessage("Go on")])]}

    return ask


def chain_step(name: str) -> Any:
    prompt = ChatPromptTemplate.from_messages([("system", f"You {name}."), ("user", "Go on")])
    chain = prompt | model.with_fallbacks([model])

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await chain.ainvoke({})]}

    return ask


def graph(name: str, made: Callable[[str], Any]) -> Any:
    steps = StateGraph(MessagesState)
    for each in ("plan", "left", "right", "join"):
        steps.add_node(each, made(each))
    steps.add_edge(START, "plan")
    for side in ("left", "right"):
        steps.add_edge("plan", side)
        steps.add_edge(side, "join")
    steps.add_edge("join", END)
    return steps.compile(name=name)


async def on_a_loop() -> None:
    await graph("awaited", async_step).ainvoke({"messages": []})
    await graph("awaited, with plain steps", step).ainvoke({"messages": []})
    await graph("awaited, with chains", chain_step).ainvoke({"messages": []})
    async for _ in graph("streamed on a loop", async_step).astream({"messages": []}, stream_mode="messages"):
        pass


def main() -> str:
    graph("invoked", step).invoke({"messages": []})
    for _ in graph("streamed", step).stream({"messages": []}, stream_mode="messages"):
        pass
    asyncio.run(on_a_loop())
    return "done"


if __name__ == "__main__":
    print(main())
