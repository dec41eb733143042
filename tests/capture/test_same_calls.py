"""A library's span of a model call is left out only where that very call is recorded already, whatever else is recorded
in the same scope meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import boto3
import openai
import pytest
from bedrock_server import USAGE, serve_bedrock
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider, Tracer
from scripted_server import Asked, Reply, ScriptedServer, serve_script

import arttrace
from arttrace.capture.base.remote_context import BAGGAGE
from arttrace.capture.context.propagation import outgoing_context
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]
ASKED = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "claude"}
ANSWERED = {"gen_ai.response.id": "msg_1", "gen_ai.usage.input_tokens": 50, "gen_ai.usage.output_tokens": 9}


def answer(asked: Asked) -> Reply:
    return Reply("seen " + asked.users[-1])


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serve_script(answer) as serving:
        yield serving


@pytest.fixture(params=["no provider", "a provider"])
def tracer(request: pytest.FixtureRequest) -> Tracer:
    provider = NoOpTracerProvider() if request.param == "no provider" else TracerProvider()
    return provider.get_tracer("framework")


@pytest.fixture
def client(server: ScriptedServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="sk-test-0123456789", max_retries=0)


def ask(client: openai.OpenAI, text: str, model: str = "m") -> Any:
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])


@contextmanager
def shown(tracer: Tracer, asked: dict[str, Any], answered: dict[str, Any], *, current: bool = True) -> Iterator[None]:
    """A library's span of one call, current inside it or, as callbacks make them, not."""
    span = tracer.start_span("chat", attributes=asked)
    if current:
        with trace.use_span(span, end_on_exit=False):
            yield
    else:
        yield
    span.set_attributes(answered)
    span.end()


def models(spans: list[SpanRow]) -> list[str]:
    """Of the calls recorded; each is among those that its run counts."""
    (run,) = build_trajectories(spans)
    assert not run.incomplete
    counted = sum(span.attributes.get(semconv.TRAJECTORY_SPAN_COUNT, 0) for span in spans)
    assert counted == len(spans) - 1
    return sorted(str(placed.call.request_model) for placed in run.calls)


@pytest.mark.parametrize("current", [True, False])
@pytest.mark.parametrize("answered", [{}, ANSWERED], ids=["no more", "an answer"])
def test_a_call_that_a_hook_records_beside_it_is_another(
    current: bool, answered: dict[str, Any], tracer: Tracer, client: openai.OpenAI, spans: Spans
) -> None:
    @arttrace.trajectory
    def main() -> None:
        with ThreadPoolExecutor(1) as pool, shown(tracer, ASKED, answered, current=current):
            pool.submit(ask, client, "beside").result()

    main()
    assert models(spans()) == ["claude", "m"]


