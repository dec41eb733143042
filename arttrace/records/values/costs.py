"""What a call cost in US dollars, as whoever made it states it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_object, read_json
from arttrace.records.values.nesting import UNREADABLE


def stated_cost(*amounts: Any) -> float | None:
    """The sum of those that are amounts: finite numbers not below 0, or the digits of one. None where none is."""
    known = [amount for amount in map(_amount, amounts) if amount is not None]
    return sum(known) if known else None


def whole_cost(total: Any, *parts: Any) -> float | None:
    """The total where it is stated, else the sum of its parts."""
    whole = stated_cost(total)
    return stated_cost(*parts) if whole is None else whole


def cost_of_usage(usage: Mapping[str, Any]) -> float | None:
    """What a `usage` object states: OpenRouter's does, and Perplexity's, whose `cost` is an object with the total. Of a
    call by the caller's own key of a provider, `cost` is only what OpenRouter takes; what the provider takes is beside
    it, where it is also said of other calls."""
    cost = usage.get("cost")
    if isinstance(cost, dict):
        return stated_cost(cost.get("total_cost")) if cost.get("currency", "USD") == "USD" else None
    of_provider = json_object(usage.get("cost_details")).get("upstream_inference_cost")
    return stated_cost(cost, of_provider if usage.get("is_byok") is True else None)


def cost_of_call(attributes: Mapping[str, Any]) -> float | None:
    """What the attributes of a call state under the first of the names that senders have for it, None where they state
    nothing. store/rows/view_parts/stated_cost.py has the same in SQL."""
    for name in semconv.STATED_COSTS:
        if (whole := stated_cost(attributes.get(name))) is not None:
            return whole
    parts = stated_cost(*(attributes.get(name) for name in semconv.STATED_COSTS_OF_PARTS))
    if parts is not None:
        return parts
    by_kind = attributes.get(semconv.STATED_COSTS_IN_JSON)
    try:
        amounts = json_object(read_json(by_kind) if isinstance(by_kind, str) else by_kind)
    except UNREADABLE:
        return None
    return whole_cost(amounts.get("total"), *amounts.values())


def _amount(given: Any) -> float | None:
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        return None
    try:
        amount = float(given)
    except (ValueError, OverflowError):
        return None
    return amount if math.isfinite(amount) and amount >= 0 else None
