"""Hooks that others hold after `arttrace.uninstrument()`: a wrapper of somebody else's around each of them, as other
instrumentation makes it, keeps them where they are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from chat_server import ChatServer
from http_site import serving
from joined_program import one_trajectory, run
from spool import finished_spans, read_spans

from arttrace.records import semconv
from arttrace.records.span import SpanRow

HELD = """
import _thread, asyncio, json, multiprocessing.pool, os, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import aiohttp, httpx, openai, openai._base_client as openai_base, requests, requests.adapters
import anthropic, anthropic._base_client as anthropic_base
import opentelemetry.sdk.trace as sdk
import opentelemetry.trace
import arttrace
URL, MODELS = sys.argv[1:3]

def hold(owner, name):
    ours = vars(owner)[name]
    setattr(owner, name, lambda *args, **kwargs: ours(*args, **kwargs))  # somebody else's

async def ask_async(path):
    async with httpx.AsyncClient() as client, aiohttp.ClientSession() as session:
        await client.get(URL + path)
        async with session.get(URL + path) as answer:
            await answer.read()
    async with openai.AsyncOpenAI(base_url=MODELS, api_key="sk-test-0123456789") as client:
        await client.chat.completions.create(**question(path))

def question(path):
    return {"model": "m", "messages": [{"role": "user", "content": path}]}

def library_spans(path):
    tracer = sdk.TracerProvider().get_tracer("library")
    with tracer.start_as_current_span("invoke_agent helper"):
        with tracer.start_as_current_span("execute_tool find"):
            pass
        with tracer.start_as_current_span("chat m") as span:
            said = json.dumps([{"role": "user", "parts": [{"type": "text", "content": f"library {path}"}]}])
            span.set_attributes({"gen_ai.request.model": "m", "gen_ai.input.messages": said})

def ask_all(path):
    arttrace.tool(name="look")(lambda path: httpx.get(URL + path))(path)
    requests.get(URL + path)
    asyncio.run(ask_async(path))
    with openai.OpenAI(base_url=MODELS, api_key="sk-test-0123456789") as client:
        client.chat.completions.create(**question(path))
    with anthropic.Anthropic(base_url=MODELS.removesuffix("/v1"), api_key="sk-test-0123456789") as client:
        client.messages.create(max_tokens=9, **question(path))
    library_spans(path)
    thread = threading.Thread(target=requests.get, args=[f"{URL}{path}/thread"])
    thread.start()
    thread.join()
    lock = _thread.allocate_lock()
    lock.acquire()
    _thread.start_new_thread(lambda: (requests.get(f"{URL}{path}/thread"), lock.release()), ())
    lock.acquire()
    with ThreadPoolExecutor() as pool:
        pool.submit(requests.get, f"{URL}{path}/thread").result()
    print_it = "import os; print('ARTTRACE_CONTEXT' in os.environ)"
    reported = subprocess.run([sys.executable, "-Sc", print_it], capture_output=True, text=True).stdout.strip()
    return reported == "True"

arttrace.init(http_spans=True, propagate=["127.0.0.1"])
for owner, name in [
    (httpx.Client, "send"), (httpx.AsyncClient, "send"),
    (httpx.Client, "_send_single_request"), (httpx.AsyncClient, "_send_single_request"),
    (requests.Session, "send"), (requests.adapters.HTTPAdapter, "send"),
    (aiohttp.ClientSession, "_request"), (aiohttp.ClientRequest, "send"),
    (openai_base.SyncAPIClient, "request"), (openai_base.AsyncAPIClient, "request"),
    (anthropic_base.SyncAPIClient, "request"), (anthropic_base.AsyncAPIClient, "request"),
    (sdk.Tracer, "start_span"), (sdk.Span, "end"), (opentelemetry.trace.NoOpTracer, "start_span"),
    (threading.Thread, "start"), (_thread, "start_new_thread"), (ThreadPoolExecutor, "submit"),
    (subprocess.Popen, "__init__"), (multiprocessing.pool.Pool, "apply_async"), (ProcessPoolExecutor, "submit"),
]:
    hold(owner, name)
"""
AFTERWARDS = """
with arttrace.trajectory(name="run") as handle:
    assert ask_all("/before")
    begun = httpx.Client().send(httpx.Request("GET", URL + "/begun"), stream=True)
    with arttrace.agent(name="inner"):
        arttrace.uninstrument()
        assert arttrace.current_trajectory() is None
        assert not ask_all("/after")
        begun.read()
        arttrace.reward(1.0)
        arttrace.update(tags=["after"])
        handle.reward(1.0)
deadline = time.monotonic() + 60
while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
    time.sleep(0.01)
print(len(os.listdir("/proc/self/task")))
"""
AGAIN = """
with arttrace.trajectory(name="run"):
    assert ask_all("/before")
    arttrace.uninstrument()
    assert not ask_all("/off")
    arttrace.init(http_spans=True, propagate=["127.0.0.1"])
    assert ask_all("/after")
"""
REQUESTS, OF_THREADS = 4, 3
OF_MODELS = 3


def asked(spans: list[SpanRow]) -> Counter[str]:
    """How often what was asked, by requests and of models."""
    found: Counter[str] = Counter()
    for span in spans:
        attributes = span.attributes
        if semconv.URL_FULL in attributes:
            found["/" + str(attributes[semconv.URL_FULL]).split("/", 3)[3]] += 1
        elif semconv.INPUT_MESSAGES in attributes:
            (message,) = json.loads(str(attributes[semconv.INPUT_MESSAGES]))
            found[message["parts"][0]["content"]] += 1
        else:
            found[span.name] += 1
    return found


def everything(path: str) -> Counter[str]:
    return Counter({path: REQUESTS + OF_MODELS, f"{path}/thread": OF_THREADS, f"library {path}": 1}) + INSIDE


INSIDE = Counter({"invoke_agent helper": 1, "execute_tool find": 1, "execute_tool look": 1})


def test_nothing_is_recorded_or_sent_in_a_run_that_is_open(server: ChatServer, tmp_path: Path) -> None:
    with serving() as site:
        threads = run(HELD + AFTERWARDS, tmp_path, site.url, server.url, ARTTRACE_RAISE="1")
    shown = {path for path, headers in site.seen if {"baggage", "traceparent"} & headers.keys()}
    assert shown == {"/before", "/before/thread", "/begun"}
    assert asked(finished_spans(tmp_path / "d")) == everything("/before")
    assert {span.name for span in read_spans(tmp_path / "d") if not span.end_ns} <= {"invoke_agent run"}
    assert threads.strip() == "1"  # none of arttrace's


def test_an_open_run_goes_on_when_everything_is_installed_again_and_no_call_is_recorded_twice(
    server: ChatServer, tmp_path: Path
) -> None:
    with serving() as site:
        run(HELD + AGAIN, tmp_path, site.url, server.url, ARTTRACE_RAISE="1")
    shown = Counter(path for path, headers in site.seen if {"baggage", "traceparent"} & headers.keys())
    assert shown == {
        path + end: count for path in ("/before", "/after") for end, count in (("", REQUESTS), ("/thread", OF_THREADS))
    }
    one_trajectory(tmp_path)
    expected = everything("/before") + everything("/after") + Counter(["invoke_agent run"])
    assert asked(finished_spans(tmp_path / "d")) == expected
