"""smolagents: a manager that has another agent."""

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def double(number: int) -> str:
    """Double a number.

    Args:
        number: The number to double.
    """
    return str(2 * number)


def main() -> str:
    model = OpenAIModel(model_id="gpt-4o")
    helper = ToolCallingAgent([double], model, name="helper", description="Doubles.", verbosity_level=0)
    boss = ToolCallingAgent([], model, managed_agents=[helper], name="boss", verbosity_level=0)
    return str(boss.run("What is 21 doubled?"))


if __name__ == "__main__":
    print(main())
