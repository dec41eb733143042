"""Answers of receivers that are none of OTLP's."""

from __future__ import annotations

import pytest

from arttrace.capture.export.shipping.otlp import encode_request
from arttrace.capture.export.shipping.otlp_client import read_answer
from arttrace.records.span import SpanRow


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-protobuf", encode_request([SpanRow("1" * 32, "2" * 16, "it", 1, 2, resource={"a": "b"})])),
        ("application/json", b"[" * 100_000),
    ],
)
def test_an_answer_that_says_something_else_is_what_its_status_says(kind: str, body: bytes) -> None:
    """As of a server that gives back what it is sent."""
    answer = read_answer(200, {"content-type": kind}, body)
    assert (answer.taken, answer.rejected) == (True, 0)
    assert not read_answer(400, {"content-type": kind}, body).taken
