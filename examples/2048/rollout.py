"""What `train.py` needs of 2048: the games to play, one rollout with its reward, and a stand-in for a player."""

import math
import os
import random

from agent import play_game
from board import legal

import arttrace.loop as art

TURNS = int(os.environ.get("TURNS", "24"))
TARGET = 2048


def scenario(number: int) -> int:
    """The seed of a game."""
    return number


async def rollout(model: art.TrainableModel, seed: int) -> art.Trajectory:
    """One game."""
    game = await play_game(model.openai_client(), model.inference_name, seed, TURNS)
    return art.Trajectory(
        reward=reward(game.highest, game.score),
        metrics={"score": game.score, "highest": game.highest, "moves": game.moves},
    )


def reward(highest: int, score: int) -> float:
    """The highest tile by how many doublings it is from the target; the score distinguishes what is equal there."""
    return math.log2(highest) / math.log2(TARGET) + 0.2 * math.log2(1 + score) / math.log2(1 + 20_000)


def stand_in(request: dict) -> dict:
    """A player that moves at random among what is legal: what the tiny model starts from."""
    rows = request["messages"][-1]["content"].splitlines()
    board = tuple(tuple(0 if cell == "." else int(cell) for cell in row.split()) for row in rows)
    return {"role": "assistant", "content": random.Random(str(rows)).choice(legal(board))}
