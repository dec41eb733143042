"""What `train.py` needs of the e-mail agent: the questions, one rollout with its reward, and a stand-in for a model."""

import json
import random
from functools import lru_cache

from agent import ask
from inbox import Inbox, Question, questions

import arttrace.loop as art

inbox = lru_cache(maxsize=16)(Inbox)
_QUESTIONS = questions()
_HELD_OUT = len(_QUESTIONS) // 4


def scenario(number: int) -> Question:
    """A question. Those from 1,000,000 on are the last quarter, which is held out of training; 2,000,000 and above are
    the stand-in's."""
    if number // 1_000_000 == 1:
        return _QUESTIONS[-1 - number % _HELD_OUT]
    return _QUESTIONS[number % (len(_QUESTIONS) - _HELD_OUT)]


def tiny_scenario(number: int) -> Question:
    """A question to one of many inboxes, another one for every fifty questions. Of a single inbox a tiny model learns
    by heart which mail says what, and never to look at what it found."""
    return questions(number // 50)[number % 1000]


async def rollout(model: art.TrainableModel, asked: Question) -> art.Trajectory:
    """One question."""
    text, read = await ask(model.openai_client(), model.inference_name, inbox(asked.seed), asked.text)
    right = text.strip() == asked.answer
    return art.Trajectory(
        reward=reward(right, asked.mail in read, len(read)),
        metrics={"accuracy": float(right), "answered": float(bool(text)), "read": len(read)},
    )


def reward(right: bool, found: bool, read: int) -> float:
    """1 for the right answer, a little for having read its mail, and less for each mail that was read besides."""
    return 1.0 * right + 0.1 * found - 0.05 * max(0, read - 1)


_DRAWS = random.Random("e-mail stand-in")
_HABIT = {"question": 1, "proposal": 6, "decision": 3}
"""How often the stand-in reads a mail of each kind: a proposal more often than the decision."""


def stand_in(request: dict) -> dict:
    """A model that knows the tools and uses them poorly: it forgets a word of the search at times, reads any of the
    mails found, goes on reading for no reason, and answers with the last figure that it read."""
    messages = request["messages"]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if not results:
        words = messages[1]["content"].removeprefix("What was decided on the ").rstrip("?").split()
        if _DRAWS.random() < 0.4:
            words.remove(_DRAWS.choice(words))
        return _call("search", "words", " ".join(words))
    found = [line.split(": ") for line in results[0].splitlines()]
    names_none = "$" not in results[-1]
    if len(results) == 1 or (len(results) < 4 and (names_none or _DRAWS.random() < 0.3)):
        [(_, number)] = _DRAWS.choices(found, [_HABIT[subject.split()[0]] for subject, _ in found])
        return _call("read", "number", number)
    return _call("answer", "text", results[-1].split()[-1].lstrip("$"))


def _call(name: str, parameter: str, value: str) -> dict:
    function = {"name": name, "arguments": json.dumps({parameter: value})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }
