"""Requests through the gateway: what reaches the engine, what comes back, and what happens when the engine fails."""

import asyncio
import gzip
import json

import msgspec
import pytest
import stand_in_engine
from engine_answers import completion
from gateway_site import Site
from hypothesis import given
from hypothesis import strategies as st
from spool import read_spans
from stand_in_engine import StandInEngine, write_adapter

from arttrace.wire import Api
from arttrace.wire.sampling_fields import NEUTRAL
from trainer.gateway.engines.upstream import Upstream
from trainer.gateway.engines.vllm.engine import EngineAddress
from trainer.gateway.errors import Refusal
from trainer.gateway.generation import route
from trainer.gateway.generation.request import read_request
from trainer.gateway.policies import Policies

Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


REFUSED = (
    "echo",
    "prompt_logprobs",
    "n",
    "best_of",
    "top_k",
    "tools",
)  # Hypothesis tries the words that stand in the code, too
Names = st.text().filter(lambda name: name not in REFUSED)


@given(st.dictionaries(Names, Json, max_size=5), st.booleans())
def test_everything_but_our_fields_is_forwarded_as_it_came(fields: dict[str, object], chat: bool) -> None:
    request = {**fields, "model": "policy"}
    read = read_request(json.dumps(request).encode(), "chat_completions" if chat else "completions")
    version = Policies("policy", "base").resolve(read.model)
    forwarded = json.loads(read.for_engine(version))
    assert version.name == "policy@0"
    assert forwarded.pop("model") == "base"
    assert forwarded.pop("return_token_ids") is True
    asked = request.get("logprobs")
    assert forwarded.pop("logprobs") == ((True if chat else 0) if asked is None or asked is False else asked)
    given = {name: v for name, v in request.items() if name not in ("model", "return_token_ids", "logprobs")}
    assert forwarded == {**given, **{name: v for name, v in NEUTRAL.items() if given.get(name) is None}}


@pytest.mark.parametrize("api", ["chat_completions", "completions", "responses"])
@pytest.mark.parametrize("policy", [False, True])
def test_an_engine_takes_no_sampling_from_its_models_own_settings(api: Api, policy: bool) -> None:
    """A vLLM that is not ours does: Qwen's generation_config.json has temperature, top_p, top_k and a penalty."""
    asked = {"model": "policy", "temperature": 0.5, "top_p": None, "min_p": 0.1}
    read = read_request(json.dumps(asked).encode(), api)
    forwarded = json.loads(read.for_engine(Policies("policy", "base").base, as_the_policy_samples=policy))
    own = {} if policy else {"temperature": 0.5, "min_p": 0.1}
    penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    expected = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, **penalties, **own}
    assert {name: forwarded.get(name) for name in expected} == expected


