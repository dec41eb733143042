"""A tool's definition is read alike whether capture, another SDK or a file holds it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arttrace.formats.sdks.openai_messages import tools
from arttrace.trajectories.decoding.messages import MessageReader

SCHEMA = {"type": "object", "properties": {}}
NESTED = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ({"type": "function", "name": "f", "description": None, "parameters": SCHEMA, "strict": None}, NESTED),
        ({"name": "f", "parameters": SCHEMA}, NESTED),
        ({"type": "function", "name": "f", "parameters": json.dumps(SCHEMA)}, NESTED),
        ({"type": "function", "name": "f", "parameters": None}, {"type": "function", "function": {"name": "f"}}),
        (NESTED, NESTED),
        ({"type": "web_search", "name": "web_search"}, {"type": "web_search", "name": "web_search"}),
        ({"type": "custom", "custom": {"name": "run"}}, {"type": "custom", "custom": {"name": "run"}}),
    ],
)
def test_it_has_the_form_of_chat_completions_and_no_null(tool: dict[str, Any], expected: dict[str, Any]) -> None:
    assert json.loads(tools([tool])) == [expected]
    assert MessageReader().tools(json.dumps([tool])) == (expected,)
    assert MessageReader().tools(tools([tool])) == (expected,)
