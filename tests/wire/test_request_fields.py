"""Every field of a request is given back by the attributes of its span, in its value, or is named where too large."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arttrace.records import semconv
from arttrace.wire import Exchange, decode
from arttrace.wire.span_attributes import MAX_FIELDS_BYTES

SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
FIELDS: dict[str, Any] = {
    "temperature": 0.5,
    "max_completion_tokens": 7,
    "min_p": 0.05,
    "logit_bias": {"5": 1},
    "response_format": SCHEMA,
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "stop": "END",
    "stream": False,
    "n": 1,
    "user": None,
    "chat_template_kwargs": {"thinking": True},
}


def attributes(fields: dict[str, Any], **options: Any) -> dict[str, Any]:
    request = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    exchange = Exchange(
        request=json.dumps(request).encode(), status=200, headers={}, body=b"{}", ending="complete",
        body_cut=False, path="/v1/chat/completions",
    )  # fmt: skip
    return decode(exchange, **options).attributes


def test_what_no_other_attribute_gives_back_keeps_its_value() -> None:
    found = attributes(FIELDS)
    assert found[semconv.REQUEST_TEMPERATURE] == 0.5
    assert json.loads(found[semconv.REQUEST_FIELDS]) == {
        name: value for name, value in FIELDS.items() if name != "temperature"
    }
    assert semconv.REQUEST_FIELDS not in attributes({"temperature": 0.5, "stream": True, "n": 2, "stop": ["END"]})


def test_a_field_too_large_is_named_and_costs_the_call_nothing() -> None:
    found = attributes({"extra": "x" * MAX_FIELDS_BYTES, "min_p": 0.1})
    assert json.loads(found[semconv.REQUEST_FIELDS]) == {"min_p": 0.1}
    assert found[semconv.REQUEST_FIELDS_LEFT_OUT] == ["extra"]
    assert semconv.TRUNCATED not in found


@pytest.mark.parametrize("content", [True, False])
def test_values_are_content(content: bool) -> None:
    assert (semconv.REQUEST_FIELDS in attributes({"min_p": 0.1}, content=content)) is content


def test_tools_are_kept_without_what_their_servers_are_let_in_by() -> None:
    parameters = {"type": "object", "properties": {"api_key": {"type": "string"}, "authorization": {}}}
    function = {"type": "function", "name": "log_in", "headers": "h", "parameters": parameters}
    mcp = {"type": "mcp", "server_label": "crm", "server_url": "https://crm?key=s3cret-in-url"}
    login = {"authorization": "s3cret", "headers": {"X-Tenant": "s3cret too", "accept": "a"}}
    found = json.loads(attributes({"tools": [function, mcp | login, "odd"]})[semconv.TOOL_DEFINITIONS])
    hidden = {"authorization": "[secret]", "headers": {"X-Tenant": "[secret]", "accept": "[secret]"}}
    assert found == [function, mcp | hidden | {"server_url": "https://crm?key=[secret]"}, "odd"]


def test_a_prompt_that_the_server_keeps_is_a_field_and_one_that_is_sent_is_content() -> None:
    named = {"id": "pmpt_1", "version": "2", "variables": {"town": "Rome"}}
    for path, prompt, kept in (("/v1/responses", named, {"prompt": named}), ("/v1/completions", "hi", None)):
        request = json.dumps({"model": "m", "prompt": prompt}).encode()
        fields = decode(Exchange(request, path=path)).attributes.get(semconv.REQUEST_FIELDS)
        assert (None if fields is None else json.loads(fields)) == kept