@pytest.mark.parametrize(
    "answered",
    [
        {"gen_ai.response.id": "msg_1"},
        {
            "gen_ai.response.id": "chatcmpl-1",
            "gen_ai.usage.input_tokens": 50,
            "gen_ai.usage.output_tokens": 9,
            "gen_ai.output.messages": json.dumps(
                [{"role": "assistant", "parts": [{"type": "text", "content": "seen beside"}]}]
            ),
        },
        {"gen_ai.usage.input_tokens": 50, "gen_ai.usage.output_tokens": 9},
        {"gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "no"}]}])},
    ],
    ids=["response id", "response id and usage", "usage", "content"],
)
def test_it_is_another_of_the_same_model_where_its_answer_is(
    answered: dict[str, Any], tracer: Tracer, client: openai.OpenAI, spans: Spans
) -> None:
    @arttrace.trajectory
    def main() -> None:
        with shown(tracer, ASKED | {"gen_ai.request.model": "m"}, answered, current=False):
            ask(client, "beside")

    main()
    assert models(spans()) == ["m", "m"]


@pytest.mark.parametrize("current", [True, False])
@pytest.mark.parametrize(
    "answered",
    [
        {},
        {"gen_ai.response.id": "c1"},
        {"gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 2},
        {
            "gen_ai.output.messages": json.dumps(
                [{"role": "assistant", "parts": [{"type": "text", "content": "seen one"}]}]
            )
        },
        {
            "gen_ai.response.id": "chatcmpl-1",  # litellm's own, where the answer is Anthropic's
            "gen_ai.output.messages": json.dumps(
                [{"role": "assistant", "parts": [{"type": "text", "content": "seen one"}]}]
            ),
        },
    ],
    ids=["model", "response id", "usage", "content", "content under an id of its own"],
)
def test_a_span_of_the_very_call_is_left_out(
    current: bool, answered: dict[str, Any], tracer: Tracer, client: openai.OpenAI, spans: Spans
) -> None:
    @arttrace.trajectory
    def main() -> None:
        with shown(tracer, ASKED | {"gen_ai.request.model": "openai/m"}, answered, current=current):
            ask(client, "one")

    main()
    assert models(spans()) == ["m"]


def messages(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


@pytest.mark.parametrize("id", ["mine-7", None])
@pytest.mark.parametrize(("question", "found"), [("OTHER", ["m", "m"]), ("one", ["m"])])
def test_a_call_beside_with_the_same_answer_is_another_where_something_else_was_asked(
    question: str, found: list[str], id: str | None, tracer: Tracer, client: openai.OpenAI, spans: Spans
) -> None:
    """As votes at once are."""

    @arttrace.trajectory
    def main() -> None:
        asked = ASKED | {"gen_ai.request.model": "m", "gen_ai.input.messages": messages("user", question)}
        told = {"gen_ai.output.messages": messages("assistant", "seen one")}
        with shown(tracer, asked, told | ({"gen_ai.response.id": id} if id else {}), current=False):
            ask(client, "one")

    main()
    assert models(spans()) == found


def test_of_calls_side_by_side_each_is_one(tracer: Tracer, server: ScriptedServer, spans: Spans) -> None:
    """Two by a client with a hook, of which a callback's span tells too, two that only spans tell of."""

    @arttrace.trajectory
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="sk-test-0123456789", max_retries=0) as client:
            all_begun, answered = asyncio.Barrier(4), asyncio.Barrier(4)

            async def hooked(number: int) -> None:
                with shown(tracer, ASKED | {"gen_ai.request.model": "m"}, {}, current=number == 0):
                    await all_begun.wait()
                    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "one"}])
                    await answered.wait()

            async def unknown(number: int) -> None:
                with shown(tracer, ASKED, {}, current=number == 0):
                    await all_begun.wait()
                    await answered.wait()

            await asyncio.gather(*(each(number) for each in (hooked, unknown) for number in range(2)))

    asyncio.run(main())
    assert models(spans()) == ["claude", "claude", "m", "m"]


@pytest.mark.parametrize("current", [True, False])
def test_one_recorded_call_answers_for_one_span(
    current: bool, tracer: Tracer, client: openai.OpenAI, spans: Spans
) -> None:
    @arttrace.trajectory
    def main() -> None:
        asked = ASKED | {"gen_ai.request.model": "m"}
        with shown(tracer, asked, {}, current=False), shown(tracer, asked, {}, current=current):
            ask(client, "one")

    main()
    assert models(spans()) == ["m", "m"]


def test_a_span_around_several_tries_is_left_out(
    tracer: Tracer, client: openai.OpenAI, server: ScriptedServer, spans: Spans
) -> None:
    @arttrace.trajectory
    def main() -> None:
        server.failures[:] = [500, 500]
        with shown(tracer, ASKED | {"gen_ai.request.model": "m"}, {"gen_ai.response.id": "c1"}):
            for _ in range(2):
                with pytest.raises(openai.InternalServerError):
                    ask(client, "one")
            ask(client, "one")

    main()
    assert models(spans()) == ["m", "m", "m"]


@pytest.mark.parametrize("current", [True, False])
def test_a_stream_that_is_read_after_the_end_of_its_span_is_the_same_call(
    current: bool, tracer: Tracer, client: openai.OpenAI, spans: Spans
) -> None:
    @arttrace.trajectory
    def main() -> None:
        with shown(tracer, ASKED | {"gen_ai.request.model": "m"}, {}, current=current):
            stream = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "one"}], stream=True
            )
        arttrace.flush()
        assert list(stream)

    main()
    assert models(spans()) == ["m"]


