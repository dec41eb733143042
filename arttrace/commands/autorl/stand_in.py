"""Stand-ins for the model that writes scenarios and for the judge: scripts, to see AutoRL run without a key.

They know nothing of the task. The writer asks about things from a list; the judge prefers short answers that repeat the
question's words. A model trained on their word is of no other use.
"""

from __future__ import annotations

import json
import re
from typing import Any

from arttrace.rewards.judge_calls import load_litellm
from arttrace.rewards.judge_prompt import parse_prompt

MODEL = "stand-in/script"
NOTE = "Stand-ins wrote the scenarios and judged: scripts, no models. What was learned is short answers."
_THINGS = ("apple", "bridge", "candle", "door", "engine", "forest", "garden", "harbour", "island", "jacket")
_USERS = ("child", "cook", "doctor", "farmer", "painter", "sailor", "tailor", "teacher", "traveller", "writer")
_ASKS = ("Say what a {} is to a {}.", "What would a {} ask about a {}?", "Why does a {} need a {}?")


def install() -> None:
    """Make litellm know `stand-in/script`."""
    litellm = load_litellm()

    async def acompletion(*_: Any, **request: Any) -> Any:
        message = {"role": "assistant", "content": reply(request["messages"])}
        return litellm.ModelResponse(model=MODEL, choices=[{"message": message}])

    script = litellm.CustomLLM()
    script.acompletion = acompletion
    others = [one for one in litellm.custom_provider_map if one["provider"] != "stand-in"]
    litellm.custom_provider_map = [*others, {"provider": "stand-in", "custom_handler": script}]


def reply(messages: list[dict[str, Any]]) -> str:
    """The answer to a request for scenarios or for a judgement."""
    asked = next(str(one["content"]) for one in messages if one["role"] == "user")
    if '"scenarios"' in str(messages[0]["content"]):
        return json.dumps({"scenarios": _scenarios(asked)})
    scores = [
        {"trajectory_id": id, "score": score(document), "explanation": "a stand-in's score: short, and to the words"}
        for id, document in parse_prompt(asked).items()
    ]
    return json.dumps({"scores": scores})


def score(document: dict[str, Any]) -> float:
    """Half for the share of the question's words that the answer repeats, half for being short."""
    messages = [m for agent in document["agents"] for history in agent["histories"] for m in history["messages"]]
    question = next((str(m.get("content", "")) for m in messages if m["role"] == "user"), "")
    answer = str(messages[-1].get("content") or "") if messages and messages[-1]["role"] == "assistant" else ""
    wanted, said = (set(re.findall(r"\w+", text.casefold())) for text in (question, answer))
    return round(0.5 * len(wanted & said) / max(1, len(wanted)) + 0.5 / (1 + len(answer) / 100), 4)


def _scenarios(asked: str) -> list[dict[str, Any]]:
    count = int(found[1]) if (found := re.search(r"Write (\d+) tasks", asked)) else 1
    every = (ask.format(a, b) for ask in _ASKS for a in _THINGS for b in _USERS)
    return [{"task": task, "difficulty": 1} for task in every if f"- {task}" not in asked][:count]
