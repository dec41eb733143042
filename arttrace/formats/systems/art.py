"""Trajectories of OpenPipe's ART: groups of `messages_and_choices` or of `exchanges`, as JSON, and rows of its
Parquet logs. Pure.

A choice, or a row's message that is `trainable`, is an answer of the run; so is that of each exchange, in the order of
time. What `arttrace dataset --format art` wrote comes back with its trajectory ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import ImportedRun
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.anthropic_messages import unread_parts, whole_conversation
from arttrace.formats.systems.exchanges import ANTHROPIC, CHAT, RESPONSES, attributes_of
from arttrace.records import semconv
from arttrace.records.message import canonical_json
from arttrace.records.values.lenient_json import json_object, read_json
from arttrace.records.values.times import time_ns
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.trajectories.decoding.attribute_values import from_json
from arttrace.wire.apis.anthropic.messages import TOKENS_FIELD
from arttrace.wire.apis.openai.completion_response import integers, logprobs_of

KIND = "art trajectories"
_APIS = {"chat_completions": CHAT, "completions": "/completions", "responses": RESPONSES, "messages": ANTHROPIC}
"""The lists of `exchanges`, and the paths of their APIs."""
_COMPACT, _COMPACT_VERSION = "art.trajectories", 1
_LARGEST = 1 << 30
"""Characters that a compact form may stand for."""
_TOKEN = "token_id:"
_VERSIONS = ("initial_policy_version", "final_policy_version")
_OF_GROUP = ("group_metadata", "group_metrics", "group_logs")
LOST_IDS = "token ids of answers of which some are not known"


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a group, a trajectory, their compact form, or a row of a Parquet log."""
    if item.get("format") == _COMPACT:
        return True
    item = _own(item)
    if isinstance(item.get("trajectories"), list):
        return any(isinstance(one, dict) and _is_trajectory(one) for one in item["trajectories"])
    return _is_trajectory(item) or ("group_index" in item and "messages" in item)


def _is_trajectory(item: dict[str, Any]) -> bool:
    exchanges = item.get("exchanges")
    return "messages_and_choices" in item or (isinstance(exchanges, dict) and any(api in exchanges for api in _APIS))


def _own(item: dict[str, Any]) -> dict[str, Any]:
    """The group or the trajectory itself, where ART put it beside the token ids that it made of it."""
    inner = item.get("trajectory_group", item.get("trajectory"))
    return inner if isinstance(inner, dict) else item


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """The runs of an item; those of one group are a group here, named by its metadata, or by its file and its place in
    it: groups of other files are others. Raises ValueError where a run of it cannot be read."""
    if item.get("format") == _COMPACT:
        whole = _expanded(item)
        several = whole if isinstance(whole, list) else None
        for at, one in enumerate([whole] if several is None else several, 1):
            if not isinstance(one, dict) or not recognises(one):
                raise ValueError(f"its kind is {item.get('kind')!r}, which is no trajectory, and of no run")
            yield from records(one, origin if several is None else origin._replace(place=f"{origin.place} {at}"))
        return
    item = _own(item)
    members = item.get("trajectories")
    shared = _object(item.get("metadata")) if isinstance(members, list) else {}
    group = shared.get("group", shared.get("scenario", f"{origin.source} {origin.place}"))
    of_group = (
        {f"group_{name}": item.get(name) for name in ("metadata", "metrics", "logs")}
        if isinstance(members, list)
        else {}
    )
    for at, one in enumerate(members if isinstance(members, list) else [item]):
        if not isinstance(one, dict):
            raise ValueError("a trajectory is no object")
        place = [group, at] if isinstance(members, list) else [origin.place]
        yield from _run(one, origin, place, group, of_group or one)
    failed = item.get("exceptions")
    yield from (LeftOutItem("rollouts that failed") for _ in (failed if isinstance(failed, list) else ()))


def _expanded(item: dict[str, Any]) -> Any:
    """What a compact form stands for: its texts stand in a table beside it. Raises ValueError for another version."""
    if item.get("version") != _COMPACT_VERSION or not isinstance(strings := item.get("strings"), dict):
        raise ValueError(f"version {item.get('version')!r} of ART's compact trajectories is not known")
    room = _LARGEST

    def text(value: str) -> str:
        nonlocal room
        found: str = strings.get(value, value)
        room -= len(found)
        if room < 0:
            raise ValueError(f"it stands for more than {_LARGEST >> 30} GiB of text")
        return found

    def whole(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, list):
            return [whole(one) for one in value]
        return {text(name): whole(one) for name, one in value.items()} if isinstance(value, dict) else value

    if not all(isinstance(one, str) for one in strings.values()):
        raise ValueError("the table of its texts holds something else")
    return whole(item.get("data"))