@pytest.mark.parametrize("read", ["in the run", "after it"])
def test_a_stream_that_is_read_after_the_end_of_another_calls_span_is_another(
    read: str, tracer: Tracer, client: openai.OpenAI, spans: Spans
) -> None:
    streams = []

    @arttrace.trajectory
    def main() -> None:
        with shown(tracer, ASKED, ANSWERED, current=False):
            streams.append(
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "one"}], stream=True)
            )
        arttrace.flush()
        if read == "in the run":
            assert list(streams[0])

    main()
    assert bool(list(streams[0])) == (read != "in the run")
    if read == "in the run":
        assert models(spans()) == ["claude", "m"]
    else:
        (run,) = build_trajectories(spans())
        assert (run.incomplete, len(run.calls)) == ("", 2)


def test_an_embedding_inside_of_it_is_another_call(tracer: Tracer, client: openai.OpenAI, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        with shown(tracer, ASKED, ANSWERED), pytest.raises(ValueError, match="No embedding data"):
            client.embeddings.create(model="e", input="one")

    main()
    names = sorted(span.name for span in spans())
    assert names == ["chat", "embeddings e", "invoke_agent main"]


def test_a_check_inside_of_it_by_another_model_is_another_call(
    tracer: Tracer, client: openai.OpenAI, spans: Spans
) -> None:
    @arttrace.trajectory
    def main() -> None:
        with shown(tracer, ASKED, ANSWERED):
            ask(client, "is this allowed?")
        small = ASKED | {"gen_ai.request.model": "small"}
        with shown(tracer, ASKED, ANSWERED), shown(tracer, small, ANSWERED | {"gen_ai.response.id": "msg_2"}):
            pass

    main()
    assert models(spans()) == ["claude", "claude", "m", "small"]


def test_in_another_processs_run_a_span_of_the_very_call_is_left_out(
    tracer: Tracer, client: openai.OpenAI, spans: Spans
) -> None:
    @arttrace.trajectory
    def main() -> str:
        sent = outgoing_context()
        assert sent is not None
        return sent.text()

    given = main()
    before = otel_context.attach(baggage.set_baggage(BAGGAGE, given))
    try:
        with shown(tracer, ASKED | {"gen_ai.request.model": "m"}, {}):
            ask(client, "one")
        with shown(tracer, ASKED, ANSWERED):
            pass
    finally:
        otel_context.detach(before)
    (run,) = build_trajectories(spans())
    assert sorted(str(placed.call.request_model) for placed in run.calls) == ["claude", "m"]


def test_a_routed_call_in_a_pool_is_the_same(
    tracer: Tracer, client: openai.OpenAI, server: ScriptedServer, spans: Spans
) -> None:
    with serve_script(answer) as policy, arttrace.route("m", to="p", base_url=policy.url):

        @arttrace.trajectory
        def main() -> None:
            with ThreadPoolExecutor(1) as pool, shown(tracer, ASKED | {"gen_ai.request.model": "m"}, {}):
                pool.submit(ask, client, "one").result()

        main()
    assert [placed.call.request_model for run in build_trajectories(spans()) for placed in run.calls] == ["p"]


def test_a_span_that_counts_the_cache_apart_is_of_the_very_call(tracer: Tracer, spans: Spans) -> None:
    """OpenLLMetry's of Bedrock's calls: it leaves cached tokens out of a prompt's, and has thoughts in the text."""

    @arttrace.trajectory
    def main() -> None:
        asked = ASKED | {"gen_ai.request.model": "m"}
        told = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "<thought/>Let me look."}]}])
        counted = {"gen_ai.usage.input_tokens": USAGE["inputTokens"], "gen_ai.usage.output_tokens": 4}
        with serve_bedrock() as bedrock, shown(tracer, asked, counted | {"gen_ai.output.messages": told}):
            keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "eu-west-1"}
            client = boto3.Session(**keys).client("bedrock-runtime", endpoint_url=bedrock.url)
            client.converse(modelId="m", messages=[{"role": "user", "content": [{"text": "Rome?"}]}])

    main()
    assert models(spans()) == ["m"]
