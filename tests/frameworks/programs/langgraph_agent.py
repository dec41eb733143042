"""LangGraph: a writer's tool loop, then two reviewers at once, each a subgraph of its own with the same prompt."""

import asyncio
import operator
import os
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Work(TypedDict):
    task: str
    draft: str
    reviews: Annotated[list[str], operator.add]


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


model = ChatOpenAI(model="gpt-4o", temperature=0)
writer_model = model.bind_tools([look_up])


def write(state: Chat) -> Any:
    return {"messages": [writer_model.invoke([SystemMessage("You write."), *state["messages"]])]}


def review(state: Chat) -> Any:
    answer = "".join(str(c.content) for c in model.stream([SystemMessage("You review."), *state["messages"]]))
    return {"messages": [HumanMessage(answer)]}


writing = StateGraph(Chat)
writing.add_node("write", write)
writing.add_node("tools", ToolNode([look_up]))
writing.add_edge(START, "write")
writing.add_conditional_edges("write", tools_condition)
writing.add_edge("tools", "write")
writer = writing.compile(name="writer")

reviewing = StateGraph(Chat)
reviewing.add_node("review", review)
reviewing.add_edge(START, "review")
reviewing.add_edge("review", END)
reviewer = reviewing.compile(name="reviewer")


def draft(state: Work) -> Any:
    return {"draft": writer.invoke({"messages": [HumanMessage(state["task"])]})["messages"][-1].content}


def judge(state: Work) -> Any:
    return {"reviews": [reviewer.invoke({"messages": [HumanMessage(state["draft"])]})["messages"][-1].content]}


work = StateGraph(Work)
work.add_node("draft", draft)
work.add_node("first review", judge)
work.add_node("second review", judge)
work.add_edge(START, "draft")
work.add_edge("draft", "first review")
work.add_edge("draft", "second review")
graph = work.compile(name="work")


def streamed() -> list[str]:
    """Only what each graph's own nodes gave; the first reader leaves early."""
    for _ in graph.stream({"task": "Explain tea", "draft": "", "reviews": []}):
        break
    steps = graph.stream({"task": "Explain tea", "draft": "", "reviews": []}, stream_mode="updates")
    return [name for step in steps for name in step]


async def astreamed() -> list[str]:
    steps = graph.astream({"task": "Explain tea", "draft": "", "reviews": []}, stream_mode="updates")
    return [name async for step in steps for name in step]


def main() -> list[str]:
    if os.environ.get("STREAM"):
        # The reviews run at once: which of them is streamed first is a matter of the moment.
        return [*sorted(streamed()), *sorted(asyncio.run(astreamed()))]
    done = graph.invoke({"task": "Explain tea", "draft": "", "reviews": []})
    return [done["draft"], *done["reviews"]]


if __name__ == "__main__":
    print(main())
