"""An agent that plays 2048. Plain `openai` client code: OPENAI_BASE_URL and OPENAI_API_KEY say where its model is.

Each move is asked for in a conversation of its own: the board is all that there is to know.
"""

import asyncio
import os
import re
import sys

from board import DIRECTIONS, Game, drawn, legal, new_game, play
from openai import AsyncOpenAI

SYSTEM = "You play 2048. Reply with the next move only: left, right, up or down."
_MOVE = re.compile("|".join(DIRECTIONS))


async def play_game(client: AsyncOpenAI, model: str, seed: int, turns: int = 1000) -> Game:
    """Play until nothing moves any more, or the model was asked `turns` times. An answer without a move loses a turn,
    and so does a move that changes nothing."""
    game = new_game(seed)
    for _ in range(turns):
        if not legal(game.board):
            break
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": drawn(game.board)}]
        answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=16)
        if found := _MOVE.findall(answer.choices[0].message.content or ""):
            game = play(game, found[-1])
    return game


async def main() -> None:
    async with AsyncOpenAI() as client:
        model = os.environ.get("MODEL", "policy:latest")
        end = await play_game(client, model, seed=int(sys.argv[1]), turns=int(sys.argv[2]))
    print(f"{drawn(end.board)}\nscore {end.score}, highest tile {end.highest}, {end.moves} moves")


if __name__ == "__main__":
    asyncio.run(main())
