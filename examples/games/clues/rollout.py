"""What `train.py` needs of the puzzles: one rollout with its reward, and a stand-in for a model."""

import random

from agent import solve
from puzzle import FACTS, Puzzle, generate

import arttrace.loop as art


def scenario(number: int) -> Puzzle:
    """The puzzle of a seed."""
    return generate(number)


async def rollout(model: art.TrainableModel, puzzle: Puzzle) -> art.Trajectory:
    """One puzzle: the reward is the share of the three facts that are right."""
    said = await solve(model.openai_client(), model.inference_name, puzzle, max_tokens=256)
    right = [word == true for word, true in zip(said, puzzle.answer, strict=True)]
    return art.Trajectory(reward=sum(right) / len(right), metrics={"solved": float(all(right))})


_DRAWS = random.Random("clues stand-in")


def stand_in(request: dict) -> dict:
    """A model that keeps the form, and guesses."""
    del request
    return {"role": "assistant", "content": " ".join(_DRAWS.choice(values[:3]) for values in FACTS.values())}
