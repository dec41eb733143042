"""What `train.py` needs of Codenames: one rollout, in which both agents are sub-agents of one run, its reward, and a
stand-in for a model."""

import random

from agent import GIVER, play_game, team
from table import THEMES, Table, deal

import arttrace
import arttrace.loop as art


def scenario(number: int) -> Table:
    """The table of a seed."""
    return deal(number)


async def rollout(model: art.TrainableModel, table: Table) -> art.Trajectory:
    """One game of the team. The agents differ by name; their one reward is the team's."""
    give_clue, guess_words = team(model.openai_client(), model.inference_name)
    giver, guesser = arttrace.agent(name="giver")(give_clue), arttrace.agent(name="guesser")(guess_words)
    end = await play_game(table, giver, guesser)
    share = end.found / len(end.ours)
    return art.Trajectory(
        reward=share - 0.05 * end.turns - 0.5 * (end.assassin in end.guessed),
        metrics={"won": float(end.over == "won"), "found": share, "turns": end.turns},
    )


_DRAWS = random.Random("codenames stand-in")


def stand_in(request: dict) -> dict:
    """A team whose giver knows the themes, and whose guesser guesses anything on the table."""
    system, text = (message["content"] for message in request["messages"])
    first, *_ = lines = [line.partition(": ")[2].split() for line in text.splitlines()]
    if system == GIVER:
        theme = next(theme for theme, words in THEMES.items() if first[0] in words)
        return {"role": "assistant", "content": f"{theme} {sum(word in THEMES[theme] for word in first)}"}
    wanted = int(lines[1][-1])
    return {"role": "assistant", "content": " ".join(_DRAWS.sample(first, min(wanted, len(first))))}
