"""Completions and chunks are read alike in the short way and in the long one, whatever they hold."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from arttrace.wire.apis.openai.completion_json import chunk_of, read_chunk, read_chunks
from arttrace.wire.apis.openai.completion_response import read_completion, read_stream
from arttrace.wire.sse import event_data

leaf = st.none() | st.booleans() | st.integers(-5, 2**33) | st.floats(allow_nan=False) | st.text(max_size=3)
odd = leaf | st.lists(leaf, max_size=2) | st.dictionaries(st.text(max_size=2), leaf, max_size=2)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of the fields in the form that they should have, or in any."""
    return st.fixed_dictionaries({}, optional={name: field | odd for name, field in fields.items()})


entries = st.lists(some(logprob=st.floats(-9, 0), token=st.text(max_size=2)) | odd, max_size=3)
logprobs = some(content=entries, token_logprobs=st.lists(leaf, max_size=3), refusal=st.none())
call = some(index=st.integers(0, 2), id=st.text(max_size=2), function=some(name=st.text(max_size=2)))
calls = st.lists(call, max_size=2)
delta = some(role=st.text(max_size=4), content=st.text(max_size=4), reasoning=st.text(max_size=4), tool_calls=calls)
choices = st.lists(
    some(
        index=st.integers(0, 2),
        delta=delta,
        message=delta,
        text=st.text(max_size=3),
        finish_reason=st.sampled_from(["stop", "length"]),
        token_ids=st.lists(st.integers(0, 9), max_size=3),
        logprobs=logprobs,
    )
    | odd,
    max_size=3,
)
documents = some(
    choices=choices,
    id=st.text(max_size=2),
    model=st.text(max_size=2),
    usage=some(prompt_tokens=st.integers(0, 9)),
    error=some(message=st.text(max_size=4)),
    prompt_token_ids=st.lists(st.integers(0, 9), max_size=3),
)


@given(documents)
def test_both_ways_read_the_same(document: dict[str, Any]) -> None:
    data = msgspec.json.encode(document)
    read = read_chunk(data)
    assert read is not None
    assert msgspec.structs.astuple(read) == msgspec.structs.astuple(chunk_of(msgspec.json.decode(data)))


@given(st.lists(documents | odd, max_size=4), st.integers(0, 200), st.booleans())
def test_a_stream_is_read_as_its_events_are(parts: list[Any], cut: int, crlf: bool) -> None:
    events = [msgspec.json.encode(part) for part in parts]
    if events:
        events[0] = events[0][: len(events[0]) - cut % 5] or b"{"
    assert read_chunks(events) == [read_chunk(event) for event in events]
    end = b"\r\n" if crlf else b"\n"
    body = b"".join(b"data: " + event + end + end for event in events)
    body = body[: len(body) - cut] if cut < len(body) and not crlf else body
    whole = body.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]
    assert list(event_data(body)) == [event[6:] for event in whole]
    read_stream(event_data(body))


def test_events_that_only_together_are_json_are_none() -> None:
    halves = [b'{"choices": [{"index": 0}', b'{"index": 1}]}', b"{}"]
    assert [frame is None for frame in read_chunks(halves)] == [True, True, False]
    assert read_chunks([b'{"id": "a"},{"id": "b"}']) == [None]
    assert read_stream(halves).unreadable_chunks == 2


def test_what_is_no_object_is_no_completion() -> None:
    for body in (b"", b"null", b"[]", b"{", b"1", b'{"a":' * 5000, b"[" * 100_000):
        assert read_completion(body) is None
    deep = json.dumps({"id": "a"})[:-1].encode() + b', "other": ' + b"[" * 500 + b"]" * 500 + b"}"
    completion = read_completion(deep)
    assert completion is not None
    assert completion.id == "a"
