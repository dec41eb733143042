"""An agent that solves puzzles about who was where, with what and when. Plain `openai` client code."""

import asyncio
import os
import sys

from openai import AsyncOpenAI
from puzzle import FACTS, Puzzle, generate

SYSTEM = "Solve the puzzle. End with a line of three words: the room, the thing and the hour."


async def solve(client: AsyncOpenAI, model: str, puzzle: Puzzle, max_tokens: int = 1024) -> list[str]:
    """The room, the thing and the hour that the model answers; "" for what it does not say."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": puzzle.text}]
    answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=max_tokens)
    lines = (answer.choices[0].message.content or "").strip().splitlines()
    said = lines[-1].lower().replace(",", " ").strip(" .").split() if lines else []
    return [next((word for word in said if word in values), "") for values in FACTS.values()]


async def main() -> None:
    puzzle = generate(int(sys.argv[1]))
    async with AsyncOpenAI() as client:
        said = await solve(client, os.environ.get("MODEL", "policy:latest"), puzzle)
    print(f"{puzzle.text}\nanswered: {' '.join(said)}, right: {' '.join(puzzle.answer)}")


if __name__ == "__main__":
    asyncio.run(main())
