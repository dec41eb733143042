"""The published instrumentations of the openai client in one process with arttrace, in every order of two around it.

They are installed into a folder of their own, as they need packages that the rest does without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest
from chat_server import ChatServer
from spool import finished_spans

from arttrace.records import semconv

PACKAGES = [
    "executing==2.3.0",
    "logfire-sdk==5.4.0",
    "openinference-instrumentation==0.1.72",
    "openinference-instrumentation-litellm==0.1.51",
    "openinference-instrumentation-openai==0.1.66",
    "openinference-semantic-conventions==0.1.42",
    "opentelemetry-instrumentation-openai==0.62.4",
    "opentelemetry-instrumentation-openai-v2==2.4b0",
    "opentelemetry-util-genai==0.4b0",
]
KNOWN = ("openinference", "openllmetry", "opentelemetry", "langfuse", "logfire")
PROGRAM = """
import asyncio, json, sys
url, *order = sys.argv[1:]
import openai
from opentelemetry.sdk.trace import TracerProvider
provider = TracerProvider()

def openinference():
    from openinference.instrumentation.openai import OpenAIInstrumentor
    OpenAIInstrumentor().instrument(tracer_provider=provider)

def openllmetry():
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor
    OpenAIInstrumentor().instrument(tracer_provider=provider)

def opentelemetry():
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    OpenAIInstrumentor().instrument(tracer_provider=provider)

def langfuse():
    import langfuse
    langfuse.Langfuse(public_key="pk", secret_key="sk", base_url="http://127.0.0.1:9", tracing_enabled=False)
    import langfuse.openai

def logfire():
    import logfire
    logfire.configure(send_to_logfire=False, console=False, metrics=False)
    logfire.instrument_openai()

def litellm():
    import litellm

litellm_by_itself = litellm

def openinference_litellm():
    from openinference.instrumentation.litellm import LiteLLMInstrumentor
    LiteLLMInstrumentor().instrument(tracer_provider=provider)

def arttrace():
    import arttrace
    arttrace.init(project="test")

for name in order:
    globals()[name]()

def request(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}

def text(chunk):
    return (chunk.choices[0].delta.content or "") if chunk.choices else ""

def sync():
    client = openai.OpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0)
    yield client.chat.completions.create(**request("one")).choices[0].message.content
    yield "".join(map(text, client.chat.completions.create(**request("two", stream=True))))

async def asynchronous():
    client = openai.AsyncOpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0)
    answer = await client.chat.completions.create(**request("three"))
    chunks = [chunk async for chunk in await client.chat.completions.create(**request("four", stream=True))]
    return [answer.choices[0].message.content, "".join(map(text, chunks))]

def of_litellm(text, **more):
    return {**request(text, **more), "model": MODEL, "api_base": url, "api_key": "sk-test-0123456789"}

def sync_of_litellm():
    import litellm
    yield litellm.completion(**of_litellm("one")).choices[0].message.content
    yield "".join(map(text, litellm.completion(**of_litellm("two", stream=True))))

async def asynchronous_of_litellm():
    import litellm
    answer = await litellm.acompletion(**of_litellm("three"))
    chunks = [chunk async for chunk in await litellm.acompletion(**of_litellm("four", stream=True))]
    return [answer.choices[0].message.content, "".join(map(text, chunks))]

MODEL = "openai/m" if "litellm" in order else "hosted_vllm/m"
if {"litellm", "litellm_by_itself"} & {*order}:
    print(json.dumps([*sync_of_litellm(), *asyncio.run(asynchronous_of_litellm())]))
else:
    print(json.dumps([*sync(), *asyncio.run(asynchronous())]))
"""
ORDERS = [
    *[(first, "arttrace", second) for first, second in permutations(KNOWN, 2)],
    (*KNOWN, "arttrace"),
    ("arttrace", *KNOWN),
    *[order for one in (*KNOWN, "openinference_litellm") for order in permutations(("litellm", "arttrace", one))],
    *permutations(("litellm_by_itself", "arttrace", "openinference_litellm")),
]
"""Those with litellm call it, which calls the openai client, or sends by itself."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(made), *PACKAGES]
    subprocess.run(install, check=True, timeout=300)
    return made


@pytest.mark.full
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_every_call_is_recorded_once(order: tuple[str, ...], folder: Path, server: ChatServer, tmp_path: Path) -> None:
    program, data = tmp_path / "program.py", tmp_path / "data"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    own = {"ARTTRACE_DIR": str(data), "PYTHONPATH": path, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [sys.executable, str(program), server.url, *order],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers == ["answer 0 to one", "answer 0 to two ", "answer 0 to three", "answer 0 to four "]
    assert "bypasses" not in done.stderr
    calls = [span for span in finished_spans(data) if span.attributes[semconv.OPERATION_NAME] == "chat"]
    outputs = [span.attributes.get(semconv.OUTPUT_MESSAGES, "") for span in calls]
    assert len(outputs) == 4
    assert all(any(answer in output for output in outputs) for answer in answers)
    assert len(server.requests) == 4
