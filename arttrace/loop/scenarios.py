"""Scenarios from a model: tasks for an agent, requested in batches, checked, and without duplicates.

Scenarios that exist are not requested again, so an interrupted list can be completed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from arttrace.rewards.judge import DEFAULT_JUDGE
from arttrace.rewards.judge_answer import listed
from arttrace.rewards.judge_calls import Bill, Judge, ask
from arttrace.system.errors import ArttraceError

BATCH = 20
"""How many scenarios are requested at a time."""
_MAX_CHARS = 4000
_MAX_SHOWN = 100
_ALIKE = 0.8
_PATIENCE = 3
_SYSTEM = """\
You write tasks on which an AI agent is trained and tested. Each task is one message as a user would write it to the \
agent: self-contained, clear about what is wanted, and possible with what the agent is described to have. Tasks differ \
in subject, wording and difficulty. Never write what the answer is.
Answer with JSON only: {"scenarios": [{"task": "...", "difficulty": 1}, ...]} with a difficulty from 1 (one easy step) \
to 5 (many steps that depend on each other)."""
_ANSWER_FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "scenarios",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "scenarios": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"task": {"type": "string"}, "difficulty": {"type": "integer"}},
                        "required": ["task", "difficulty"],
                        "additionalProperties": False,
                    },
                }
            },
            "required": ["scenarios"],
            "additionalProperties": False,
        },
    },
}


class Scenario(msgspec.Struct, frozen=True):
    """One task for an agent. `difficulty` is 1 to 5, as the model that wrote it says."""

    task: str
    difficulty: int = 3


async def generate_scenarios(
    about: str,
    count: int,
    model: str = DEFAULT_JUDGE,
    extra_litellm_params: dict[str, Any] | None = None,
    *,
    known: Sequence[Scenario] = (),
    on_batch: Callable[[list[Scenario]], None] | None = None,
) -> list[Scenario]:
    """Have a model write tasks for an agent.

    A task that is empty, longer than 4,000 characters or nearly the same as another (four fifths of the words) is
    dropped, and another one is requested.

    Args:
        about: What the agent does and which tools it has, in words.
        count: The number of scenarios to return, those in `known` included.
        model: The model that writes them, by the name that litellm has for it.
        extra_litellm_params: Further arguments of litellm's `acompletion`, such as `api_base` and `api_key`.
        known: Existing scenarios.
        on_batch: Called with all scenarios so far after each answer, so that they can be kept.

    Returns:
        `known` and the new ones after them, `count` in all.

    Raises:
        ArttraceError: The model wrote nothing new several times in a row.
        JudgeError: The model cannot be reached, or its answers cannot be used.
    """
    writer, bill = Judge(model, extra_litellm_params or {}), Bill()
    found, fruitless = list(known), 0
    while len(found) < count:
        wanted = min(BATCH, count - len(found))
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _request(about, wanted, found)}]
        written = await ask(writer, messages, _ANSWER_FORMAT, _read, bill)
        before = len(found)
        for one in written:
            if len(found) < count and not any(alike(one.task, other.task) for other in found):
                found.append(one)
        fruitless = 0 if len(found) > before else fruitless + 1
        if on_batch is not None and len(found) > before:
            on_batch(list(found))
        if fruitless == _PATIENCE:
            raise ArttraceError(
                f"{model} wrote {len(found)} different scenarios of {count}, and then only repetitions",
                "Ask for fewer, describe the agent in more detail, or use a stronger model.",
            )
    return found


def split(scenarios: Sequence[Scenario], held_out: int) -> tuple[list[Scenario], list[Scenario]]:
    """Split scenarios into those to train on and those held out. A hash of the task decides, so that adding scenarios
    moves few of the others.

    Args:
        scenarios: All of them.
        held_out: The number of scenarios to hold out.
    """
    ranked = sorted(scenarios, key=lambda one: hashlib.blake2b(one.task.encode()).digest())
    chosen = {one.task for one in ranked[:held_out]}
    return [one for one in scenarios if one.task not in chosen], [one for one in scenarios if one.task in chosen]


def alike(one: str, other: str) -> bool:
    """Whether two tasks have four fifths of their words in common, whatever their case and order."""
    a, b = _words(one), _words(other)
    return a == b or len(a & b) >= _ALIKE * len(a | b) > 0


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def _request(about: str, wanted: int, found: Sequence[Scenario]) -> str:
    there = "\n".join(f"- {one.task[:200]}" for one in found[-_MAX_SHOWN:])
    but = f"\n\nThese are there already; write others:\n{there}" if there else ""
    return f"{about}\n\nWrite {wanted} tasks.{but}"


def _read(text: str, cut_off: str) -> list[Scenario]:
    written: list[Scenario] = []
    for entry in listed(text, "scenarios", cut_off):
        task = entry.get("task") if isinstance(entry, dict) else None
        if not isinstance(task, str):
            raise ValueError("an entry of `scenarios` has no `task`")
        difficulty = entry.get("difficulty")
        level = difficulty if isinstance(difficulty, int) and 1 <= difficulty <= 5 else 3
        if task.strip() and len(task) <= _MAX_CHARS:
            written.append(Scenario(task.strip(), level))
    return written
