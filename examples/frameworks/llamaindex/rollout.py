"""What `train.py` needs of the LlamaIndex clerk: one rollout with its reward, and a stand-in for a model."""

import json
import random
import re

from agent import answer, clerk
from prices import CUSTOMERS, ITEMS, discount, price

import arttrace.loop as art


def scenario(number: int) -> tuple[str, str]:
    """An item and a customer."""
    return ITEMS[number % len(ITEMS)], CUSTOMERS[number // len(ITEMS) % len(CUSTOMERS)]


async def rollout(model: art.TrainableModel, asked: tuple[str, str]) -> art.Trajectory:
    """One question. LlamaIndex's own client is captured as it is; here only its address is the policy's."""
    item, customer = asked
    where = model.openai_client()
    workflow = clerk(model=model.inference_name, api_base=str(where.base_url), api_key=where.api_key)
    said = await answer(workflow, f"What is a {item} for {customer}?")
    numbers = re.findall(r"\d+", said)
    right = bool(numbers) and int(numbers[-1]) == price(item) - discount(customer)
    return art.Trajectory(reward=float(right) + 0.1 * bool(numbers), metrics={"accuracy": float(right)})


_DRAWS = random.Random("llamaindex stand-in")


def stand_in(request: dict) -> dict:
    """A model that asks for the price, hands over more often than not, and takes the discount off."""
    said = " ".join(str(one.get("content") or "") for one in request["messages"])
    names = [tool["function"]["name"] for tool in request.get("tools") or ()]
    asked = re.search(r"a (\w+) for (\w+)\?", said)
    item, customer = asked.groups() if asked else ("", "")
    cost, off = re.findall(r"costs (\d+)", said), re.findall(r"gets (\d+) off", said)
    if "price_of" in names and not cost:
        return _call("price_of", {"item": item})
    if "handoff" in names and "price_of" in names and _DRAWS.random() < 0.7:
        return _call("handoff", {"to_agent": "accounts", "reason": "discount"})
    if "discount_of" in names and not off:
        return _call("discount_of", {"customer": customer})
    return {"role": "assistant", "content": str(int(cost[-1] if cost else 0) - int(off[-1] if off else 0))}


def _call(name: str, arguments: dict) -> dict:
    calls = [{"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}]
    return {"role": "assistant", "content": None, "tool_calls": calls}
