"""What `train.py` needs of the LangGraph clerk: one rollout with its reward, and a stand-in for a model."""

import json
import random
import re

from agent import answer, clerk
from stock import ITEMS, total

import arttrace.loop as art


def scenario(number: int) -> str:
    """The item that is asked for."""
    return ITEMS[number % len(ITEMS)]


async def rollout(model: art.TrainableModel, item: str) -> art.Trajectory:
    """One question. LangChain's own client is captured as it is; here only its address is the policy's."""
    where = model.openai_client()
    graph = clerk(model=model.inference_name, base_url=str(where.base_url), api_key=where.api_key, max_tokens=48)
    said = await answer(graph, f"How many of {item} are there?")
    numbers = re.findall(r"\d+", said)
    right = bool(numbers) and int(numbers[-1]) == total(item)
    return art.Trajectory(reward=float(right) + 0.1 * bool(numbers), metrics={"accuracy": float(right)})


_DRAWS = random.Random("langgraph stand-in")


def stand_in(request: dict) -> dict:
    """A model that asks one place, or both, and adds up the answers."""
    messages = request["messages"]
    item = re.search(r"of (\w+) are", next(one["content"] for one in messages if one["role"] == "user"))
    answers = [int(re.findall(r"\d+", one["content"])[0]) for one in messages if one["role"] == "tool"]
    if answers:
        return {"role": "assistant", "content": str(sum(answers))}
    places = ["north", "south"] if _DRAWS.random() < 0.5 else [_DRAWS.choice(["north", "south"])]
    arguments = json.dumps({"item": item[1] if item else ""})
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": place, "arguments": arguments}}
        for n, place in enumerate(places)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}
