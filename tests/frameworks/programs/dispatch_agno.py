"""Agno: a team with one member, which has a tool of its own."""

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.team import Team


def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


def main() -> str:
    helper = Agent(
        name="helper", id="helper", model=OpenAIChat(id="gpt-4o"), instructions="You double.", tools=[double]
    )
    boss = Team(name="boss", members=[helper], model=OpenAIChat(id="gpt-4o"), instructions="You dispatch.")
    return str(boss.run("What is 21 doubled?").content)


if __name__ == "__main__":
    print(main())
