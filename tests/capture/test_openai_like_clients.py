"""Clients of providers of OpenAI's API are captured, each call once, whether requests by HTTP libraries are too
(ARTTRACE_CAPTURE_HTTP) or not. The user gets what the bare client gives."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from groq import AsyncGroq, Groq
from outcomes import outcome
from spool import finished_spans

import arttrace
from arttrace.records import semconv
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]
KEY = "gsk-secret-0123456789"
ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def client(server: ChatServer, **options: Any) -> Groq:
    return Groq(api_key=KEY, base_url=server.url.removesuffix("/v1"), **options)


@pytest.mark.parametrize("capture_http", [False, True])
def test_groqs_calls(capture_http: bool, server: ChatServer, spans: Spans, tmp_path: Path) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", capture_http=capture_http)

    async def asynchronous() -> Any:
        async with AsyncGroq(api_key=KEY, base_url=server.url.removesuffix("/v1")) as c:
            return await c.chat.completions.create(**ASKED)

    def answers() -> list[Any]:
        c = client(server)
        whole, asked = c.chat.completions.create(**ASKED), asyncio.run(asynchronous())
        return [whole.model_dump(), asked.model_dump(), [*c.chat.completions.create(**ASKED, stream=True)]]

    with arttrace.no_capture():
        bare = answers()
    with arttrace.trajectory(name="root"):
        assert answers() == bare
    *found, _root = spans()
    assert len(found) == 3
    for span in found:
        assert (span.name, span.status_code, span.attributes[semconv.PROVIDER_NAME]) == ("chat m", 0, "groq")
        assert "answer 0 to hi" in span.attributes[semconv.OUTPUT_MESSAGES]
        assert KEY not in repr(span.attributes)


def test_groqs_retries_are_one_call_and_its_failures_are_the_users(server: ChatServer, spans: Spans) -> None:
    def failing() -> Any:
        server.failures += [(404, b'{"error": {"message": "no such model"}}')]
        return client(server).chat.completions.create(**ASKED)

    with arttrace.no_capture():
        bare = outcome(failing)
    with arttrace.trajectory(name="root"):
        assert outcome(failing) == bare
        server.failures += [(503, b"{}")]
        client(server, max_retries=1).chat.completions.create(**ASKED)
    failed, again, _root = spans()
    assert failed.status_code == 2
    assert "no such model" in failed.status_message
    assert (again.status_code, again.attributes[semconv.ATTEMPTS]) == (0, 2)


def test_a_route_leads_groqs_calls_to_the_policy(server: ChatServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"), arttrace.route("m", to="policy:latest", base_url=server.url):
        Groq(api_key=KEY, base_url="http://127.0.0.1:9").chat.completions.create(**ASKED)
    found, _root = spans()
    assert (found.attributes[semconv.REQUEST_MODEL], found.attributes[semconv.ROUTED_FROM]) == ("policy:latest", "m")
    assert semconv.TOKEN_IDS in found.attributes
    ((headers, _body),) = server.requests
    assert KEY not in repr(headers)


MISTRALS = (
    "client = Mistral(api_key=key, server_url=base)\n"
    "def ask(stream, **asked): return (client.chat.stream if stream else client.chat.complete)(**asked)"
)
CREATED = "client.chat.completions.create"
MADE = {
    "groq": (["groq==1.7.0"], f"import groq; client = groq.Groq(api_key=key, base_url=base); ask = {CREATED}"),
    "together_ai": (
        ["together==3.1.1", "detect-agent==0.6.0"],
        f"import together; client = together.Together(api_key=key, base_url=url); ask = {CREATED}",
    ),
    "cerebras": (
        ["cerebras-cloud-sdk==1.91.0"],
        "from cerebras.cloud.sdk import Cerebras;"
        f"client = Cerebras(api_key=key, base_url=base, warm_tcp_connection=False); ask = {CREATED}",
    ),
    "fireworks_ai": (
        ["fireworks-ai==1.2.30"],
        f"import fireworks; client = fireworks.Fireworks(api_key=key, base_url=base); ask = {CREATED}",
    ),
    "sambanova": (
        ["sambanova==1.13.0"],
        f"import sambanova; client = sambanova.SambaNova(api_key=key, base_url=url); ask = {CREATED}",
    ),
    "mistral_ai": (["mistralai==3.7.0"], "from mistralai.client import Mistral\n" + MISTRALS),
    "mistralai 1": (["mistralai==1.9.11"], "from mistralai import Mistral\n" + MISTRALS),
    "huggingface_hub": (
        ["huggingface_hub==2.4.0"],
        "from huggingface_hub import InferenceClient; client = InferenceClient(base_url=base, api_key=key)\n"
        f"ask = {CREATED}",
    ),
}
RECORDED_AS = {"mistralai 1": "mistral_ai", "huggingface_hub": "openai"}
"""The provider where it has another name: of huggingface_hub's requests the protocol is known alone."""
PROGRAM = """
import sys
url, how = sys.argv[1:]
key, base = "k" * 20, url.removesuffix("/v1")
exec(how)
asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
try:
    print(ask(stream=False, **asked).choices[0].message.content)
    print(*(type(chunk).__name__ for chunk in ask(stream=True, **asked)))
except Exception as error:
    print(type(error).__name__, str(error)[:500])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packages")
    for name, (packages, _) in MADE.items():  # each by itself: two have a package of one name with other contents
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(made / name)]
        subprocess.run([*install, *packages], check=True, timeout=300)
    return made


@pytest.mark.full
@pytest.mark.parametrize("name", MADE)
def test_the_published_clients(name: str, folder: Path, server: ChatServer, tmp_path: Path) -> None:
    """The stand-in's stream lacks a field that Mistral's client wants: it raises, with us and without."""
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(folder / name), *filter(None, [os.environ.get("PYTHONPATH")])])
    arttrace_run = [sys.executable, "-m", "arttrace", "run", "--quiet", "--"]
    shown = []
    for way, before in (("bare", []), ("0", arttrace_run), ("1", arttrace_run)):
        own = {"ARTTRACE_DIR": str(tmp_path / way), "PYTHONPATH": path, "ARTTRACE_CAPTURE_HTTP": way}
        done = subprocess.run(
            [*before, sys.executable, str(tmp_path / "program.py"), server.url, MADE[name][1]],
            env={**os.environ, **({"PYTHONPATH": path} if way == "bare" else own)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert shown[0].startswith("answer 0 to hi\n")
    assert shown == shown[:1] * 3
    for way in ("0", "1"):
        found = [span for span in finished_spans(tmp_path / way) if span.name == "chat m"]
        assert [span.attributes[semconv.PROVIDER_NAME] for span in found] == [RECORDED_AS.get(name, name)] * 2
