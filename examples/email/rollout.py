"""What `train.py` needs of the e-mail agent: the questions, one rollout with its reward, and a stand-in for a model."""

import json
import random

from agent import ask
from inbox import Inbox, Question, questions

import arttrace.loop as art

INBOX = Inbox()
_QUESTIONS = questions()
_HELD_OUT = len(_QUESTIONS) // 4


def scenario(number: int) -> Question:
    """A question. Those from 1,000,000 on are the last quarter, which is held out of training; 2,000,000 and above are
    the stand-in's."""
    if number // 1_000_000 == 1:
        return _QUESTIONS[-1 - number % _HELD_OUT]
    return _QUESTIONS[number % (len(_QUESTIONS) - _HELD_OUT)]


async def rollout(model: art.TrainableModel, asked: Question) -> art.Trajectory:
    """One question."""
    text, read = await ask(model.openai_client(), model.inference_name, INBOX, asked.text)
    right = text.strip() == asked.answer
    return art.Trajectory(
        reward=reward(right, asked.mail in read, len(read)),
        metrics={"accuracy": float(right), "answered": float(bool(text)), "read": len(read)},
    )


def reward(right: bool, found: bool, read: int) -> float:
    """1 for the right answer, a little for having read its mail, and less for each mail that was read besides."""
    return 1.0 * right + 0.1 * found - 0.05 * max(0, read - 1)


def stand_in(request: dict) -> dict:
    """A model that knows the tools, but reads any of the mails found, and sometimes a second one."""
    messages = request["messages"]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    asked = messages[1]["content"]
    rng = random.Random(json.dumps(messages))
    if not results:
        return _call("search", "words", asked.removeprefix("What was decided on the ").rstrip("?"))
    found = [line.partition(":")[0] for line in results[0].splitlines()]
    names_none = "proposal" not in results[-1] and "decided" not in results[-1]
    if len(results) == 1 or (len(results) < 4 and (names_none or rng.random() < 0.3)):
        return _call("read", "id", rng.choice(found))
    return _call("answer", "text", results[-1].split()[-1].lstrip("$"))


def _call(name: str, parameter: str, value: str) -> dict:
    function = {"name": name, "arguments": json.dumps({parameter: value})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }
