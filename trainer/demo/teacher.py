"""The scripted teacher, a stand-in: it plays the model for the example agent, imperfectly and on purpose.

It always keeps the form: it plans, asks, and reports the answer. But it picks the price service by habit, for
most kinds of goods mostly the right one, for some mostly the wrong one. A base model trained on its runs takes over the
habits, so that it errs when sampled and, where the habit is wrong, when decoded greedily too.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

LIVE_HABIT = {"fresh": 0.8, "local": 0.8, "imported": 0.35, "canned": 0.2, "dried": 0.2, "frozen": 0.65}
"""How often the teacher asks the live service, by kind of goods. "imported" and "frozen" are mostly wrong: so far from
half of the time that a base model errs on them greedily, too, and right often enough for the policy to go on finding
the right service by sampling. What is never sampled is never rewarded: of three demos that began with 0.18 for
"imported" goods, one went to nothing within ten steps, by what the other kinds taught."""

SERVICES = ("live_price", "list_price")

_NUMBER = re.compile(r"\d+")


class Teacher:
    """Answers chat requests. The n-th choice of a service for an item depends on the seed, the item and n alone. In any
    row of them the live service comes as often as the habit says, up to one: 200 draws were up to 0.07 beside it.

    `kept` are the choices, item and service, of a teacher that was killed: they are not made again. What is kept may be
    any of them, as runs under way are lost, and both teachers together choose as one that was not killed.
    """

    def __init__(self, seed: int, kept: Iterable[tuple[str, str]] = ()) -> None:
        self._seed = seed
        self._asked: Counter[str] = Counter()
        self._kept = Counter(kept)

    def reply(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The assistant message for a request of the example agent. Raises ValueError for any other request."""
        offered = {tool["function"]["name"] for tool in tools}
        request = next((str(message["content"]) for message in messages if message["role"] == "user"), "")
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        if "ask_checker" in offered:
            if results:
                return {"role": "assistant", "content": " and ".join(results)}
            return _calls(("ask_checker", item) for item in request.split(" and "))
        if not offered.issuperset(SERVICES):
            raise ValueError("the teacher knows the market agent's tools only")
        if results:
            found = _NUMBER.search(results[0])
            return {"role": "assistant", "content": f"{request} {found.group() if found else 'unknown'}"}
        return _calls([(self._service(request), request)])

    def _service(self, item: str) -> str:
        kind = item.partition(" ")[0]
        if kind not in LIVE_HABIT:
            raise ValueError(f"the teacher knows no goods such as {item[:40]!r}")
        while True:
            self._asked[item] += 1
            first = random.Random(f"{self._seed}/{item}").random()
            service = SERVICES[(first + self._asked[item] * LIVE_HABIT[kind]) % 1 >= LIVE_HABIT[kind]]
            if not self._kept[item, service]:
                return service
            self._kept[item, service] -= 1


def choices(replies: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The choices, item and service, in what a teacher replied."""
    for reply in replies:
        for call in reply.get("tool_calls") or ():
            if call["function"]["name"] in SERVICES:
                yield json.loads(call["function"]["arguments"])["item"], call["function"]["name"]


def _calls(calls: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps({"item": item})},
            }
            for number, (name, item) in enumerate(calls)
        ],
    }
