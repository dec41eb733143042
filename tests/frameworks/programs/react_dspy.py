"""DSPy: a `ReAct` agent, which calls its tools by text of its own, asked and awaited."""

import asyncio

import dspy


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def search(text: str) -> str:
    """Search."""
    raise LookupError(f"nothing about {text}")


def main() -> list[str]:
    dspy.configure(lm=dspy.LM("openai/gpt-4o", cache=False))
    agent = dspy.ReAct("question -> answer", tools=[double, search])
    asked = agent(question="What is 21 doubled?").answer
    return [asked, asyncio.run(agent.acall(question="What is 21 doubled?")).answer]


if __name__ == "__main__":
    print(main())
