"""Asking the judge: one prompt, asked again when it fails or its answer cannot be used, and what that cost."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from arttrace.records.values.lenient_json import well_formed
from arttrace.records.values.units import quantity
from arttrace.rewards.judge_answer import ANSWER_FORMAT, CUT_OFF, TrajectoryScore, read_answer
from arttrace.rewards.judge_errors import (
    JudgeUnavailable,
    judge_error,
    may_pass,
    retry_after_s,
    short_cause,
    tokens_read,
)
from arttrace.rewards.judge_prompt import MAX_CHARS, judge_prompt
from arttrace.rewards.transcript import Transcript
from arttrace.system.errors import JudgeError
from arttrace.system.processes import signals_after_imports
from arttrace.system.suppression import suppress_instrumentation
from arttrace.wire.content.secrets import NO_KEY

ATTEMPTS = 4
"""How often a judge is asked at most for one group, after failures that may pass and answers that cannot be used."""
BACKOFF_S = 1.0
"""Seconds before the second attempt after a failure; doubled for each further one, with up to a quarter more."""
_TIMEOUT_S = 600.0
_CHARS_PER_TOKEN = 3  # below that of English text, so that a prompt of this many characters fits
_FOR_THE_ANSWER = 0.2  # of what a judge reads that says so only where it refuses a prompt
_READ_ALONE = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
_READ_TOO = ("ANTHROPIC_AUTH_TOKEN",)

T = TypeVar("T")
Messages = Sequence[dict[str, str]]


@dataclass(slots=True)
class Judge:
    """A judge model, how often it is asked at most, and what was learned about it: whether it takes
    `response_format`."""

    model: str
    params: dict[str, Any]
    structured: bool = True
    attempts: int = ATTEMPTS


@dataclass(slots=True)
class Bill:
    """What one group has cost so far, unusable answers included."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = field(default=0.0)

    def add(self, litellm: Any, response: Any) -> None:
        usage = getattr(response, "usage", None)
        self.input_tokens += getattr(usage, "prompt_tokens", None) or 0
        self.output_tokens += getattr(usage, "completion_tokens", None) or 0
        try:
            price = litellm.completion_cost(response)
        except Exception:  # noqa: BLE001 - litellm raises a bare Exception for a model without a price
            price = None
        self.cost = None if self.cost is None or price is None else self.cost + price


async def score_transcripts(
    judge: Judge, transcripts: Sequence[Transcript], rubric: str, seed: str, bill: Bill
) -> list[TrajectoryScore]:
    """A score per transcript, in their order; the id of each is that of the prompt, its place among those shown.

    `seed` decides the order in which they are shown. Raises JudgeError as `ruler_score_group` does.
    """
    litellm = await asyncio.to_thread(load_litellm)
    prompt = judge_prompt(transcripts, rubric=rubric, seed=seed, max_chars=_max_chars(litellm, judge.model))

    def shorter(tokens: int | None) -> Messages:
        nonlocal prompt
        max_chars = sum(len(message["content"]) for message in prompt.messages) // 2
        if tokens is not None:
            max_chars = min(max_chars, int(tokens * _CHARS_PER_TOKEN * (1 - _FOR_THE_ANSWER)))
        prompt = judge_prompt(transcripts, rubric=rubric, seed=seed, max_chars=max_chars)
        return prompt.messages

    def read(text: str, cut_off: str) -> dict[str, TrajectoryScore]:
        return read_answer(text, prompt.members, cut_off)

    scores = await ask(judge, prompt.messages, ANSWER_FORMAT, read, bill, shorter=shorter)
    by_position = {at: scores[id] for id, positions in prompt.members.items() for at in positions}
    return [by_position[position] for position in range(len(transcripts))]