def _run(
    item: dict[str, Any],
    origin: ItemOrigin,
    place: list[Any],
    group: Any,
    of_group: Mapping[str, Any],
) -> Iterator[Read]:
    """One run; `of_group` is what is said of its group, as the Parquet logs name it."""
    metadata = _object(item.get("metadata"))
    if "group_index" in item:
        group = _object(item.get("group_metadata")).get("group", f"{origin.source} group {item['group_index']}")
    own = metadata.pop("trajectory_id", None)
    scenario = metadata.pop("scenario", None)
    tags = str(metadata.pop("tags", "") or "")
    id = own if isinstance(own, str) else None
    exchanges = _exchanges(item)
    began = exchanges[0].start_ns or None if exchanges else None
    key = None if id else origin.id_of([place, item])
    trace_id = origin.id_of_own(KIND, id) if id else None
    run = ImportedRun(origin.source, key, trace_id=trace_id, name=origin.source, start_ns=began, trajectory_id=id)
    yield from _calls(run, exchanges)
    histories = [item, *(one for one in item.get("additional_histories") or [] if isinstance(one, dict))]
    result: Any = None
    for number, history in enumerate(histories):
        agent = None
        if number:
            agent, spans = run.agent(str(number), f"history {number}")
            yield from spans
        said = history.get("messages_and_choices", history.get("messages", []))
        if not isinstance(said, list):
            raise ValueError("a trajectory has no list of messages and choices")
        offered = history.get("tools")
        offered = read_json(offered) if isinstance(offered, str) else offered
        messages: list[dict[str, Any]] = []
        for at, one in enumerate(said):
            message, choice = _said(one)
            if choice is not None:
                attributes, lost = _tokens(choice)
                yield from lost
                answer = {**message, "finish_reason": choice.get("finish_reason")}
                yield run.call([number, at], messages, [answer], agent=agent, offered=offered, attributes=attributes)
                if not number:
                    result = message.get("content")
            messages.append(message)
    beside = {name: _json(value) for name in ("metrics", "logs") if (value := item.get(name))}
    beside |= {name: value for name in _VERSIONS if (value := item.get(name)) is not None}
    shared = {name: from_json(of_group.get(name)) for name in _OF_GROUP}
    if isinstance(named := shared["group_metadata"], dict):
        shared["group_metadata"] = {name: value for name, value in named.items() if name not in ("group", "scenario")}
    beside |= {name: value for name, value in shared.items() if value}
    yield run.end(
        metadata={**metadata, **beside},
        result=result,
        attributes={
            semconv.SCENARIO: scenario if isinstance(scenario, str) else None,
            semconv.GROUP: str(group) if group is not None else None,
            semconv.TAGS: tags.split(",") if tags else None,
        },
    )
    yield from run.rewards({"reward": item.get("reward")})


class _Exchange(NamedTuple):
    """A call as ART captured it, in the order in which a run's stand. Times are 0 where there is none."""

    start_ns: int
    end_ns: int
    place: tuple[str, int]
    request: dict[str, Any]
    response: dict[str, Any]


def _exchanges(item: Mapping[str, Any]) -> list[_Exchange]:
    """Those of a trajectory, of all APIs. Raises ValueError where one is none."""
    given = item.get("exchanges") or {}
    lists = {api: given.get(api) or [] for api in _APIS} if isinstance(given, dict) else {"exchanges": given}
    if not isinstance(given, dict) or not all(isinstance(one, list) for one in lists.values()):
        raise ValueError("its exchanges are no lists, one for each API")
    found: list[_Exchange] = []
    for api, several in lists.items():
        for at, one in enumerate(several):
            request, response = (one.get("request"), one.get("response")) if isinstance(one, dict) else (None, None)
            if not isinstance(request, dict) or not isinstance(response, dict):
                raise ValueError(f"exchange {at} of {api} is no request with its response")
            start, end = time_ns(one.get("start_time")), time_ns(one.get("end_time"))
            found.append(_Exchange(start or 0, end or 0, (api, at), request, response))
    return sorted(found, key=lambda one: one[:3])


