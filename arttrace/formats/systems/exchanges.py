"""Requests with their answers, of chat completions or of Anthropic's Messages API, as calls of runs. Pure.

So are calls as programs log them, messages beside the response: LiteLLM's payload for logs, OpenHands' completions.
Each pair is read as the same exchange is that was captured. Where no time is given a call stands at the start of the
year 2000. Ids are hashes of the content, so that a file imported twice is there once.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from arttrace.formats.content_ids import ContentIds
from arttrace.formats.conversations import (
    beside_of,
    messages_of,
    rewards_beside,
    task_of,
    time_of,
    without_rewards,
)
from arttrace.formats.files.known_ids import KnownIds
from arttrace.formats.imported_run import NO_TIME, SECOND, calls_of, failed_with_others, said, tool_span
from arttrace.formats.left_out import Read
from arttrace.formats.sdks.anthropic_messages import unread_parts, whole_conversation
from arttrace.formats.sdks.openai_messages import metadata_text, plain, tools
from arttrace.records import semconv
from arttrace.records.message import canonical_json
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.costs import whole_cost
from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.times import time_ns
from arttrace.wire import Exchange, decode

KIND = "exchanges"
CHAT, RESPONSES, ANTHROPIC = "/chat/completions", "/responses", "/v1/messages"
_OF_THE_WIRE = (semconv.HTTP_STATUS_CODE, semconv.TRAJECTORY_ID)
"""What a pair in a file does not say: it has no status, and it is of the run that its history says."""


_SETTINGS = ("kwargs", "model_parameters")
_COSTS = ("response_cost", "cost")
"""What LiteLLM and OpenHands log of what a call cost, which is 0 where no price is known."""
_OF_A_REQUEST = ("model", "tools", "system", "messages")


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a request with its answer."""
    return ("request" in item and "response" in item) or _is_logged(item)


def _is_logged(item: dict[str, Any]) -> bool:
    """Whether these are messages beside the response that came to them, or beside none since the call failed."""
    if "request" in item or messages_of({"messages": item.get("messages")}) is None:
        return False
    response = item.get("response")
    is_failed = "call_type" in item and item.get("status") == "failure"
    return is_failed or (isinstance(response, dict) and _api_of(response) is not None)


def _paired(item: dict[str, Any]) -> dict[str, Any]:
    """A logged call as a request with its answer."""
    settings = {name: value for one in _SETTINGS for name, value in json_object(item.get(one)).items()}
    request = {**settings, **{name: item[name] for name in _OF_A_REQUEST if item.get(name) is not None}}
    response = item.get("response")
    if not isinstance(response, dict) or _api_of(response) is None:
        kind = json_object(item.get("error_information")).get("error_class")
        response = {"error": {"type": kind, "message": str(item.get("error_str") or "the call failed")}}
    beside = {name: value for name, value in item.items() if name not in (*_SETTINGS, *_OF_A_REQUEST)}
    return {**beside, "request": request, "response": response}


