"""Pure: which fields of a request change what is sampled, and the request without them."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import msgspec

from arttrace.records.values.lenient_json import json_objects
from arttrace.records.values.nesting import UNREADABLE

# With the values that leave the policy's own distribution as it is; vLLM takes 0 and -1 of top_k for all.
_NUMBERS: dict[str, tuple[Any, ...]] = {
    "temperature": (1,),
    "top_p": (1,),
    "top_k": (-1, 0),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
}
NEUTRAL: dict[str, float] = {
    **{"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0},
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
}
"""What an engine may have other defaults for, of its own or of the model's generation_config.json, with the values that
leave the policy's own distribution as it is."""
FURTHER: dict[str, tuple[Any, ...]] = {
    "min_p": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logits_processors": ([],),
    "best_of": (1,),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "text": ({}, {"format": {"type": "text"}}),
    "output_config": ({}, {"format": None}),
    "output_format": (),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "thinking_token_budget": (-1,),
    "watermarking": (False,),
    "vllm_xargs": ({},),
}
"""Request fields that the conventions do not name and that change what is sampled."""


def changed(request: dict[str, Any]) -> list[str]:
    """The names among FURTHER by which a request changes what is sampled, and those of numbers that are none: what an
    engine makes of them is not known."""
    odd = [name for name in _NUMBERS if (value := request.get(name)) is not None and as_number(value) is None]
    if FURTHER.keys().isdisjoint(request):  # as nearly every request is
        return odd
    return [*odd, *(field for field in FURTHER if _changes(field, request.get(field)))]


def as_number(value: Any) -> int | float | None:
    """The number that an engine reads: vLLM takes text and truth values for one, too. None for any other."""
    if type(value) is float or type(value) is int:
        return value
    if isinstance(value, (bool, str)):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
            if math.isfinite(number):
                return int(number) if number.is_integer() else number
    return None


def _changes(field: str, value: Any) -> bool:
    if field in _FORMATS and isinstance(value, dict):  # of which the format alone does
        value = {key: value[key] for key in value if key == "format"}
    if field == "tool_choice" and isinstance(value, dict) and _is_free(value):
        return False
    return value is not None and value not in FURTHER[field]


def _is_free(choice: dict[str, Any]) -> bool:
    """Whether a tool choice in Anthropic's form leaves it to the model which tools it calls, and how many: one call at
    most is a grammar's work."""
    return choice.get("type") == "none" or (
        choice.get("type") == "auto" and not choice.get("disable_parallel_tool_use")
    )


_FORMATS = ("text", "output_config")
_MESSAGES_CHOICES = ("auto", "none", "any", "tool")
"""The types of a tool choice in Anthropic's Messages API."""


def as_the_policy(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """A request's fields without those that change what is sampled, the others as they came.

    A tool choice that forces or limits calls becomes "auto"; no tool is strict; of a Responses `text` only the format
    goes.
    """
    kept: dict[str, msgspec.Raw] = {}
    for name, raw in fields.items():
        neutral = _NUMBERS.get(name, FURTHER.get(name))
        if name == "tools":
            kept[name] = without_strict(raw)
            continue
        if neutral is None:
            kept[name] = raw
            continue
        try:
            value = msgspec.json.decode(raw)
        except UNREADABLE:
            continue
        if value is None or value in neutral:
            kept[name] = raw
        elif name == "tool_choice" and isinstance(value, dict) and value.get("type") in _MESSAGES_CHOICES:
            kept[name] = raw if _is_free(value) else msgspec.Raw(b'{"type":"auto"}')
        elif name == "tool_choice":
            kept[name] = msgspec.Raw(b'"auto"')
        elif name in _FORMATS and isinstance(value, dict) and set(value) - {"format"}:
            kept[name] = msgspec.Raw(msgspec.json.encode({key: value[key] for key in value if key != "format"}))
    return kept


def without_strict(tools: msgspec.Raw) -> msgspec.Raw:
    """A request's tools, of which none is `strict`: where one is, vLLM lets a grammar choose among the tokens of each
    call, also where the model may call what it likes."""
    if b'"strict"' not in bytes(tools):
        return tools
    try:
        found = msgspec.json.decode(tools)
    except UNREADABLE:
        return tools
    places = [
        place for tool in json_objects(found) for place in (tool, tool.get("function")) if isinstance(place, dict)
    ]
    strict = [place for place in places if place.get("strict") is True]
    for place in strict:
        del place["strict"]
    return msgspec.Raw(msgspec.json.encode(found)) if strict else tools


def body_as_the_policy(body: bytes) -> bytes:
    """The same of a JSON body; where nothing has to go, it is the body itself. Raises ValueError for what is none."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    kept = as_the_policy(fields)
    return body if kept == fields else msgspec.json.encode(kept)