async def ask(
    judge: Judge,
    messages: Messages,
    answer_format: dict[str, Any],
    read: Callable[[str, str], T],
    bill: Bill,
    *,
    shorter: Callable[[int | None], Messages] | None = None,
) -> T:
    """What `read` makes of the model's answer. It is asked again after a failure that may pass, with what is wrong
    with an answer of which `read` raises ValueError.

    Args:
        judge: The model.
        messages: The request's messages.
        answer_format: `response_format` of the request, left out for a model that refuses it.
        read: Makes something of the answer's text, and of what to say where something else than the model ended it.
        bill: Where the cost of all answers is added.
        shorter: The messages again for a model that refuses their length, half as long or shorter: so that they fit
            into the number of tokens that it says it reads.

    Raises:
        JudgeError: The model cannot be reached, or its answers cannot be used.
    """
    litellm = await asyncio.to_thread(load_litellm)
    first, asked, cause = messages, list(messages), ""
    for attempt in range(1, judge.attempts + 1):
        try:
            text, cut_off = await _answer(litellm, judge, asked, answer_format, bill)
        except Exception as error:  # noqa: BLE001 - providers raise what they like; it is classified and reported below
            if shorter is not None and isinstance(error, litellm.ContextWindowExceededError):
                cause = f"the group is longer than the judge {judge.model} reads: {short_cause(error, judge.params)}"
                first = shorter(tokens_read(error))
                asked = list(first)
                continue
            if attempt == judge.attempts or not may_pass(error):
                raise judge_error(error, judge.model, judge.params) from None
            backoff = BACKOFF_S * 2 ** (attempt - 1) * random.uniform(1, 1.25)
            await asyncio.sleep(max(backoff, retry_after_s(error)))
            continue
        try:
            return read(text, cut_off)
        except ValueError as error:
            cause = f"the answer of the judge {judge.model} cannot be used: {error}"
            asked = [
                *first,
                {"role": "assistant", "content": text[:4000] or "(nothing)"},
                {"role": "user", "content": f"This answer cannot be used: {error}. Answer again, with the JSON only."},
            ]
    raise JudgeError(
        f"{cause} (after {quantity(judge.attempts, 'attempt')})",
        "Use a stronger judge or one with a longer context, or smaller groups.",
    )


async def _answer(
    litellm: Any, judge: Judge, messages: list[dict[str, str]], answer_format: dict[str, Any], bill: Bill
) -> tuple[str, str]:
    """The text of one answer, and what cut it off, if anything did. A judge that refuses structured output is asked
    without it, and remembered."""
    structured = {"response_format": answer_format} if judge.structured else {}
    request = {"timeout": _TIMEOUT_S, **structured, "num_retries": 0, "max_retries": 0, **judge.params}
    if judge.model.startswith("openai/") and "api_base" in request and not os.environ.get("OPENAI_API_KEY"):
        request.setdefault("api_key", NO_KEY)
    try:
        with suppress_instrumentation():  # a judge's call is no call of the user's agent
            response = await litellm.acompletion(model=judge.model, messages=messages, **request)
    except (litellm.BadRequestError, litellm.UnprocessableEntityError) as error:
        if not structured or isinstance(error, litellm.ContextWindowExceededError):
            raise
        judge.structured = False
        try:
            return await _answer(litellm, judge, messages, answer_format, bill)
        except litellm.BadRequestError:
            judge.structured = True  # refused either way: structured output was not the reason
            raise
    bill.add(litellm, response)
    if not response.choices:
        return "", ""
    message = response.choices[0].message
    text = message.content or getattr(message, "refusal", None) or ""
    return well_formed(text), CUT_OFF.get(response.choices[0].finish_reason, "")


def require_key(model: str, params: Mapping[str, Any]) -> None:
    """Asks nobody. Raises JudgeUnavailable where a model's provider certainly lacks its key: one of those that litellm
    reads from the environment alone. Of all others only an answer shows it."""
    if "api_base" in params or "api_key" in params or any(map(os.environ.get, _READ_TOO)):
        return
    missing = load_litellm().validate_environment(model)["missing_keys"]
    if missing and set(missing) <= set(_READ_ALONE):
        names = " or ".join(missing)
        raise JudgeUnavailable(f"{model} needs a key: {names} is not set", f"Set {names} in the environment.")


def load_litellm() -> Any:
    """litellm, imported on first use (about two seconds), without its fetch of a price list and its notices."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with signals_after_imports():
        import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm


def _max_chars(litellm: Any, model: str) -> int:
    try:
        tokens = litellm.get_model_info(model).get("max_input_tokens")
    except Exception:  # noqa: BLE001 - litellm raises its own kinds for a model it does not know
        tokens = None
    return tokens * _CHARS_PER_TOKEN if tokens else MAX_CHARS
