"""Runs an agent of Anthropic's client under another SDK's instrumentation and writes what it exports as OTLP/JSON.

    python make_anthropic.py KIND OUT.json      KIND: openinference, openllmetry

Each file `anthropic_*` of this folder was made so, in an environment with the packages named at KIND below, those
that end in `_old` with the older ones. Ids and times differ from run to run.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

from make import FUNCTIONS, provider, write
from messages_server import serve_messages

TOOLS = [
    {"name": "look", "description": "Look up.", "input_schema": {"type": "object"}},
    {"name": "add", "description": "Add.", "input_schema": {"type": "object"}},
]
ANSWERS = [
    {
        "content": [
            {"type": "thinking", "thinking": "Both at once.", "signature": "sig"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_a", "name": "look", "input": {"q": "x"}},
            {"type": "tool_use", "id": "toolu_b", "name": "add", "input": {"a": 1, "b": 2}},
        ],
        "stop_reason": "tool_use",
    },
    {"content": [{"type": "text", "text": "x is 3."}], "stop_reason": "end_turn"},
]


def run_agent(client):
    """Two calls: the first asks for two tools, the second answers with their results."""
    asked = {"model": "claude", "max_tokens": 64, "system": "You look things up.", "tools": TOOLS}
    messages = [{"role": "user", "content": "what is x?"}]
    first = client.messages.create(messages=messages, **asked)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": FUNCTIONS[block.name](**block.input)}
        for block in first.content
        if block.type == "tool_use"
    ]
    messages += [{"role": "assistant", "content": first.content}]
    messages += [{"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]}]
    return client.messages.create(messages=messages, **asked).content[-1].text


def openinference(client):  # openinference-instrumentation-anthropic 3.1.0, anthropic 2.14.0; 0.1.20, 0.125.0
    from openinference.instrumentation import OITracer, TraceConfig
    from openinference.instrumentation.anthropic import AnthropicInstrumentor

    made, exporter = provider()
    AnthropicInstrumentor().instrument(tracer_provider=made)
    tracer = OITracer(made.get_tracer("agent"), config=TraceConfig())
    tracer.agent(name="researcher")(lambda question: run_agent(client))("what is x?")
    return exporter.get_finished_spans()


def openllmetry(client):  # opentelemetry-instrumentation-anthropic 0.62.4, anthropic 2.14.0; 0.40.14, 0.125.0
    from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor

    made, exporter = provider()
    AnthropicInstrumentor().instrument(tracer_provider=made)
    with made.get_tracer("opentelemetry.instrumentation.traceloop").start_as_current_span("researcher.agent") as span:
        span.set_attribute("traceloop.span.kind", "agent")
        span.set_attribute("traceloop.entity.name", "researcher")
        run_agent(client)
    return exporter.get_finished_spans()


if __name__ == "__main__":
    kind, out = sys.argv[1:]
    from anthropic import Anthropic

    with serve_messages() as server:
        server.answers += [{"usage": {"input_tokens": 7, "output_tokens": 5}, **answer} for answer in ANSWERS]
        client = Anthropic(base_url=server.url, api_key="x")
        write(globals()[kind](client), out)
