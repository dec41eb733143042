"""What `train.py` needs of the front desk: one rollout with its reward, and a stand-in for a model."""

import json
import random

from agent import answer, front_desk
from orders import amount, city

import arttrace.loop as art


def scenario(number: int) -> tuple[str, str]:
    """What is wanted, and of which order."""
    return ("refund", "locate")[number % 2], str(10 + number // 2 % 90)


async def rollout(model: art.TrainableModel, wanted: tuple[str, str]) -> art.Trajectory:
    """One request. The SDK's agents are the run's agents: a handoff is seen without a word of arttrace."""
    kind, order = wanted
    said, by = await answer(front_desk(model.openai_client(), model.inference_name), f"{kind} order {order}")
    handed = by == ("refunds" if kind == "refund" else "shipping")
    right = handed and (str(amount(order)) if kind == "refund" else city(order)) in said
    return art.Trajectory(reward=0.3 * handed + 0.7 * right, metrics={"handed": float(handed), "right": float(right)})


_DRAWS = random.Random("openai agents stand-in")


def stand_in(request: dict) -> dict:
    """A model that hands over to anybody, and then uses the tool that it has."""
    messages = request["messages"]
    names = [tool["function"]["name"] for tool in request["tools"]]
    order = next(one["content"] for one in messages if one["role"] == "user").split()[-1]
    last = messages[-1]
    if "refund" not in names and "track" not in names:
        return _call(_DRAWS.choice(names), {}, "call_0")
    if last["role"] == "tool" and last["content"].startswith(("refunded", "it is in")):
        return {"role": "assistant", "content": last["content"]}
    return _call(names[0], {"order": order}, "call_1")


def _call(name: str, arguments: dict, id: str) -> dict:
    calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}]
    return {"role": "assistant", "content": None, "tool_calls": calls}
