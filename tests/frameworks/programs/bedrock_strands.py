"""Strands with Bedrock's models by boto3, which asks the server whose address is in BEDROCK_URL: one agent is answered
in events, the other whole."""

import os

from strands import Agent, tool
from strands.models import BedrockModel


@tool
def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


def agent(name: str, tools: list[object], *, streaming: bool) -> Agent:
    model = BedrockModel(
        model_id="nova-x", streaming=streaming, endpoint_url=os.environ["BEDROCK_URL"], region_name="eu-west-1"
    )
    return Agent(name=name, model=model, system_prompt="You double.", tools=tools, callback_handler=None)


@tool
def ask_helper(task: str) -> str:
    """Let the helper do something."""
    return str(agent("helper", [double], streaming=False)(task)).strip()


def main() -> str:
    return str(agent("boss", [ask_helper], streaming=True)("What is 21 doubled?")).strip()


if __name__ == "__main__":
    print(main())
