"""smolagents: a manager that calls a tool and a managed agent."""

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def double(number: int) -> str:
    """Doubles a number.

    Args:
        number: The number to double.
    """
    return str(2 * number)


model = OpenAIModel(model_id="gpt-4o")
helper = ToolCallingAgent(tools=[double], model=model, name="helper", description="Doubles numbers.", verbosity_level=0)
manager = ToolCallingAgent(tools=[], model=model, managed_agents=[helper], name="manager", verbosity_level=0)


def main() -> list[str]:
    return [str(manager.run("What is twice 21?"))]


if __name__ == "__main__":
    print(main())
