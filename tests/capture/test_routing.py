"""A routed call differs from the bare one in address, model, credentials and the wish for tokens: in no other byte."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
from scripted_server import Asked, Reply, ScriptedServer, Sent, serve_script
from spool import read_spans

import arttrace
from arttrace.capture.base.routes import parse_routes
from arttrace.capture.calls import routing
from arttrace.capture.calls.routing import apply, rewrite
from arttrace.capture.context.flow import current_flow
from arttrace.commands import run
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.system.errors import ArttraceError
from arttrace.wire.request_body import read_model, with_fields, with_model

Spans = Callable[[], list[SpanRow]]
KEY, POLICY_KEY = "sk-secret-0123456789", "policy-key-0123456789"
MESSAGES: Any = [{"role": "user", "content": 'the "model": "gpt-4o", \u00e9 { ] \\'}]


def answer(asked: Asked) -> Reply:
    return Reply("fine")


@pytest.fixture
def vendor() -> Iterator[ScriptedServer]:
    with serve_script(answer) as server:
        yield server


@pytest.fixture
def policy() -> Iterator[ScriptedServer]:
    with serve_script(answer) as server:
        server.headers[semconv.POLICY_VERSION_HEADER] = "policy@4"
        yield server


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARTTRACE_ROUTE", "ARTTRACE_TRAINABLE", "ARTTRACE_POLICY_URL", "ARTTRACE_POLICY_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def client(server: ScriptedServer, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key=KEY, organization="org-1", project="proj-1", **more)


def azure(server: ScriptedServer) -> openai.AzureOpenAI:
    return openai.AzureOpenAI(azure_endpoint=server.url.removesuffix("/v1"), api_key=KEY, api_version="2026-01-01")


def to_policy(policy: ScriptedServer, **more: Any) -> Any:
    return arttrace.route("gpt-4o", to="policy:latest", base_url=policy.url, api_key=POLICY_KEY, **more)


def chat(c: Any, **more: Any) -> Any:
    return c.chat.completions.create(model="gpt-4o", messages=MESSAGES, temperature=0.5, **more)


GATEWAY = {"Helicone-Auth": "Bearer sk-helicone-secret", "x-portkey-api-key": "secret", "x-cache": "on"}
PLAIN_HEADERS = {"openai-organization", "openai-project"}
TOKENS = b',"logprobs":true,"return_token_ids":true}'


def expected(bare: Sent, policy: ScriptedServer, *, tokens: bool = True) -> tuple[list[tuple[str, str]], bytes]:
    """What the policy should get for what the vendor got: the headers in order, and the body."""
    body = bare.body.replace(b'"model":"gpt-4o"', b'"model":"policy:latest"', 1)
    if tokens:
        body = body.removesuffix(b"}") + TOKENS
    changed = {
        "host": policy.url.removeprefix("http://").removesuffix("/v1"),
        "content-length": str(len(body)),
        "authorization": f"Bearer {POLICY_KEY}",
    }
    # openai 2.0's Azure client sends its key twice, as `authorization` and as `api-key`: the policy gets one key.
    names = dict.fromkeys("authorization" if name == "api-key" else name for name in bare.headers)
    headers = [(name, changed.get(name, bare.headers.get(name, ""))) for name in names if name not in PLAIN_HEADERS]
    return headers, body


def same_headers(sent: Sent, headers: list[tuple[str, str]]) -> bool:
    unequal = {"idempotency-key", "x-stainless-idempotency-key"}
    return [h for h in sent.headers.items() if h[0] not in unequal] == [h for h in headers if h[0] not in unequal]


CALLS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda c: chat(c).choices[0].message.content,
    "stream": lambda c: [x.choices[0].delta.content for x in chat(c, stream=True, extra_query={"a": "b c"})],
}


@pytest.mark.parametrize("make", [client, azure], ids=["openai", "azure"])
@pytest.mark.parametrize("name", ["plain", "stream"])
def test_a_routed_call_differs_in_nothing_else(
    name: str, make: Any, vendor: ScriptedServer, policy: ScriptedServer, spans: Spans
) -> None:
    with arttrace.no_capture():
        bare = CALLS[name](make(vendor))
    with arttrace.trajectory(name="root"), to_policy(policy):
        user = make(vendor)
        routed = CALLS[name](user)
        assert str(user.base_url).startswith(vendor.url.removesuffix("/v1"))
        assert user.api_key == KEY
    assert routed == bare
    assert len(vendor.sent) == len(policy.sent) == 1
    headers, body = expected(vendor.sent[0], policy)
    assert policy.sent[0].body == body
    assert same_headers(policy.sent[0], headers)
    assert KEY not in json.dumps(policy.sent[0].headers)
    query = "&".join(q for q in vendor.sent[0].path.partition("?")[2].split("&") if "api-version" not in q)
    assert policy.sent[0].path == "/v1/chat/completions" + ("?" + query if query else "")
    assert bool(query) == (name == "stream")
    (call,) = [span for span in spans() if span.name.startswith("chat")]
    assert call.name == "chat policy:latest"
    assert call.attributes[semconv.ROUTED_FROM] == "gpt-4o"
    assert call.attributes[semconv.POLICY_VERSION] == "policy@4"
    assert call.attributes[semconv.SERVER_PORT] == int(policy.url.split(":")[-1].removesuffix("/v1"))
    assert semconv.TOKEN_IDS in call.attributes
    assert semconv.PROMPT_TOKEN_IDS in call.attributes


@pytest.mark.parametrize("stream", [False, True])
def test_the_responses_api_is_routed_too(
    stream: bool, vendor: ScriptedServer, policy: ScriptedServer, spans: Spans
) -> None:
    def ask() -> list[str]:
        answer = client(vendor).responses.create(model="gpt-4o", input="hi", stream=stream)
        return [event.type for event in answer] if stream else [answer.output_text]

    with arttrace.no_capture():
        bare = ask()
    with arttrace.trajectory(name="root"), to_policy(policy):
        assert ask() == bare
    headers, body = expected(vendor.sent[0], policy, tokens=False)
    assert (policy.sent[0].path, policy.sent[0].body) == ("/v1/responses", body)
    assert same_headers(policy.sent[0], headers)
    (call,) = [span for span in spans() if span.name.startswith("chat")]
    assert call.attributes[semconv.ROUTED_FROM] == "gpt-4o"
    assert call.attributes[semconv.POLICY_VERSION] == "policy@4"


def test_async_and_retries(vendor: ScriptedServer, policy: ScriptedServer, spans: Spans) -> None:
    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=vendor.url, api_key=KEY, max_retries=2) as c:
            return (await c.chat.completions.create(model="gpt-4o", messages=MESSAGES)).choices[0].message.content

    policy.failures += [500, 429]
    with arttrace.trajectory(name="root"), to_policy(policy):
        assert asyncio.run(ask()) == "fine"
    assert not vendor.sent
    assert len(policy.sent) == 3
    assert len({sent.body for sent in policy.sent}) == 1
    (call,) = [span for span in spans() if span.name.startswith("chat")]
    assert call.attributes[semconv.ATTEMPTS] == 3


def test_only_the_chosen_model_agent_and_recorded_calls(vendor: ScriptedServer, policy: ScriptedServer) -> None:
    def ask(model: str) -> None:
        client(vendor).chat.completions.create(model=model, messages=MESSAGES)

    handle = to_policy(policy, agent="writer")
    with arttrace.trajectory(name="root"):
        ask("gpt-4o")
        with arttrace.agent(name="writer"):
            ask("gpt-4o-mini")
            ask("gpt-4o")
            with arttrace.tool(name="a tool of the writer's"):
                ask("gpt-4o")
            with arttrace.agent(name="reader"):
                ask("gpt-4o")
            with arttrace.no_capture():
                ask("gpt-4o")
        handle.remove()
        with arttrace.agent(name="writer"):
            ask("gpt-4o")
    assert [sent.json["model"] for sent in policy.sent] == ["policy:latest"] * 2
    assert [sent.json["model"] for sent in vendor.sent] == ["gpt-4o", "gpt-4o-mini", "gpt-4o", "gpt-4o", "gpt-4o"]


def test_a_block_routes_its_own_threads_and_nothing_beside_it(vendor: ScriptedServer, policy: ScriptedServer) -> None:
    entered, leave = threading.Event(), threading.Event()

    def beside() -> None:
        with arttrace.trajectory(name="beside"):
            entered.wait(20)
            chat(client(vendor))
            leave.set()

    other = threading.Thread(target=beside)
    other.start()
    with arttrace.trajectory(name="root"):
        with to_policy(policy):
            entered.set()
            assert leave.wait(20)
            inside = threading.Thread(target=lambda: chat(client(vendor)))
            inside.start()
            inside.join()
        chat(client(vendor))
    other.join()
    assert (len(policy.sent), len(vendor.sent)) == (1, 2)


def test_the_environment_routes_and_the_latest_route_counts(
    vendor: ScriptedServer, policy: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ARTTRACE_ROUTE", f"gpt-4o=market@12@{policy.url}")
    arttrace.init(dir=tmp_path)
    with arttrace.trajectory(name="root"):
        chat(client(vendor))
        with to_policy(policy):
            chat(client(vendor))
    monkeypatch.setenv("ARTTRACE_ROUTE", "nonsense")
    arttrace.init(dir=tmp_path)
    with arttrace.trajectory(name="root"):
        chat(client(vendor))
    assert [sent.json["model"] for sent in policy.sent] == ["market@12", "policy:latest"]
    assert "authorization" not in policy.sent[0].headers, "without a key of its own the policy is sent none"
    assert len(vendor.sent) == 1


def test_a_route_may_leave_out_what_changes_the_sampling(
    vendor: ScriptedServer, policy: ScriptedServer, spans: Spans, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forced = {"top_p": 0.5, "response_format": {"type": "json_object"}, "max_tokens": 5}
    with arttrace.trajectory(name="root"), to_policy(policy, sampling="policy"):
        chat(client(vendor), **forced)
    monkeypatch.setenv("ARTTRACE_POLICY_SAMPLING", "policy")
    monkeypatch.setenv("ARTTRACE_ROUTE", f"gpt-4o=policy:latest@{policy.url}")
    arttrace.init(dir=tmp_path / "data")
    with arttrace.trajectory(name="root"):
        chat(client(vendor), **forced)
    for sent in policy.sent:
        assert sent.json.keys() == {"messages", "model", "max_tokens", "logprobs", "return_token_ids"}
    assert len(policy.sent) == 2
    for call in (span for span in spans() if span.name.startswith("chat")):
        assert semconv.REQUEST_TEMPERATURE not in call.attributes
        assert semconv.SAMPLING_SETTINGS not in call.attributes
    with pytest.raises(ArttraceError, match="not a way of sampling"):
        to_policy(policy, sampling="mine")


def test_an_unreachable_policy_is_the_ordinary_connection_error(vendor: ScriptedServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with (
            arttrace.trajectory(name="root"),
            arttrace.route("*", to="p", base_url=url),
            pytest.raises(openai.APIConnectionError),
        ):
            chat(client(vendor, max_retries=0))
    assert not vendor.sent


def test_the_http_clients_own_credentials_stay_at_home(vendor: ScriptedServer, policy: ScriptedServer) -> None:
    http = openai.DefaultHttpxClient(auth=("user", "secret"), cookies={"session": "secret"})
    with arttrace.trajectory(name="root"), to_policy(policy):
        chat(openai.OpenAI(base_url=vendor.url, api_key=KEY, http_client=http), extra_headers=GATEWAY)
    assert policy.sent[0].headers["authorization"] == f"Bearer {POLICY_KEY}"
    assert policy.sent[0].headers["x-cache"] == "on"
    assert {"cookie", "helicone-auth", "x-portkey-api-key"}.isdisjoint(policy.sent[0].headers)


def test_trainable_servers_are_asked_for_tokens_and_no_others(
    vendor: ScriptedServer, policy: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spans: Spans
) -> None:
    monkeypatch.setenv("ARTTRACE_TRAINABLE", f" http://elsewhere/v1, {policy.url.replace('http', 'HTTP')}/")
    arttrace.init(dir=tmp_path / "data")
    with arttrace.trajectory(name="root"):
        assert chat(client(vendor)).choices[0].logprobs is None
        asked = chat(client(policy))
        chat(client(policy), logprobs=False)
        client(policy).completions.create(model="m", prompt="x")
    assert asked.choices[0].message.content == "fine"
    assert policy.sent[0].body == vendor.sent[0].body.removesuffix(b"}") + TOKENS
    assert policy.sent[0].headers["authorization"] == f"Bearer {KEY}"
    assert policy.sent[1].json["logprobs"] is False, "what the user has set stays"
    assert policy.sent[2].body == b'{"model":"m","prompt":"x","logprobs":0,"return_token_ids":true}'
    calls = sorted((span for span in spans() if span.name.startswith("chat")), key=lambda span: span.start_ns)
    assert [semconv.TOKEN_IDS in call.attributes for call in calls] == [False, True, True]
    assert semconv.ROUTED_FROM not in calls[1].attributes


@pytest.mark.parametrize("base", ["https://box:443/v1", "https://box/v1/", "http://box:80/v1", "http://box/v1"])
@pytest.mark.parametrize("port", ["", ":443", ":80"])
def test_a_trainable_server_is_known_by_its_schemes_own_port(base: str, port: str, tmp_path: Path) -> None:
    """httpx and aiohttp leave such a port out, requests does not."""
    arttrace.init(dir=tmp_path / "data", trainable=[base])
    scheme = base.partition(":")[0]
    made = rewrite(f"{scheme}://box{port}/v1/chat/completions", b'{"model":"m"}', client="httpx")
    is_its_own = port in ("", {"http": ":80", "https": ":443"}[scheme])
    assert (made is not None) == is_its_own
    assert made is None or made.url == f"{scheme}://box{port}/v1/chat/completions"


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_requests_of_both_http_libraries_are_rebuilt_and_not_changed(module: Any) -> None:
    body = b'{ "model": "gpt-4o",  "logprobs": null, "x": 1.50 }'
    headers = [(b"X-A", b"1"), (b"API-Key", b"secret"), (b"X-a", b"2")]
    request = module.Request("POST", "http://vendor/v1/chat/completions", headers=headers, content=body)
    options: dict[str, Any] = {"stream": True}
    with arttrace.route("*", to="p", base_url="HTTP://policy:1/v1", api_key="k"):
        routed, model = apply(request, options)
        answers = module.Request("GET", "http://vendor/v1/responses/r_1")
        assert apply(answers, {}) == (answers, None)
    assert (model, options) == ("gpt-4o", {"stream": True, "auth": None})
    assert routed.content == b'{ "model": "p",  "logprobs": null, "x": 1.50 ,"return_token_ids":true}'
    assert [item for item in routed.headers.raw if item[0] not in (b"Host", b"Content-Length")] == [
        (b"X-A", b"1"),
        (b"Authorization", b"Bearer k"),
        (b"X-a", b"2"),
    ]
    assert (routed.url, routed.headers["host"]) == ("http://policy:1/v1/chat/completions", "policy:1")
    assert (request.content, request.headers["api-key"], request.url.host) == (body, "secret", "vendor")


def test_a_route_of_a_block_holds_for_the_jobs_that_a_pool_of_threads_is_given_there() -> None:
    request = httpx.Request("POST", "http://vendor/v1/chat/completions", content=b'{"model":"gpt-4o"}')
    with ThreadPool(1) as pool:
        with arttrace.route("gpt-4o", to="p", base_url="http://policy:1/v1"):
            assert pool.apply(apply, (request, {}))[1] == "gpt-4o"
        assert pool.apply(apply, (request, {})) == (request, None)


async def test_a_route_of_a_generator_that_is_left_early_is_over_for_its_consumer() -> None:
    request = httpx.Request("POST", "http://vendor/v1/chat/completions", content=b'{"model":"gpt-4o"}')
    hold = asyncio.Event()

    async def outlasts() -> Any:
        await hold.wait()
        return apply(request, {})[1]

    async def routed(started: list[asyncio.Task[Any]]) -> AsyncIterator[Any]:
        with arttrace.route("gpt-4o", to="p", base_url="http://policy:1/v1"):
            started.append(asyncio.create_task(outlasts()))
            yield apply(request, {})[1]

    started: list[asyncio.Task[Any]] = []
    with arttrace.route("gpt-4o-mini", to="p", base_url="http://policy:1/v1") as outer:
        for _ in range(3):
            async for model in routed(started):
                assert model == "gpt-4o"
                break
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # the event loop has closed the generator, in a task of its own
        assert apply(request, {}) == (request, None)
        assert len(current_flow().routes) == 2, "those that are over are not heaped up"
        hold.set()
        assert await asyncio.gather(*started) == ["gpt-4o"] * 3
        assert pickle.loads(pickle.dumps(outer)).route == outer.route


def test_a_route_needs_a_server_and_a_form() -> None:
    with pytest.raises(ArttraceError, match="names no server"):
        arttrace.route("gpt-4o", to="policy:latest")
    with pytest.raises(ArttraceError, match="is no route"):
        parse_routes("gpt-4o=policy:latest")
    (first, second) = parse_routes("gpt-4o=p:latest@http://h:1/v1/, Qwen/Q3[desk]=m@3@HTTPS://i/v1")
    assert (first.model, first.to, first.base_url, first.agent) == ("gpt-4o", "p:latest", "http://h:1/v1", None)
    assert (second.model, second.to, second.base_url, second.agent) == ("Qwen/Q3", "m@3", "HTTPS://i/v1", "desk")


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"a"}', "a"),
        (b' { "x" : {"model": "no"}, "y": ["model", ":", "no"], "model" : "\\u00e9\\"b" , "n": 1.50e+2 } ', '\u00e9"b'),
        (b'{"model": 3, "messages": [{"model": "no"}]}', None),
        (b"[]", None),
        (b'{"model"', None),
    ],
)
def test_one_field_of_a_body_is_changed(body: bytes, model: str | None) -> None:
    assert read_model(body) == model
    changed = with_model(body, "\u00fc")
    if model is None:
        assert changed == body
    else:
        assert json.loads(changed) == {**json.loads(body), "model": "\u00fc"}
        assert list(json.loads(changed)) == list(json.loads(body))
    if body.strip().endswith(b"}"):
        wishing = with_fields(body, {"a": True, "model": "no", "b": True})
        assert json.loads(wishing) == {**json.loads(body), "a": True, "b": True}
        assert wishing.startswith(body.rstrip().removesuffix(b"}").rstrip())


@pytest.mark.parametrize("named", ["url", "name"])
def test_arttrace_run_routes_an_unmodified_program(
    named: str, vendor: ScriptedServer, policy: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        "import openai\n"
        f"client = openai.OpenAI(base_url={vendor.url!r}, api_key={KEY!r})\n"
        "answer = client.chat.completions.create(model='gpt-4o', messages=[{'role': 'user', 'content': 'hi'}])\n"
        "print(answer.choices[0].message.content)\n"
    )
    chosen = policy.url.replace("http", "HTTP")
    if named == "name":
        chosen = "market@3"
        monkeypatch.setenv("ARTTRACE_POLICY_URL", policy.url)
    start = "from arttrace.commands import main; main()"
    command = [sys.executable, "-c", start, "run", "--dir", str(tmp_path / "d"), "--policy", chosen, "--"]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    assert not vendor.sent
    assert policy.sent[0].json["model"] == ("policy:latest" if named == "url" else "market@3")
    (call,) = [span for span in read_spans(tmp_path / "d") if span.name.startswith("chat")]
    assert call.attributes[semconv.POLICY_VERSION] == "policy@4"


def test_arttrace_run_refuses_a_policy_without_a_server() -> None:
    with pytest.raises(ArttraceError, match="has no server"):
        run.command.main(["--policy", "policy:latest", "--", "agent.py"], standalone_mode=False)


def test_a_failure_of_ours_leaves_the_call_where_it_was_meant_to_go(
    vendor: ScriptedServer, policy: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    monkeypatch.setattr(routing, "with_model", lambda *_: 1 / 0)
    with arttrace.trajectory(name="root"), to_policy(policy):
        assert CALLS["plain"](client(vendor)) == "fine"
    assert (len(vendor.sent), len(policy.sent)) == (1, 0)
    assert vendor.sent[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_request_names_its_trajectory_as_art_does(
    vendor: ScriptedServer, policy: ScriptedServer, spans: Spans
) -> None:
    art = {"art": {"trajectory_id": "run-7", "x": 1}}
    bare = chat(client(vendor), extra_body=art)
    with arttrace.trajectory(name="root") as root:
        assert chat(client(vendor), extra_body=art) == bare
        chat(client(vendor), extra_body={"art": {"trajectory_id": root.id}})
        chat(client(vendor), extra_body={"art": ["no id"]})
        with to_policy(policy):
            chat(client(vendor), extra_body=art)
    assert vendor.sent[0].body == vendor.sent[1].body
    assert policy.sent[0].json["art"] == art["art"]
    found = sorted(spans(), key=lambda span: span.start_ns)
    ids = [span.attributes[semconv.TRAJECTORY_ID] for span in found if span.name.startswith("chat")]
    assert ids[-4:] == ["run-7", root.id, root.id, "run-7"]
    (ended,) = [span for span in found if semconv.ENTRY in span.attributes]
    assert ended.attributes[semconv.TRAJECTORY_SPAN_COUNT] == 2, "the other calls are counted with their own run"


def test_calls_outside_any_trajectory_are_routed_as_well(
    vendor: ScriptedServer, policy: ScriptedServer, spans: Spans
) -> None:
    handle = to_policy(policy)
    assert POLICY_KEY not in repr(handle.route)
    try:
        chat(client(vendor))
    finally:
        handle.remove()
    handle.remove()
    chat(client(vendor))
    assert [len(policy.sent), len(vendor.sent)] == [1, 1]
    first, second = sorted(spans(), key=lambda span: span.start_ns)
    assert first.attributes[semconv.ROUTED_FROM] == "gpt-4o"
    assert semconv.ROUTED_FROM not in second.attributes


def test_a_call_that_a_gateway_records_in_a_run_of_its_own_is_said_once(
    spans: Callable[[], list[SpanRow]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "_warned", set())

    def answer(_: httpx.Request) -> httpx.Response:
        message = {"role": "assistant", "content": "hi"}
        body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(
            200, json={**body, "choices": [choice]}, headers={"x-arttrace-policy-version": "policy@1"}
        )

    for base_url, said in (("http://gateway/v1", 0), ("http://gateway/r/run-7/v1", 1), ("http://gateway/r/b/c/v1", 1)):
        http = httpx.Client(transport=httpx.MockTransport(answer))
        with openai.OpenAI(base_url=base_url, api_key="sk-test-0123456789", http_client=http) as client:
            client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
        arttrace.flush()
        assert caplog.text.count("would be trained on twice") == said
    assert len([span for span in spans() if span.kind == 3]) == 3