def test_no_tool_is_strict_for_the_engine() -> None:
    """vLLM lets a grammar choose among the tokens of a strict tool's call: they would be no choice of the policy."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {"strict": {"const": True}}}}
    tools = [{"type": "function", "function": {**function, "strict": True}}]
    read = read_request(json.dumps({"model": "policy", "tools": tools}).encode(), "chat_completions")
    forwarded = json.loads(read.for_engine(Policies("policy", "base").base))
    assert forwarded["tools"] == [{"type": "function", "function": function}]


def test_numbers_are_forwarded_byte_for_byte() -> None:
    body = b'{"model":"policy","seed":12345678901234567890123,"temperature":1.0000000000000000001,"logprobs":5}'
    patched = read_request(body, "completions").for_engine(Policies("policy", "base").base)
    assert b'"seed":12345678901234567890123' in patched
    assert b'"temperature":1.0000000000000000001' in patched
    assert b'"logprobs":5' in patched


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 3}', b"{}", b'{"model":"policy"} x', b"\xff{}"])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        read_request(body, "chat_completions")
    assert refused.value.status == 400


@pytest.mark.parametrize("field", ["prompt_logprobs", "echo"])
def test_what_would_kill_the_engine_is_refused(field: str) -> None:
    for value in ("0", "true", "1"):
        with pytest.raises(Refusal, match=field):
            read_request(f'{{"model":"policy","{field}":{value}}}'.encode(), "completions")
    for value in ("null", "false"):
        read_request(f'{{"model":"policy","{field}":{value}}}'.encode(), "completions")


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 129},
        {"n": 16000},
        {"n": 0},
        {"n": "2"},
        {"n": 1.5},
        {"best_of": 16000},
        {"top_k": 10**30},
        {"top_k": -7},
        {"top_k": 2**31},
        {"prompt": ["a"] * 1025},
        {"prompt": [[1, 2]] * 9, "n": 128},
    ],
    ids=str,
)
def test_what_would_keep_the_engine_busy_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Refusal, match=next(iter({"prompt": "answers"}.get(name, name) for name in fields))) as refused:
        read_request(json.dumps({"model": "policy", **fields}).encode(), "completions")
    assert refused.value.status == 400
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 128, "prompt": ["a"] * 8},
        {"n": None, "top_k": None},
        {"top_k": -1, "seed": 2**63 - 1},
        {"prompt": [5] * 4000},
        {"prompt": []},
        {"temperature": 0.12345678901234567890123},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_what_an_engine_can_do_is_forwarded(fields: dict[str, object]) -> None:
    body = json.dumps({"model": "policy", **fields}).encode()
    assert {name: json.loads(bytes(raw)) for name, raw in read_request(body, "completions").fields.items()} == {
        "model": "policy",
        **fields,
    }


@pytest.mark.parametrize("model", ["policy", "policy:latest", "lora:latest", "policy@0", "base"])
async def test_every_name_of_the_base_model_is_answered_and_stamped(site: Site, model: str) -> None:
    answer = await site.chat(model)
    assert answer.status_code == 200
    assert answer.headers["x-arttrace-policy-version"] == "policy@0"
    assert site.engine.generations[-1]["model"] == "base"


async def test_an_unknown_model_is_reported_with_the_known_names(site: Site) -> None:
    answer = await site.chat("gpt-4o")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "model_not_found"
    assert "policy:latest" in answer.json()["error"]["message"]
    names = [entry["id"] for entry in (await site.http.get("/v1/models")).json()["data"]]
    assert names == ["policy", "policy:latest", "lora:latest", "policy@0", "base"]


FORCED = {"temperature": 0.2, "top_p": 0.5, "tool_choice": "required", "response_format": {"type": "json_object"}}


async def test_with_the_policys_own_sampling_nothing_else_is_sampled_by(site: Site) -> None:
    site.gateway.policy_sampling = True
    answer = await site.http.post("/r/t/v1/chat/completions", json={"model": "policy", "messages": [], **FORCED})
    assert answer.headers["x-arttrace-sampling"] == "policy"
    [asked] = site.engine.generations
    assert {name: asked[name] for name in FORCED.keys() & asked.keys()} == {
        "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0
    }  # fmt: skip
    site.gateway.recorder.close()
    [call] = [span for span in read_spans(site.directory) if span.name.startswith("chat")]
    assert call.attributes["arttrace.sampling"] == "policy"


async def test_who_asks_for_more_learns_whose_log_probabilities_these_are(site: Site) -> None:
    assert "x-arttrace-sampling" not in (await site.chat(**FORCED)).headers
    assert site.engine.generations[0].items() >= FORCED.items()
    site.engine.processed = True
    [replica] = site.gateway.pool.replicas
    assert replica.upstream is not None
    await site.gateway.publisher.adopt(replica, replica.upstream)
    assert (await site.chat(**FORCED)).headers["x-arttrace-sampling"] == "processed"


async def test_an_answer_that_vllm_cut_behind_a_tool_call_is_recorded_as_cut(site: Site) -> None:
    called = {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]}
    names = ("cut", "whole")
    for name, end_token in zip(names, (3, 8), strict=True):  # the ids end with 8
        site.gateway.end_token = end_token
        sent = completion(called, "tool_calls", stop_reason=None)
        site.engine.scripted = [sent]
        answer = await site.http.post(f"/r/{name}/v1/chat/completions", json={"model": "policy", "messages": []})
        assert answer.headers["x-arttrace-end-token"] == str(end_token)
        assert answer.content == sent[2], "what the client gets is the engine's own"
    site.gateway.recorder.close()
    spans = [span for span in read_spans(site.directory) if span.name.startswith("chat")]
    found = {span.attributes["arttrace.trajectory.id"]: span for span in spans}
    ends = [found[name].attributes["gen_ai.response.finish_reasons"] for name in names]
    assert ends == [["length"], ["tool_calls"]]


async def test_an_answer_that_the_engine_compressed_is_passed_on_and_recorded_as_one(site: Site) -> None:
    """It was asked not to: a proxy before it may do so all the same."""
    status, kind, content = completion({"content": "said"})
    site.engine.scripted = [(status, f"{kind}\r\ncontent-encoding: gzip", gzip.compress(content))]
    answer = await site.http.post("/r/t/v1/chat/completions", json={"model": "policy", "messages": []})
    assert answer.content == content
    site.gateway.recorder.close()
    [call] = [span for span in read_spans(site.directory) if span.name.startswith("chat")]
    assert "said" in str(call.attributes["gen_ai.output.messages"])


async def test_a_client_that_reads_nothing_makes_the_engine_wait(site: Site) -> None:
    """However much it sends: what is between them is bounded. Once the client leaves, the engine stops."""
    site.engine.endless = True
    sent = 0
    chunk = stand_in_engine._chunk

    def counted(writer: asyncio.StreamWriter, data: bytes) -> None:
        nonlocal sent
        sent += len(data)
        chunk(writer, data)

    body = json.dumps({"model": "policy", "messages": [], "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stand_in_engine, "_chunk", counted)
        _, writer = await asyncio.open_connection(site.http.base_url.host, site.http.base_url.port, limit=1)
        writer.write(head + body)
        async with asyncio.timeout(120):
            before = -1
            while sent != before or not sent:
                before = sent
                await asyncio.sleep(0.5)
            assert sent < 64 << 20  # most of it is with the system: 8 MB were sent
            writer.transport.abort()
            await site.engine.hung_up.wait()


async def test_other_routes_are_refused_in_the_same_form(site: Site) -> None:
    answer = await site.http.post("/v1/embeddings", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, 404)


async def test_a_body_beyond_the_bound_is_refused_whether_its_length_is_reported_or_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "MAX_BODY_BYTES", 1000)

    async def untold():
        for _ in range(30):
            yield b"x" * 100

    for content in (b"x" * 1001, untold()):
        answer = await site.http.post("/v1/chat/completions", content=content)
        assert answer.status_code == 413
    assert site.engine.generations == []


@pytest.mark.parametrize("site", ["secret"], indirect=True)
async def test_with_a_key_everything_asks_for_it(site: Site) -> None:
    refused = [await site.chat(), await site.http.get("/v1/models"), await site.publish(1, site.directory)]
    assert [answer.status_code for answer in refused] == [401, 401, 401]
    site.http.headers["authorization"] = "Bearer secret"
    assert (await site.chat()).status_code == 200


async def test_a_stream_is_passed_on_as_it_comes(site: Site) -> None:
    request = {"model": "policy", "messages": [], "stream": True}
    async with asyncio.timeout(60), site.http.stream("POST", "/v1/chat/completions", json=request) as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b'data: {"n": 1}\n\n'  # while the engine still waits
        site.engine.release.set()
        assert [chunk async for chunk in chunks] == [b"data: [DONE]\n\n"]
    assert answer.headers["x-arttrace-policy-version"] == "policy@0"


async def test_a_request_that_may_have_been_executed_is_never_sent_again(site: Site) -> None:
    site.engine.drop = 1
    answer = await site.chat()
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["type"] == "engine_unavailable"
    assert len(site.engine.generations) == 1
    assert (await site.chat()).status_code == 200


@pytest.mark.parametrize("state", ["lost", "failed"])
async def test_without_an_engine_the_answer_is_503(site: Site, state: str) -> None:
    site.gateway.pool.replicas[0].state = state
    if state == "lost":
        site.gateway.gate.max_hold_s = 0.01  # one that has failed for good is not waited for
    assert (await site.chat()).status_code == 503
    assert (await site.http.get("/health")).status_code == 503
    adapter = write_adapter(site.directory / "a", b"w1")
    assert (await site.publish(1, adapter)).status_code == 503


async def test_requests_that_no_engine_has_seen_are_held_until_one_is_back(site: Site) -> None:
    """One that an engine took and did not answer is not among them: it may have been executed."""
    [replica] = site.gateway.pool.replicas
    await site.publish(1, write_adapter(site.directory / "1", b"w1"))
    site.engine.held = True
    taken = asyncio.create_task(site.chat())
    async with asyncio.timeout(60):
        while not site.engine.generations:
            await asyncio.sleep(0.005)
        first, upstream = site.engine, replica.upstream
        await first.__aexit__()  # it dies
        assert (await taken).status_code == 503
        held = [asyncio.create_task(site.chat()) for _ in range(3)]
        leaving = asyncio.create_task(site.chat())
        while site.gateway.gate.waiting < 4:
            await asyncio.sleep(0.005)
        assert replica.state == "lost"
        leaving.cancel()
        while site.gateway.gate.waiting > 3:
            await asyncio.sleep(0.005)
        async with StandInEngine() as another:
            replica.state = "restarting"
            replica.renew()
            fresh = Upstream(EngineAddress(another.url))
            await site.gateway.publisher.adopt(replica, fresh)
            answers = await asyncio.gather(*held)
            assert {(answer.status_code, answer.json()["model"]) for answer in answers} == {(200, "policy@1")}
            assert (len(another.generations), len(first.generations)) == (3, 1)
            await fresh.close()
    assert upstream is not None
    await upstream.close()


async def test_held_requests_are_refused_when_the_engine_has_failed_for_good(site: Site) -> None:
    [replica] = site.gateway.pool.replicas
    replica.state = "restarting"
    held = asyncio.create_task(site.chat())
    async with asyncio.timeout(60):
        while not site.gateway.gate.waiting:
            await asyncio.sleep(0.005)
        replica.state = "failed"
        answer = await held
    assert (answer.status_code, "it is failed" in answer.text) == (503, True)


async def test_an_engine_that_is_not_there_gives_503(site: Site) -> None:
    site.gateway.gate.max_hold_s = 0.01
    await site.engine.__aexit__()
    assert (await site.chat()).status_code == 503


async def test_a_stream_that_breaks_off_ends_with_an_error_event(site: Site) -> None:
    site.engine.break_stream = True
    answer = await site.chat(stream=True)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert json.loads(events[0]) == {"n": 1}
    assert json.loads(events[-1])["error"]["code"] == 503
    assert site.gateway.policies.current.requests == 0


async def test_a_client_that_leaves_frees_the_engine(site: Site) -> None:
    site.engine.held = True
    leaving = asyncio.create_task(site.chat())
    async with asyncio.timeout(60):
        while not site.engine.generations:
            await asyncio.sleep(0.005)
        leaving.cancel()
        await site.engine.hung_up.wait()
        while site.gateway.policies.current.requests:
            await asyncio.sleep(0.01)


async def test_answers_are_passed_through_unread(site: Site) -> None:
    assert msgspec.json.decode((await site.chat()).content) == {"model": "base", "choices": []}
