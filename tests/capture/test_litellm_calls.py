"""litellm and huggingface_hub captured, which ask models by HTTP clients of their own: each call once, by whatever
provider's protocol."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bedrock_server import serve_bedrock
from gemini_server import serve_gemini
from http_site import CLIENTS
from huggingface_hub import AsyncInferenceClient, InferenceClient
from messages_server import serve_messages
from model_server import TEXT, serve_model
from ollama_server import serve_ollama

import arttrace
from arttrace.capture.export import summary
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]
KEY = "sk-secret-0123456789"
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """litellm reads its prices from the package, and boto3 no configuration of this machine."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a-key-0123456789")


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """The address of each provider's stand-in."""
    with ExitStack() as running:
        yield {
            "openai": running.enter_context(serve_model()).url,
            "anthropic": running.enter_context(serve_messages()).url,
            "gcp.gemini": running.enter_context(serve_gemini()).url,
            "ollama": running.enter_context(serve_ollama()).url,
            "aws.bedrock": running.enter_context(serve_bedrock()).url,
        }


@pytest.fixture
def spans(records: Callable[[], list[Record]]) -> Spans:
    def read() -> list[SpanRow]:
        return [each for each in records() if isinstance(each, SpanRow) and semconv.REQUEST_MODEL in each.attributes]

    return read


@pytest.fixture
def tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> summary.Tally:
    """What the program's end will say."""
    monkeypatch.setattr(summary, "_path", tmp_path / "tally")
    monkeypatch.setattr(summary, "_tally", summary.Tally())
    return summary._tally


MODELS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "hosted_vllm/m": ("openai", lambda url: {"api_base": url}),
    "openai/m": ("openai", lambda url: {"api_base": url}),
    "deepseek/m": ("openai", lambda url: {"api_base": url}),
    "mistral/m": ("openai", lambda url: {"api_base": url}),
    "anthropic/claude-x": ("anthropic", lambda url: {"api_base": url}),
    "gemini/gemini-x": ("gcp.gemini", lambda url: {"api_base": f"{url}/v1beta/models/gemini-x"}),
    "ollama_chat/llama-x": ("ollama", lambda url: {"api_base": url}),
    "bedrock/converse/anthropic.claude-x": (
        "aws.bedrock",
        lambda url: {"aws_bedrock_runtime_endpoint": url, "aws_region_name": "us-east-1"},
    ),
}


@pytest.mark.parametrize("model", MODELS)
def test_each_call_of_litellms_is_recorded_once(
    model: str, urls: dict[str, str], spans: Spans, tally: summary.Tally
) -> None:
    import litellm

    provider, options = MODELS[model]
    asked: dict[str, Any] = {
        "model": model,
        "messages": MESSAGES,
        **({} if provider == "aws.bedrock" else {"api_key": KEY}),
        **options(urls[provider]),
    }

    async def asynchronously() -> None:
        await litellm.acompletion(**asked)
        async for _ in await litellm.acompletion(**asked, stream=True):
            pass

    with arttrace.trajectory(name="root"):
        answer = litellm.completion(**asked)
        list(litellm.completion(**asked, stream=True))
        asyncio.run(asynchronously())
    calls = spans()
    assert [call.attributes[semconv.PROVIDER_NAME] for call in calls] == [provider] * 4
    said = answer.choices[0].message.content
    for call in calls:
        (message,) = json.loads(call.attributes[semconv.OUTPUT_MESSAGES])
        assert said in [part.get("content") for part in message["parts"]]
        assert semconv.INTERRUPTED not in call.attributes
    assert KEY not in repr(calls)
    assert not tally.passed


def test_each_call_of_huggingface_hubs_is_recorded_once(
    urls: dict[str, str], spans: Spans, tally: summary.Tally
) -> None:
    asked: Any = {"messages": MESSAGES, "model": "m"}

    async def asynchronously() -> None:
        async with AsyncInferenceClient(base_url=urls["openai"], api_key=KEY) as client:
            await client.chat_completion(**asked)
            async for _ in await client.chat_completion(**asked, stream=True):
                pass

    with arttrace.trajectory(name="root"):
        client = InferenceClient(base_url=urls["openai"], api_key=KEY)
        assert client.chat_completion(**asked).choices[0].message.content == TEXT
        list(client.chat_completion(**asked, stream=True))
        asyncio.run(asynchronously())
    calls = spans()
    assert [json.loads(each.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"][0]["content"] for each in calls] == [
        TEXT
    ] * 4
    assert KEY not in repr(calls)
    assert not tally.passed


@pytest.mark.parametrize("way", CLIENTS)
def test_they_are_known_by_what_they_call_themselves(way: str, urls: dict[str, str], spans: Spans) -> None:
    """huggingface_hub 0 sends by requests and by aiohttp."""
    library, ask = CLIENTS[way]
    for agent in ("unknown/None; hf_hub/0.36.0; python/3.11.2", "mine/1.0"):
        with arttrace.trajectory(name="root"):
            ask(
                importlib.import_module(library),
                "POST",
                f"{urls['openai']}/chat/completions",
                content=json.dumps({"model": agent[:3], "messages": MESSAGES}).encode(),
                headers={"User-Agent": agent},
            )
    assert [call.attributes[semconv.REQUEST_MODEL] for call in spans()] == ["unk"]


def test_a_route_takes_them(spans: Spans) -> None:
    import litellm

    asked: dict[str, Any] = {"model": "anthropic/claude-x", "messages": MESSAGES, "api_key": KEY}
    with serve_model() as policy, arttrace.route("claude-x", to="m-ids", base_url=policy.url):
        with arttrace.trajectory(name="root"):
            litellm.completion(**asked, api_base="http://127.0.0.1:9")
        (sent,) = policy.sent
    assert json.loads(sent.request)["model"] == "m-ids"
    assert KEY not in repr(sent)
    (call,) = spans()
    assert call.attributes[semconv.TOKEN_IDS]
