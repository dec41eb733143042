"""Two agents that play Codenames as a team: one knows our words and gives clues, the other one guesses.

Plain `openai` client code."""

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable

from openai import AsyncOpenAI
from table import Table, deal, guess, is_clue

GIVER = "You give clues in Codenames. Reply with one word that is not on the table, and to how many of ours it leads."
GUESSER = "You guess in Codenames. Reply with the words on the table that the clue leads to, the surest first."

Give = Callable[[Table], Awaitable[tuple[str, int]]]
Guess = Callable[[list[str], str, int], Awaitable[list[str]]]


def team(client: AsyncOpenAI, model: str) -> tuple[Give, Guess]:
    """Both agents, with one model."""

    async def say(system: str, text: str) -> str:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=32)
        return answer.choices[0].message.content or ""

    async def give_clue(table: Table) -> tuple[str, int]:
        ours = [word for word in table.left if word in table.ours]
        others = [word for word in table.left if word not in table.ours and word != table.assassin]
        said = await say(GIVER, f"ours: {' '.join(ours)}\nothers: {' '.join(others)}\nassassin: {table.assassin}")
        word, count = re.search(r"[A-Za-z]+", said), re.search(r"\d", said)
        return word[0] if word else "", int(count[0]) if count else 1

    async def guess_words(words: list[str], clue: str, count: int) -> list[str]:
        said = await say(GUESSER, f"table: {' '.join(words)}\nclue: {clue} {count}")
        return re.findall(r"[a-z]+", said.lower())[: max(1, count)]

    return give_clue, guess_words


async def play_game(table: Table, give_clue: Give, guess_words: Guess) -> Table:
    """Play to the end. A clue that is none loses the turn."""
    while not table.over:
        clue, count = await give_clue(table)
        table = guess(table, await guess_words(table.left, clue, count) if is_clue(table, clue) else [])
    return table


async def main() -> None:
    async with AsyncOpenAI() as client:
        give_clue, guess_words = team(client, os.environ.get("MODEL", "policy:latest"))
        end = await play_game(deal(int(sys.argv[1])), give_clue, guess_words)
    print(f"{end.over} after {end.turns} turns, {end.found} of {len(end.ours)} words found: {' '.join(end.guessed)}")


if __name__ == "__main__":
    asyncio.run(main())
