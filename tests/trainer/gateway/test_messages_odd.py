"""The Messages API where an engine, a client or the network does what is seldom done."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import pytest
from engine_answers import ASKED, chunks, completion
from gateway_site import Site

from arttrace.store import open_store
from arttrace.system.paths import DataDir
from trainer.gateway.errors import Refusal
from trainer.gateway.messages.answer import MessageStream, error_body, message_of
from trainer.gateway.messages.request import chat_request, tokenize_request

CALL = {"id": "c0", "index": 0, "type": "function", "function": {"name": "weather", "arguments": "{}"}}
COUNTED = {name: ASKED[name] for name in ("model", "messages")}


@pytest.fixture
async def client(site: Site) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=str(site.http.base_url), api_key="any", max_retries=0) as client:
        yield client


def events_of(body: bytes) -> list[dict[str, Any]]:
    stream = MessageStream()
    said = stream.feed(body) + stream.finish()
    return [json.loads(line[6:]) for line in said.splitlines() if line.startswith(b"data: ")]


@pytest.mark.parametrize("stop", [None, "END"])
def test_a_call_is_why_an_answer_ended_whatever_the_engine_calls_it(stop: str | None) -> None:
    """An engine says `stop` where a tool was named, or where its text had a stop sequence as well."""
    whole = message_of(completion({"tool_calls": [CALL]}, "stop", stop_reason=stop)[2])
    assert whole is not None
    events = events_of(chunks({"tool_calls": [CALL]}, finish="stop", stop_reason=stop)[2])
    for said in (json.loads(whole), events[-2]["delta"]):
        assert (said["stop_reason"], said["stop_sequence"]) == ("tool_use", None)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (418, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_each_status_has_its_type_of_error(status: int, kind: str) -> None:
    said = json.loads(error_body(status, b'{"error": {"message": "why", "hint": "what to do"}}'))
    assert said == {"type": "error", "error": {"type": kind, "message": "why what to do"}, "request_id": None}
    assert json.loads(error_body(status, b"plain text"))["error"]["message"] == "plain text"
    assert json.loads(error_body(status, b""))["error"]["message"] == "no reason was given"


def test_tokens_are_counted_where_a_stream_tells_no_usage() -> None:
    body = chunks({"content": "a"}, {"content": "b"})[2]
    without = b"".join(part + b"\n\n" for part in body.split(b"\n\n") if part and b'"usage"' not in part)
    *_, end, _stop = events_of(without)
    assert (end["usage"]["input_tokens"], end["usage"]["output_tokens"]) == (3, 2)


def test_the_last_usage_counts_also_where_later_chunks_tell_none() -> None:
    *_, end, _stop = events_of(
        chunks({"content": "a"})[2].replace(b"data: [DONE]", b'data: {"choices": []}\n\ndata: [DONE]')
    )
    assert (end["usage"]["input_tokens"], end["usage"]["cache_read_input_tokens"]) == (3, 6)


def test_a_text_is_the_engines_to_the_last_space() -> None:
    text = "\n  a \n"
    whole = message_of(completion({"content": text})[2])
    assert whole is not None
    assert json.loads(whole)["content"] == [{"type": "text", "text": text}]


def test_probabilities_that_are_not_one_for_each_token_are_none() -> None:
    body = chunks({"content": "a"}, {"content": "b"})[2].replace(b'"logprob": -0.5', b'"logprob": -0.25', 1)
    assert events_of(body)[-2]["arttrace"]["logprobs"] == [-0.25, -0.5]
    fewer = body.replace(b'"logprobs": {"content": [{"token": "x", "logprob": -0.5}]}', b'"logprobs": null')
    assert events_of(fewer)[-2]["arttrace"] == {"prompt_token_ids": [1, 2, 3], "token_ids": [7, 8], "logprobs": None}


def test_nothing_follows_the_end_of_a_message() -> None:
    body = chunks({"content": "a"})[2]
    assert events_of(body + body) == events_of(body)
    failed = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
    assert [event["type"] for event in events_of(failed + body)] == ["error"]


def test_an_answer_of_nothing_is_a_whole_message() -> None:
    kinds = [event["type"] for event in events_of(b"data: [DONE]\n\n")]
    assert kinds == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize("made_by", [chat_request, tokenize_request])
def test_an_answer_that_the_client_began_is_continued(made_by: Callable[[bytes], bytes]) -> None:
    def made(*turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return json.loads(made_by(json.dumps(ASKED | {"messages": [*ASKED["messages"], *turns], **fields}).encode()))

    begun = {"role": "assistant", "content": [{"type": "text", "text": "The town is"}]}
    request = made(begun)
    assert request["messages"][-1] == {"role": "assistant", "content": "The town is"}
    assert (request["continue_final_message"], request["add_generation_prompt"]) == (True, False)
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]}
    for turns in ((), (called,), (begun, {"role": "user", "content": "Which?"})):
        assert not made(*turns).get("continue_final_message")
    assert not made(begun, continue_final_message=False)["continue_final_message"]


def test_arguments_of_the_chat_template_go_before_what_thinking_says() -> None:
    asked = ASKED | {"thinking": {"type": "enabled"}, "chat_template_kwargs": {"enable_thinking": False, "depth": 2}}
    made = json.loads(chat_request(json.dumps(asked).encode()))
    assert made["chat_template_kwargs"] == {"enable_thinking": False, "depth": 2}


def test_an_image_is_shown_from_its_address_and_refused_from_a_file_of_anthropics() -> None:
    def shown(source: dict[str, Any]) -> Any:
        content = [{"type": "image", "source": source}]
        body = json.dumps(ASKED | {"messages": [{"role": "user", "content": content}]}).encode()
        return json.loads(chat_request(body))["messages"][0]["content"]

    url = "https://example.com/a.png"
    assert shown({"type": "url", "url": url}) == [{"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(Refusal) as refusal:
        shown({"type": "file", "file_id": "f"})
    assert refusal.value.message == "messages.0.content.0: the source of this image is not served here"


@pytest.mark.parametrize("answer", [completion({"content": "a"}), chunks({"content": "a"})], ids=["whole", "stream"])
async def test_an_answer_that_was_compressed_is_a_clear_error(
    site: Site, client: anthropic.AsyncAnthropic, answer: tuple[int, str, bytes]
) -> None:
    """It was asked not to be: a proxy before the engine may do so all the same."""
    status, kind, content = answer
    site.engine.scripted.append((status, f"{kind}\r\ncontent-encoding: gzip", gzip.compress(content)))
    with pytest.raises(anthropic.InternalServerError, match="is not a chat completion"):
        await client.messages.create(**ASKED)


async def test_counting_fails_in_the_form_that_the_client_knows(site: Site, client: anthropic.AsyncAnthropic) -> None:
    answer = await site.http.post("/v1/messages/count_tokens", json={"messages": ASKED["messages"]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "model: field required")
    site.engine.scripted.append((200, "application/json", b'{"tokens": []}'))
    with pytest.raises(anthropic.InternalServerError, match="tokenisation cannot be read"):
        await client.messages.count_tokens(**COUNTED)
    site.engine.drop = 9
    with pytest.raises(anthropic.InternalServerError) as down:
        await client.messages.count_tokens(**COUNTED)
    assert down.value.body["type"] == "error"
    site.engine.drop = 0
    site.gateway.gate.max_hold_s = 0.01
    await site.engine.__aexit__()
    with pytest.raises(anthropic.InternalServerError, match="does not answer"):
        await client.messages.count_tokens(**COUNTED)
    site.gateway.gate.max_requests = 0
    with pytest.raises(anthropic.InternalServerError, match="which is the bound") as full:
        await client.messages.count_tokens(**COUNTED)
    assert full.value.body["error"]["type"] == "overloaded_error"
    assert full.value.response.headers["retry-after"] == "2"


@pytest.mark.parametrize("why", ["paused", "asleep", "restarting"])
async def test_who_counts_tokens_waits_as_one_who_asks_for_an_answer(
    site: Site, client: anthropic.AsyncAnthropic, why: str
) -> None:
    [replica] = site.gateway.pool.replicas
    if why != "restarting":  # a step under which the engine sleeps closes the gate first
        site.gateway.gate.pause(reason=why)
    if why != "paused":
        replica.state = why
    site.engine.scripted.append((200, "application/json", b'{"count": 12}'))
    waiting, leaving = (asyncio.create_task(client.messages.count_tokens(**COUNTED)) for _ in range(2))
    async with asyncio.timeout(60):
        while site.gateway.gate.waiting < 2 and not waiting.done():
            await asyncio.sleep(0.005)
        assert not waiting.done()
        leaving.cancel()
        while site.gateway.gate.inside == 2:
            await asyncio.sleep(0.005)
        replica.state = "ready"
        site.gateway.gate.resume(reason=why)
        assert (await waiting).input_tokens == 12


async def test_a_request_that_is_refused_here_is_in_its_run(site: Site) -> None:
    refused = await site.http.post("/r/t/v1/messages", json={**ASKED, "container": "c"})
    assert (refused.status_code, refused.json()["type"]) == (400, "error")
    assert (await site.http.post("/r/t/end", json={"reward": 0.0})).json()["calls"] == 1
    site.gateway.recorder.close()
    with open_store(DataDir(site.directory), create=True) as store:
        [run] = store.trajectories()
    [call] = [placed.call for placed in run.calls]
    assert (run.incomplete, call.error) == ("", "400: container: not served here")
    assert [message.text for message in call.messages] == ["hi"]
