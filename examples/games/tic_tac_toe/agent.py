"""An agent that plays tic-tac-toe, against itself or anybody. Plain `openai` client code."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable

from board import EMPTY, Board, drawn, free, place, to_move, winner
from openai import AsyncOpenAI

Player = Callable[[Board], Awaitable[int | None]]
"""Says which cell it marks; None, or a cell that is not free, loses the game."""


def player(client: AsyncOpenAI, model: str) -> Player:
    """The model as a player. The board is all that there is to know, so each move is a conversation of its own."""

    async def choose(board: Board) -> int | None:
        system = f"You play {to_move(board)} in tic-tac-toe. Reply with the number of a free cell."
        messages = [{"role": "system", "content": system}, {"role": "user", "content": drawn(board)}]
        answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=8)
        found = re.search("[1-9]", answer.choices[0].message.content or "")
        return int(found[0]) - 1 if found else None

    return choose


async def play_game(x: Player, o: Player) -> tuple[str, Board]:
    """Who won ("" for a draw), and the last board."""
    board = EMPTY
    while free(board):
        mark = to_move(board)
        cell = await (x if mark == "X" else o)(board)
        if cell not in free(board):
            return ("O" if mark == "X" else "X"), board
        board = place(board, cell)
    return winner(board), board


async def main() -> None:
    async with AsyncOpenAI() as client:
        itself = player(client, os.environ.get("MODEL", "policy:latest"))
        won, board = await play_game(itself, itself)
    print(f"{drawn(board)}\n{won or 'nobody'} wins")


if __name__ == "__main__":
    asyncio.run(main())
