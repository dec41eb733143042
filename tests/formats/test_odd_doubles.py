"""What a record says of its doubles."""

from __future__ import annotations

import json

from arttrace.formats.otlp.encode_json import encode_json
from arttrace.records.span import SpanRest, SpanRow


def test_a_number_that_no_double_holds_is_none() -> None:
    """One such record ended an export of all."""
    rest = SpanRest(typed={"double": [("a",)]})
    span = SpanRow("a" * 32, "b" * 16, "n", 1, 2, attributes={"a": 10**400}, rest=rest)
    assert json.loads(encode_json([span]))["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] == [
        {"key": "a", "value": {"stringValue": str(10**400)}}
    ]
