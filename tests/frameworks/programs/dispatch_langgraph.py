"""LangChain and LangGraph: an agent whose tool runs another agent, which has a tool of its own."""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="gpt-4o")


@tool
def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


helper = create_agent(model, [double], system_prompt="You double.", name="helper")


@tool
def ask_helper(task: str) -> str:
    """Let the helper do something."""
    return str(helper.invoke({"messages": [{"role": "user", "content": task}]})["messages"][-1].content)


boss = create_agent(model, [ask_helper], system_prompt="You dispatch.", name="boss")


def main() -> str:
    asked = {"messages": [{"role": "user", "content": "What is 21 doubled?"}]}
    last = list(boss.stream(asked, stream_mode="values"))[-1]
    return str(last["messages"][-1].content)


if __name__ == "__main__":
    print(main())
