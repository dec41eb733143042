"""Calls that name the response they go on from, instead of sending its history, get that history back.

The server kept it: the input of the earlier response and its answer. In the Responses API instructions are not handed
on, each request brings its own; a thread of Anthropic's Messages API keeps them, and its tools.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from arttrace.records.call import Call
from arttrace.records.message import Message
from arttrace.trajectories.decoding.call import kept_by_server
from arttrace.trajectories.decoding.messages import MessageReader
from arttrace.trajectories.identity.deduplicate import SpanKey


def join_responses(
    calls: Mapping[SpanKey, Call],
    instructed: Collection[SpanKey],
    threaded: Collection[SpanKey],
    reader: MessageReader,
) -> dict[SpanKey, Call]:
    """The calls of one trajectory, in order of start, with whole histories. `instructed` are those whose first message
    is their instructions, `threaded` those whose tools are of the call that they go on from. A history that was not
    captured, or not as a whole, stays left out, and the calls that go on from it say so."""
    if not any(call.previous_response_id for call in calls.values()):
        return dict(calls)
    by_response: dict[str, SpanKey] = {}
    for key, call in calls.items():
        if call.response_id:
            by_response.setdefault(call.response_id, key)
    inputs: dict[SpanKey, tuple[Message, ...]] = {}  # without instructions
    tools = {key: call.tools for key, call in calls.items()}
    lacking: set[SpanKey] = set()
    for start in calls:
        chain = _unknown_before(start, calls, by_response, inputs)
        for key in reversed(chain):
            before = by_response.get(calls[key].previous_response_id or "")
            own = calls[key].messages[key in instructed :]
            whole = reader.extended(inputs[before], (*_answer(calls[before]), *own)) if before in inputs else own
            inputs[key] = whole
            if calls[key].previous_response_id and (before not in inputs or _lacks(calls[before], before in lacking)):
                lacking.add(key)
            if key in threaded and before in tools:
                tools[key] = tools[key] or tools[before]
    return {
        key: msgspec.structs.replace(
            call,
            messages=reader.instructed(call.messages[0], inputs[key]) if key in instructed else inputs[key],
            tools=tools[key],
            unreadable=call.unreadable + (_KEPT[key in threaded] if key in lacking else ()),
        )
        for key, call in calls.items()
    }


_KEPT = kept_by_server(["previous_response_id"]), kept_by_server(["thread"])


def _lacks(call: Call, history: bool) -> bool:
    return history or call.truncated or bool(call.unreadable)


def _unknown_before(
    key: SpanKey,
    calls: Mapping[SpanKey, Call],
    by_response: Mapping[str, SpanKey],
    known: Collection[SpanKey],
) -> Sequence[SpanKey]:
    chain: dict[SpanKey, None] = {}
    at: SpanKey | None = key
    while at is not None and at not in known and at not in chain:
        chain[at] = None
        at = by_response.get(calls[at].previous_response_id or "")
    return list(chain)


def _answer(call: Call) -> tuple[Message, ...]:
    return tuple(choice.message for choice in call.choices[:1] if choice.message.parts)