def _calls(run: ImportedRun, exchanges: Sequence[_Exchange]) -> Iterator[Read]:
    """The calls, and before each the results of tools that failed."""
    seen = set[bytes]()
    for one in exchanges:
        api = _APIS[one.place[0]]
        messages = _messages(one.request) if api in (CHAT, ANTHROPIC) else None
        response, lost = _with_tokens(one.response, api)
        attributes, _ = attributes_of(one.request, messages, response, api)
        new = [message for message in messages or () if canonical_json(message) not in seen]
        seen.update(map(canonical_json, new))
        yield from unread_parts(new)
        yield from lost
        chats = whole_conversation(messages or ())
        answers = [at for at, chat in enumerate(chats) if chat.get("role") == "assistant"]
        if new and answers:
            yield from run.results(chats, answers[-1], end_ns=one.start_ns or None)
        yield run.exchange(one.place, attributes, start_ns=one.start_ns or None, end_ns=one.end_ns or None)


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = request.get("messages")
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise ValueError("a request has no list of messages")
    return found


def _with_tokens(response: dict[str, Any], api: str) -> tuple[dict[str, Any], list[LeftOutItem]]:
    """A response with its token ids where they are captured: ART has servers write them in places of its own."""
    if api == ANTHROPIC:
        tokens = {name: response.get(name) for name in ("prompt_token_ids", "token_ids", "logprobs")}
        _, lost = _ids([], tokens["token_ids"])
        return ({TOKENS_FIELD: tokens, **response} if any(tokens.values()) else response), lost
    if api == RESPONSES:
        sampled = _listed(response.get("raw_output_tokens"))
        ids, lost = _ids(sampled)
        told = [{"tokens": ids, "logprobs": logprobs_of(sampled)}]
        return ({"output_messages": told, **response} if ids else response), lost
    choices = response.get("choices")
    if not isinstance(choices, list):
        return response, []
    read = [_choice_with_tokens(one) if isinstance(one, dict) else (one, []) for one in choices]
    return {**response, "choices": [one for one, _ in read]}, [what for _, lost in read for what in lost]


def _choice_with_tokens(choice: dict[str, Any]) -> tuple[dict[str, Any], list[LeftOutItem]]:
    logprobs = json_object(choice.get("logprobs"))
    sampled = _listed(logprobs.get("content")) or [{"token": token} for token in _listed(logprobs.get("tokens"))]
    ids, lost = _ids(sampled, choice.get("token_ids"))
    return ({**choice, "token_ids": ids} if ids else choice), lost


def _said(one: Any) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """The message, and its choice where it is an answer of the run."""
    if not isinstance(one, dict):
        raise ValueError("a message is no object")
    if isinstance(one.get("message"), dict):
        message = {name: value for name, value in one["message"].items() if value is not None}
        return {"content": None, **message, "role": "assistant"}, one
    message = {name: value for name, value in one.items() if name != "trainable" and value is not None}
    if isinstance(message.get("tool_calls"), str):
        message["tool_calls"] = read_json(message["tool_calls"])
    message.setdefault("content", None)
    return message, {} if one.get("trainable") else None


def _tokens(choice: Mapping[str, Any]) -> tuple[dict[str, Any], list[LeftOutItem]]:
    content = _listed(json_object(choice.get("logprobs")).get("content"))
    ids, lost = _ids(content, choice.get("token_ids"))
    values = logprobs_of(content)
    are_there = any(value is not None for value in values)
    logprobs = encode_logprobs(values) if are_there else None
    return {semconv.TOKEN_IDS: encode_token_ids(ids) if ids else None, semconv.LOGPROBS: logprobs}, lost


def _ids(content: Sequence[Any], given: Any = None) -> tuple[list[int], list[LeftOutItem]]:
    """The ids of sampled tokens, as they are `given` or by the tokens; none where one of them has no id, which is
    counted where others have."""
    ids: Any = given
    if given is None:
        ids = [_token_id(one.get("token_id", one.get("token"))) if isinstance(one, dict) else None for one in content]
        if not any(id is not None for id in ids):
            return [], []
    found = integers(ids)
    return found or [], [LeftOutItem(LOST_IDS)] if found is None else []


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _token_id(token: Any) -> int | None:
    if isinstance(token, str) and token.startswith(_TOKEN) and (number := token[len(_TOKEN) :]).isdecimal():
        return int(number)
    return token if type(token) is int else None


def _json(value: Any) -> Any:
    return read_json(value) if isinstance(value, str) and value else value


def _object(value: Any) -> dict[str, Any]:
    found = _json(value)
    return dict(found) if isinstance(found, dict) else {}
