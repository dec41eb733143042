"""Runs programs that stream, instrumented by Logfire, and writes what it exports as OTLP/JSON.

    python make_logfire.py OUT.json

`logfire_streams.json` of this folder was made so, in an environment with logfire-sdk 5.4.0, genai-prices 0.2.3,
openai 3.51.0 and anthropic 2.10.0, against the stand-ins of tests/support; `logfire_4.json`, with the last two
programs, in one with logfire 4.41.0, genai-prices 0.2.3, openai 2.54.0 and anthropic 0.125.0. Each program is a trace
of its own, named by its root; ids and times differ from run to run.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

import anthropic
import logfire
import openai
from make import write
from messages_server import serve_messages
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted_server import Reply, serve_script


def chat(text):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": text}]
    return {"model": "gpt-4o", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}


def plain(server, client):
    asked = chat("one")
    del asked["stream"], asked["stream_options"]
    client.chat.completions.create(**asked)


def stream(server, client):
    list(client.chat.completions.create(**chat("one")))


def generator(server, client):
    def words():
        yield from client.chat.completions.create(**chat("one"))

    list(words())


def async_stream(server, client):
    async def main():
        async with openai.AsyncOpenAI(base_url=server.url, api_key="x") as other:
            return [chunk async for chunk in await other.chat.completions.create(**chat("one"))]

    asyncio.run(main())


def responses(server, client):
    list(client.responses.create(model="gpt-4o", instructions="Be kind.", input="one", stream=True))


def broken_off(server, client):
    chunks = iter(client.chat.completions.create(**chat("one two three")))
    next(chunks), next(chunks)
    chunks.close()


def parallel(server, client):
    begun = threading.Barrier(2)

    def one():
        answer = client.chat.completions.create(**chat("one"))
        begun.wait()
        list(answer)

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(one,)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def retry(server, client):
    server.failures[:] = [500]
    with contextlib.suppress(openai.InternalServerError):
        client.chat.completions.create(**chat("one"))
    list(client.chat.completions.create(**chat("one")))
    list(client.chat.completions.create(**chat("one")))


def never_read(server, client):
    unread = client.chat.completions.create(**chat("one"))
    list(client.chat.completions.create(**chat("one")))
    unread.response.close()


def anthropic_stream(server, client):
    with serve_messages() as messages:
        other = anthropic.Anthropic(base_url=messages.url, api_key="x")
        asked = {"model": "claude", "max_tokens": 9, "system": "Be kind."}
        with other.messages.stream(**asked, messages=[{"role": "user", "content": "one"}]) as answer:
            answer.get_final_message()


def anthropic_plain(server, client):
    weather = {"name": "weather", "description": "It.", "input_schema": {"type": "object"}}
    use = {"type": "tool_use", "id": "t0", "name": "weather", "input": {"town": "Oslo"}}
    told = {"type": "tool_result", "tool_use_id": "t0", "content": "snow"}
    history = [("user", "one"), ("assistant", [use]), ("user", [told])]
    messages_asked = [{"role": role, "content": content} for role, content in history]
    with serve_messages() as messages:
        other = anthropic.Anthropic(base_url=messages.url, api_key="x")
        asked = {"model": "claude", "max_tokens": 9, "temperature": 0.5, "system": "Be kind.", "tools": [weather]}
        other.messages.create(**asked, messages=messages_asked)


def responses_plain(server, client):
    client.responses.create(model="gpt-4o", instructions="Be kind.", input="one")


def scrubbed(value):
    """Without what says where it was made."""
    if isinstance(value, list):
        return [scrubbed(item) for item in value if not (isinstance(item, dict) and _says_where(item.get("key", "")))]
    return {key: scrubbed(item) for key, item in value.items()} if isinstance(value, dict) else value


def _says_where(name):
    return name.startswith(("code.", "process.", "host.", "os.")) or name in ("exception.stacktrace", "service.version")


PROGRAMS = (
    *(plain, stream, generator, async_stream, responses, broken_off, parallel, retry, never_read, anthropic_stream),
    *(anthropic_plain, responses_plain),
)

if __name__ == "__main__":
    exporter = InMemorySpanExporter()
    logfire.configure(
        service_name="agent",
        inspect_arguments=False,
        send_to_logfire=False,
        console=False,
        metrics=False,
        additional_span_processors=[SimpleSpanProcessor(exporter)],
    )
    logfire.instrument_openai()
    logfire.instrument_anthropic()
    with serve_script(lambda asked: Reply("seen " + asked.users[-1])) as server:
        client = openai.OpenAI(base_url=server.url, api_key="x", max_retries=0)
        for program in PROGRAMS:
            with logfire.span(program.__name__):
                program(server, client)
    write(exporter.get_finished_spans(), sys.argv[1])
    out = Path(sys.argv[1])
    out.write_text(json.dumps(scrubbed(json.loads(out.read_text())), indent=1, ensure_ascii=False) + "\n")
