"""Microsoft.Extensions.AI, by which .NET asks models: its span of several calls as one. Pure.

Where its telemetry stands around its loop of tool calls, one `chat` span is the whole of that: its output messages are
the turns, with what the tools returned, one after another.
"""

from __future__ import annotations

from arttrace.formats.sdks.openai_messages import text_of
from arttrace.records import semconv
from arttrace.records.span import Attributes
from arttrace.records.values.lenient_json import json_object
from arttrace.trajectories.decoding.attribute_values import listed


def last_turn(attributes: Attributes) -> Attributes:
    """Of a call whose output messages hold what tools returned, and so are turns and no choices: the last answer as its
    output, and what came before that as its input, where the input is said; nothing of any other call."""
    if attributes.get(semconv.OPERATION_NAME) not in semconv.CALL_OPERATIONS:
        return {}
    turns = listed(attributes.get(semconv.OUTPUT_MESSAGES)) or []
    roles = [json_object(turn).get("role") for turn in turns]
    if "tool" not in roles or "assistant" not in roles:
        return {}
    last = len(roles) - 1 - roles[::-1].index("assistant")
    found: Attributes = {semconv.OUTPUT_MESSAGES: text_of(turns[last : last + 1])}
    if asked := listed(attributes.get(semconv.INPUT_MESSAGES)):
        found[semconv.INPUT_MESSAGES] = text_of([*asked, *turns[:last]])
    return found
