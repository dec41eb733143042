"""The rules of content, masks and secrets hold on every way in: the same calls, recorded inside the agent's process and
by the gateway, leave the same span."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from gateway_site import Site
from spool import finished_spans, read_spool

import arttrace
from arttrace.capture.context.flow import EMPTY_FLOW, set_flow
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.system.errors import ServingError
from arttrace.wire.content import ContentMode, ContentRules, Mask, secrets
from trainer.gateway.recording.recorder import GatewayRecorder, recorder_of

PRIVATE = "the pin is 4711"
KEY = "sk-client-0123456789abcdef"
ENGINE_KEY = "engine-key"
PATH = "/v1/chat/completions"


def mask_pin(value: Any, *, kind: str) -> Any:
    return json.loads(json.dumps(value).replace(PRIVATE, "[pin]"))


def failing_mask(value: Any, *, kind: str) -> Any:
    raise KeyError(value)


class Rule(NamedTuple):
    mode: ContentMode
    mask: Mask | None = None


RULES = {
    "off": Rule("off"),
    "redacted": Rule("redacted"),
    "full": Rule("full"),
    "masked": Rule("full", mask_pin),
    "failing mask": Rule("full", failing_mask),
}


class Case(NamedTuple):
    """One exchange: what is sent, and the status, content type and body that come back; None: the engine hangs up."""

    request: dict[str, Any]
    answer: tuple[int, str, bytes] | None
    path: str = PATH


def events(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def json_answer(status: int, document: Any) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(document).encode()


CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": json.dumps({"q": PRIVATE})}}
QUESTION = {"role": "user", "content": f"{PRIVATE}, my key is {KEY}"}
REQUEST: dict[str, Any] = {
    "model": "policy:latest",
    "messages": [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": PRIVATE},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "description": PRIVATE}}],
}
TOKENS = {
    "token_ids": [7, 8],
    "logprobs": {"content": [{"token": PRIVATE, "logprob": -0.5}, {"token": "b", "logprob": -0.25}]},
}
ANSWER = {
    "id": "c1",
    "model": "policy@1",
    "prompt_token_ids": [1, 2, 3],
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": PRIVATE, "tool_calls": [CALL], "annotations": [PRIVATE]},
            "finish_reason": "tool_calls",
            "secret_thought": PRIVATE,
            **TOKENS,
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    "debug": {"prompt": PRIVATE},
}
CHUNKS = (
    {"id": "c1", "prompt_token_ids": [1, 2, 3], "choices": []},
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": PRIVATE}, **TOKENS}], "debug": PRIVATE},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **CALL}]}, "finish_reason": "stop"}]},
)
QUOTING = f"{PRIVATE} is not allowed for {KEY}, nor for Bearer {ENGINE_KEY}"
CASES = {
    "success": Case(REQUEST, json_answer(200, ANSWER)),
    "stream": Case({**REQUEST, "stream": True}, (200, "text/event-stream", events(*CHUNKS))),
    "stream that ends in an error": Case(
        {**REQUEST, "stream": True},
        (200, "text/event-stream", events(*CHUNKS[:2], {"error": {"message": QUOTING}})),
    ),
    "refused, quoting prompt and keys": Case(REQUEST, json_answer(400, {"error": {"message": QUOTING}})),
    "refused in plain text": Case(REQUEST, (500, "text/plain", QUOTING.encode())),
    "refused in a form of its own": Case(REQUEST, json_answer(422, {"detail": [{"input": QUOTING}]})),
    "no answer": Case(REQUEST, None),
    "no JSON": Case(REQUEST, (200, "application/json", QUOTING.encode())),
    "unknown fields": Case(
        {
            **REQUEST,
            "messages": [{**QUESTION, "note": PRIVATE}, {"role": "user", "content": [{"type": "odd", "odd": PRIVATE}]}],
            "guess": PRIVATE,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"const": PRIVATE}}},
        },
        json_answer(200, ANSWER),
    ),
    "half a surrogate pair": Case(
        REQUEST, (200, "application/json", json.dumps({**ANSWER, "x": "SPLIT"}).replace("SPLIT", "\\ud800").encode())
    ),
    "legacy completion": Case(
        {"model": "policy:latest", "prompt": f"{PRIVATE} {KEY}", "suffix": PRIVATE},
        json_answer(200, {"choices": [{"index": 0, "text": PRIVATE, "finish_reason": "stop"}]}),
        "/v1/completions",
    ),
    "response": Case(
        {"model": "policy:latest", "input": [QUESTION], "instructions": f"{PRIVATE} {KEY}"},
        json_answer(200, {"id": "r", "status": "completed", "output": [{"type": "reasoning", "summary": [PRIVATE]}]}),
        "/v1/responses",
    ),
    "response that failed": Case(
        {"model": "policy:latest", "input": PRIVATE},
        json_answer(200, {"id": "r", "status": "failed", "error": {"code": "x", "message": QUOTING}, "output": []}),
        "/v1/responses",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARTTRACE_RAISE", raising=False)
    secrets._known.clear()
    set_flow(EMPTY_FLOW)


async def send(http: httpx.AsyncClient, url: str, case: Case, site: Site) -> None:
    if case.answer is None:
        site.engine.drop = 1
    else:
        site.engine.scripted = [case.answer]
    try:
        await http.post(url, json=case.request, headers={"authorization": f"Bearer {KEY}"})
    except httpx.TransportError:
        assert case.answer is None


def calls(directory: Path) -> list[SpanRow]:
    """The calls in a spool, by case."""
    return sorted((span for span in finished_spans(directory) if span.kind == 3), key=lambda span: span.start_ns)


async def at_the_gateway(site: Site, rule: Rule) -> list[SpanRow]:
    site.gateway.recorder = GatewayRecorder(site.directory / "spool", rules=ContentRules(rule.mode, rule.mask))
    for case in CASES.values():
        await send(site.http, "/r/t" + case.path, case, site)
    async with asyncio.timeout(60):
        while True:
            site.gateway.recorder.close()
            if len(found := calls(site.directory)) == len(CASES):
                return found
            await asyncio.sleep(0.005)


async def in_the_process(site: Site, rule: Rule) -> list[SpanRow]:
    secrets._known.clear()
    secrets.remember(ENGINE_KEY)  # which a process that asks the engine without a gateway has sent
    directory = site.directory / "in-process"
    arttrace.init(dir=directory, capture_content=rule.mode, mask=rule.mask, capture_http=True)
    with arttrace.trajectory(name="agent"):
        async with httpx.AsyncClient(trust_env=False) as http:
            for case in CASES.values():
                await send(http, site.engine.url + case.path, case, site)
    arttrace.flush()
    return calls(directory)


def as_written(span: SpanRow) -> str:
    return json.dumps([span.attributes, span.status_message, span.name, [event.attributes for event in span.events]])


_OF_ONE_WAY = (
    semconv.TRAJECTORY_ID, semconv.EXECUTION_ID, semconv.SERVER_ADDRESS, semconv.SERVER_PORT,
    semconv.POLICY_VERSION, semconv.RESPONSE_TIME_TO_FIRST_CHUNK,
)  # fmt: skip


def on_every_way(span: SpanRow) -> Any:
    kept = {name: value for name, value in span.attributes.items() if name not in _OF_ONE_WAY}
    return span.name, span.status_code, span.status_message, kept


@pytest.mark.parametrize("name", RULES)
async def test_a_rule_holds_on_every_way_in(name: str, site: Site) -> None:
    rule = RULES[name]
    gateway, process = await at_the_gateway(site, rule), await in_the_process(site, rule)
    assert len(gateway) == len(process) == len(CASES)
    for case, one, other in zip(CASES, gateway, process, strict=True):
        for span in (one, other):
            written = as_written(span)
            for key in (KEY, ENGINE_KEY):
                assert key not in written, case
            assert (PRIVATE in written) == (name == "full"), (case, written)
            if name != "full":
                assert not [name for name in span.attributes if name.startswith(("arttrace.token", "arttrace.logp"))]
            if name == "off":
                assert span.status_message == "", case
                assert not {semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.TOOL_DEFINITIONS} & set(
                    span.attributes
                )
        if case != "no answer":  # the gateway gives one of its own
            assert on_every_way(one) == on_every_way(other), case
    found = dict(zip(CASES, gateway, strict=True))
    if name == "redacted":
        assert '"content":"[redacted, 15 characters]"' in found["success"].attributes[semconv.OUTPUT_MESSAGES]
    if name in ("full", "masked"):
        quoted = PRIVATE if name == "full" else "[pin]"
        refused = f"{quoted} is not allowed for [secret], nor for Bearer [secret]"
        assert found["refused, quoting prompt and keys"].status_message == refused


@pytest.mark.parametrize("name", RULES)
async def test_what_is_reported_at_the_end_of_a_trajectory_goes_through_the_rules(name: str, site: Site) -> None:
    rule = RULES[name]
    site.gateway.recorder = GatewayRecorder(site.directory / "spool", rules=ContentRules(rule.mode, rule.mask))
    authorization = {"authorization": f"Bearer {KEY}"}
    await site.http.post("/r/t" + PATH, json={"model": "policy:latest", "messages": []}, headers=authorization)
    async with asyncio.timeout(60):
        while KEY not in secrets._known:  # noted when the call is decoded
            await asyncio.sleep(0.005)
    await site.http.post("/r/t/reward", json={"value": 1.0, "explanation": f"{PRIVATE} {KEY}"})
    await site.http.post("/r/t/end", json={"result": f"{PRIVATE} {KEY}", "metadata": {"note": f"{PRIVATE} {KEY}"}})
    site.gateway.recorder.close()
    [reward] = [record for record in read_spool(site.directory) if isinstance(record, Reward)]
    root = finished_spans(site.directory)[-1]
    assert KEY not in as_written(root) + reward.explanation
    result, note = root.attributes.get(semconv.ENTRY_RESULT), root.attributes.get(semconv.METADATA)
    shown = {"masked": "[pin] [secret]", "failing mask": None}.get(name, f"{PRIVATE} [secret]")
    assert reward.explanation == (shown or "")
    assert (None if note is None else json.loads(note)) == (None if shown is None else {"note": shown})
    if name in ("off", "redacted"):  # what is said of a run, unlike what it returned, is kept
        assert PRIVATE not in (result or "")
    else:
        assert (None if result is None else json.loads(result)) == shown


def test_the_gateway_takes_its_mode_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for word, mode in (("", "full"), (" Redacted", "redacted"), ("off", "off")):
        monkeypatch.setenv("ARTTRACE_CAPTURE_CONTENT", word)
        assert recorder_of(tmp_path, print)._rules.mode == mode
    monkeypatch.setenv("ARTTRACE_CAPTURE_CONTENT", "some")
    with pytest.raises(ServingError, match="'some'"):
        recorder_of(tmp_path, print)
