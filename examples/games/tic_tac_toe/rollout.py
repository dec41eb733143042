"""What `train.py` needs of tic-tac-toe: self-play, in which one side of a game is trained and the other is not, and
held-out games against a random player."""

import random
from statistics import fmean

from agent import Player, play_game, player
from board import Board, best, free

import arttrace
import arttrace.loop as art


def scenario(number: int) -> tuple[str, int | None]:
    """Which side is trained, by turns, and against whom: itself, or in held-out games a random player with a seed."""
    return "XO"[number % 2], number if number // 1_000_000 == 1 else None


def tiny_scenario(number: int) -> tuple[str, int | None]:
    """A game against a random player, in training too: against itself a tiny model sees its rewards stay where they
    are, as its opponent gets better (and worse) with it."""
    return "XO"[number % 2], number


async def rollout(model: art.TrainableModel, game: tuple[str, int | None]) -> art.Trajectory:
    """One game. The opponent's calls are not recorded: they are no runs of the side that is trained."""
    side, seed = game
    itself = player(model.openai_client(), model.inference_name)
    mine: list[bool] = []
    me, opponent = watched(itself, mine), unrecorded(itself) if seed is None else at_random(seed)
    won, _ = await play_game(*((me, opponent) if side == "X" else (opponent, me)))
    return art.Trajectory(
        reward={side: 1.0, "": 0.5}.get(won, 0.0),
        metrics={"won": float(won == side), "lost": float(won not in (side, "")), "best_moves": fmean(mine or [0])},
    )


def watched(chooses: Player, kept: list[bool]) -> Player:
    """The same player; keeps of each move whether the solver would make it."""

    async def choose(board: Board) -> int | None:
        cell = await chooses(board)
        kept.append(cell in best(board))
        return cell

    return choose


def unrecorded(chooses: Player) -> Player:
    """The same player, whose calls are not captured."""

    async def choose(board: Board) -> int | None:
        with arttrace.no_capture():
            return await chooses(board)

    return choose


def at_random(seed: int) -> Player:
    """A player that marks any free cell."""
    rng = random.Random(seed)

    async def choose(board: Board) -> int | None:
        return rng.choice(free(board))

    return choose


_DRAWS = random.Random("tic-tac-toe stand-in")


def stand_in(request: dict) -> dict:
    """A player that marks any free cell: what the tiny model starts from."""
    cells = request["messages"][-1]["content"].split()
    return {"role": "assistant", "content": _DRAWS.choice([cell for cell in cells if cell.isdigit()])}