class Exchanges:
    """Pairs of one source, in the order they were made: one whose messages extend those of an earlier one is of the
    same run.

    What stands beside them, or in the metadata of either, is the run's: runs with the same task id are a group, and of
    several rewards of one name in a run the last one counts.
    """

    def __init__(self, source: str, ids: ContentIds) -> None:
        self._source = source
        self._ids = ids
        self._runs = KnownIds()

    def records(self, item: dict[str, Any]) -> Iterator[Read]:
        """The call, the tools that failed before it, and the run's rewards. Raises ValueError when the item holds no
        request with messages, or no answer to it."""
        content = item
        item = _paired(item) if _is_logged(item) else item
        request, response = item.get("request"), item.get("response")
        messages = messages_of(request) if isinstance(request, dict) else None
        api = _api_of(response) if isinstance(response, dict) else None
        if not isinstance(request, dict) or not isinstance(response, dict) or messages is None or api is None:
            raise ValueError("no request with messages and response with choices, content or an error")
        attributes, error = attributes_of(request, messages, response, api)
        if semconv.USAGE_COST not in attributes:
            attributes[semconv.USAGE_COST] = whole_cost(*(item.get(name) for name in _COSTS)) or None
        own = self._ids.next(self._source, content, numbers_the_first=True)
        trace_id, known = self._run(messages, own)
        # Within one second the longer history is the later one.
        began = time_ns(item.get("startTime")) or time_of(response) or time_of(item) or NO_TIME
        start = began + len(messages)
        beside = {**json_object(request.get("metadata")), **beside_of(item, "request", "response")}
        task, rest = task_of(beside), without_rewards(beside)
        attributes[semconv.SCENARIO] = None if task is None else f"{self._source}/{task}"
        attributes[semconv.METADATA] = metadata_text(rest) if rest else None
        yield SpanRow(
            trace_id=trace_id,
            span_id=own[:16],
            name=f"chat {attributes.get(semconv.REQUEST_MODEL, '')}".strip(),
            start_ns=start,
            end_ns=max(time_ns(item.get("endTime")) or start + SECOND, start),
            kind=3,
            status_code=2 if error else 0,
            status_message=error,
            attributes=said(attributes),
            resource={semconv.SERVICE_NAME: self._source},
        )
        yield from unread_parts(messages[known:])
        yield from unread_parts([{"role": "assistant", "content": response.get("content")}])
        yield from _failed(messages, known, trace_id, start)
        yield from rewards_beside(beside, trace_id, start)

    def _run(self, messages: Sequence[dict[str, Any]], own: str) -> tuple[str, int]:
        """The run that a history is of, and how many of its messages an earlier call of that run was given."""
        digest, found, known = hashlib.blake2b(digest_size=16), own, 0
        for number, message in enumerate(messages, 1):
            digest.update(canonical_json(_bare(message)) + b"\n")
            if number < len(messages) and (run := self._runs.get(digest.digest())) is not None:
                found, known = str(run), number
        self._runs.keep(digest.digest(), found)
        return found, known


def _api_of(response: dict[str, Any]) -> str | None:
    """The path of the API that answers so; None where nothing is answered."""
    if isinstance(response.get("choices"), list):
        return CHAT
    if (isinstance(response.get("content"), list) and "usage" in response) or response.get("type") in (
        "message",
        "error",
    ):
        return ANTHROPIC
    return CHAT if response.get("error") else None


def attributes_of(
    request: dict[str, Any], messages: Sequence[dict[str, Any]] | None, response: dict[str, Any], api: str
) -> tuple[Attributes, str]:
    """What is captured of such an exchange, and why it failed. `api` is the path of its API; requests of those without
    messages have None. Raises ValueError where the response is none of that API's."""
    asked = request
    if messages is not None:
        sent = [plain(message) for message in messages]
        asked = {**request, "messages": whole_conversation(sent) if api == CHAT else sent}
    exchange = Exchange(msgspec.json.encode(asked), 200, {}, msgspec.json.encode(response), path=api)
    decoded = decode(exchange, limit=sys.maxsize)
    found = {name: value for name, value in decoded.attributes.items() if name not in _OF_THE_WIRE}
    if messages is not None and isinstance(request.get("tools"), list):
        found[semconv.TOOL_DEFINITIONS] = tools(request["tools"])
    if decoded.failure is None:
        return found, ""
    kind, reason = decoded.failure
    if kind == "invalid_response":
        raise ValueError(reason)
    error = response.get("error")
    named = error.get("type", error.get("code")) if isinstance(error, dict) else None
    found[semconv.ERROR_TYPE] = named if isinstance(named, str) else kind
    return found, reason


def _failed(messages: Sequence[dict[str, Any]], known: int, trace_id: str, before_ns: int) -> Iterator[SpanRow]:
    """The results of tools behind the known messages of which one failed, as spans before the call that was given
    them."""
    chats = whole_conversation(messages[known:])
    answers = [at for at, chat in enumerate(chats) if chat.get("role") == "assistant"]
    for answer, end in pairwise([*answers, len(chats)]):
        if not (found := list(failed_with_others(chats[:end], answer))):
            continue
        earlier = [*whole_conversation(messages[:known]), *chats[:answer]]
        often = Counter(one.id for chat in earlier for one in calls_of(chat))
        for at, call in found:
            key = f"{trace_id}/{call.id}" + (f"/{often[call.id]}" if often[call.id] else "")
            often[call.id] += 1
            span_id = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
            yield tool_span(call, chats[at], trace_id, span_id, before_ns - 1 - (len(chats) - at))


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the nulls and defaults that some clients add to an answer they send back."""
    return {name: value for name, value in message.items() if value is not None and value != []}
