"""Records as somebody hands them over: what OTLP cannot hold is refused, and what a record claims about its values
never keeps them from going out again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.formats.otlp.encode_json import encode_json
from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.formats.otlp.validate import MAX_DEPTH, checked
from arttrace.records.record import encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import OriginRest, SpanEvent, SpanLink, SpanRest, SpanRow
from arttrace.records.values.json_types import exact, plain
from arttrace.store import Store
from arttrace.store.access.client import JSON_LINES
from arttrace.store.server.api import create_api
from arttrace.system.paths import DataDir

GOOD = SpanRow(
    "1" * 32,
    "2" * 16,
    "good",
    1,
    0,
    kind=3,
    attributes={"a": [1, {"b": "NaN"}], "raw": "AAE="},
    events=[SpanEvent("e", 2**64 - 1)],
    links=[SpanLink("3" * 32, "4" * 16)],
    rest=SpanRest(typed={"double": [("a", 1, "b")], "bytes": [("raw",)]}),
)


def nested(depth: int) -> Any:
    value: Any = "x"
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


BAD = {
    "trace id": {"trace_id": "zz"},
    "upper case": {"trace_id": "A" * 32},
    "zero": {"span_id": "0" * 16},
    "parent": {"parent_span_id": "5"},
    "start": {"start_ns": -1},
    "no start": {"start_ns": 0},
    "late end": {"end_ns": 2**63},
    "kind": {"kind": 2**31},
    "status": {"status_code": -(2**31) - 1},
    "flags": {"flags": -1},
    "time of an event": {"events": [SpanEvent("e", 2**64)]},
    "dropped": {"rest": SpanRest(dropped_links=2**32)},
    "dropped of the scope": {"origin": OriginRest(scope_dropped_attributes=-1)},
    "link": {"links": [SpanLink("3", "4")]},
    "depth": {"attributes": {"a": nested(MAX_DEPTH + 2)}},
    "depth in an event": {"events": [SpanEvent("e", 1, {"a": nested(900)})]},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_span_that_otlp_cannot_hold_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^span 'good': "):
        checked(msgspec.structs.replace(GOOD, **change))


@pytest.mark.parametrize("change", [{}, {"attributes": {"a": nested(30)}, "rest": None}], ids=["usual", "deep"])
def test_a_span_that_otlp_can_hold_is_let_through_and_goes_out_again(change: dict[str, Any]) -> None:
    span = msgspec.structs.replace(GOOD, **change)
    assert checked(span) is span
    assert protobuf_spans(encode_protobuf([span])) == [span]
    assert checked(deepest := msgspec.structs.replace(GOOD, attributes={"a": nested(MAX_DEPTH)})) is deepest
    assert checked(reward := Reward(id="r", trajectory_id="t", value=1.0)) is reward


# --- values that JSON cannot hold ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed",
    [
        {"bytes": [("no",)]},
        {"bytes": [("a", 7)]},
        {"bytes": [("a", "b")]},
        {"bytes": [("a", 0)]},
        {"bytes": [("a", 1, "b", "c")]},
        {"bytes": [("a", 1, "b", 0)]},
        {"bytes": [("a",)]},
        {"bytes": [()]},
        {"double": [("raw",)]},
        {"double": [("a",)]},
        {"of the future": [("raw",)]},
    ],
)
def test_a_place_where_nothing_stands_is_passed_over(typed: dict[str, list[tuple[str | int, ...]]]) -> None:
    attributes = {"a": [1, {"b": "é"}], "raw": "not base64"}
    assert exact(attributes, typed) == attributes
    with_good = {**typed, "bytes": [*typed.get("bytes", []), ("good",)]}
    assert exact({**attributes, "good": "AAE="}, with_good)["good"] == b"\x00\x01"
    span = msgspec.structs.replace(GOOD, attributes=attributes, rest=SpanRest(typed=typed))
    assert protobuf_spans(encode_protobuf([span]))[0].attributes == attributes
    assert encode_json([span])


def test_each_container_is_copied_once() -> None:
    copies = 0

    class Counted(list[Any]):
        def copy(self) -> list[Any]:
            nonlocal copies
            copies += 1
            return list(self)

    count = 200_000
    inner = Counted(["NaN"] * count)
    attributes = {"a": [inner, {"b": inner}]}
    places: list[tuple[str | int, ...]] = [("a", 0, at) for at in range(count)]
    found = exact(attributes, {"double": [*places, ("a", 1, "b", 5)], "bytes": [("a", 0, 3)]})
    assert copies == 2
    assert all(math.isnan(value) for value in found["a"][0] if isinstance(value, float))
    assert sum(isinstance(value, float) for value in found["a"][0]) == count
    assert [at for at, value in enumerate(found["a"][1]["b"]) if value != "NaN"] == [5]
    assert inner == ["NaN"] * count, "what was given stays as it was"


def test_what_plain_took_apart_is_put_together_again() -> None:
    attributes = {"a": [b"\x00", {"b": math.inf, "c": [1, -math.inf]}], "d": b"", "e": "NaN"}
    assert exact(*plain(attributes)) == attributes
    assert exact(usual := {"a": [1]}, {}) is usual


# --- posted ------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(DataDir(tmp_path), create=True) as store:
        yield store


def test_posted_records_are_checked(store: Store) -> None:
    client = TestClient(create_api(store.data, lambda: store, asyncio.Event()), raise_server_exceptions=False)

    def post(body: bytes) -> tuple[int, str]:
        answer = client.post("/api/records", content=body, headers={"content-type": JSON_LINES})
        return answer.status_code, answer.text

    good = encode_record(GOOD)
    for change in BAD.values():
        status, shown = post(good + b"\n" + encode_record(msgspec.structs.replace(GOOD, **change)))
        assert (status, "a line is not a record" in shown) == (400, True), change
    assert post(b'{"type":"span","attributes":' + b"[" * 5000)[0] == 400
    assert post(good[:-10])[0] == 400
    assert store.spans("1" * 32) == []
    assert post(good)[0] == 200
    assert store.spans("1" * 32) == [GOOD]
    deep = b'{"query":' + b"[" * 5000
    assert client.post("/api/sql", content=deep, headers={"content-type": "application/json"}).status_code == 400
