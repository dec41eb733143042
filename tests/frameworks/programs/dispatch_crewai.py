"""CrewAI: a task of an agent whose tool runs another agent, which has a tool of its own."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool
def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


llm = LLM(model="openai/gpt-4o")
helper = Agent(role="helper", goal="You double.", backstory="You can.", llm=llm, tools=[double])


@tool
def ask_helper(task: str) -> str:
    """Let the helper do something."""
    return str(helper.kickoff(task).raw)


boss = Agent(role="boss", goal="You dispatch.", backstory="You can.", llm=llm, tools=[ask_helper])


def main() -> str:
    task = Task(description="What is 21 doubled?", expected_output="A number.", agent=boss)
    return str(Crew(agents=[boss], tasks=[task]).kickoff().raw)


if __name__ == "__main__":
    print(main())
