"""LangGraph: runs that stop before their tools until a person says yes, and go on; one is told the answer instead."""

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def erase(number: int) -> str:
    """Erase a number."""
    return f"{number} erased"


model = ChatOpenAI(model="gpt-4o").bind_tools([erase])


def ask(state: MessagesState) -> Any:
    return {"messages": [model.invoke(state["messages"])]}


building = StateGraph(MessagesState)
building.add_node("ask", ask)
building.add_node("tools", ToolNode([erase]))
building.add_edge(START, "ask")
building.add_conditional_edges("ask", tools_condition)
building.add_edge("tools", "ask")


def main() -> list[str]:
    eraser = building.compile(name="eraser", checkpointer=InMemorySaver(), interrupt_before=["tools"])
    texts = []
    for task in ("Erase 3 and 4", "Erase 5"):
        thread: RunnableConfig = {"configurable": {"thread_id": task}}
        stopped = eraser.invoke({"messages": [HumanMessage(task)]}, thread)
        if task == "Erase 5":
            said = [ToolMessage("no", tool_call_id=call["id"]) for call in stopped["messages"][-1].tool_calls]
            eraser.update_state(thread, {"messages": said}, as_node="tools")
        texts.append(str(eraser.invoke(None, thread)["messages"][-1].content))
    return texts


if __name__ == "__main__":
    print(main())
