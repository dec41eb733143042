"""Strands: an agent whose tool runs another agent, which has a tool of its own."""

from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


def agent(name: str, prompt: str, tools: list[object]) -> Agent:
    return Agent(
        name=name, model=OpenAIModel(model_id="gpt-4o"), system_prompt=prompt, tools=tools, callback_handler=None
    )


@tool
def ask_helper(task: str) -> str:
    """Let the helper do something."""
    return str(agent("helper", "You double.", [double])(task)).strip()


def main() -> str:
    return str(agent("boss", "You dispatch.", [ask_helper])("What is 21 doubled?")).strip()


if __name__ == "__main__":
    print(main())
