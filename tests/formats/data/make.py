"""Runs one tool-calling agent under another SDK's instrumentation and writes what it exports as OTLP/JSON.

    python make.py KIND OUT.json

KIND is openinference, openinference_twice, openllmetry, openai_v2, langfuse or arttrace.

Each file of this folder was made so, in an environment with the packages named at KIND below, against
tests/support/chat_server.py. Ids and times differ from run to run.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from chat_server import serve

TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Look up.", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}},
]


def look(q):
    return f"page {q}"


def add(a, b):
    return str(a + b)


FUNCTIONS = {"look": look, "add": add}


def run_agent(client, tool, model="gpt-4o"):
    """Two calls: the first asks for two tools, the second answers with their results."""
    messages = [{"role": "system", "content": "You look things up."}, {"role": "user", "content": "what is x?"}]
    first = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, temperature=1.0, max_tokens=64)
    answer = first.choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    for call in answer.tool_calls:
        output = tool(call.function.name, json.loads(call.function.arguments), call.id)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    second = client.chat.completions.create(model=model, messages=messages, temperature=1.0, max_tokens=64)
    return second.choices[0].message.content


def provider():
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    made = TracerProvider(resource=Resource.create({"service.name": "agent"}))
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made, exporter


def openinference(client):  # openinference-instrumentation-openai 0.1.66, openai 3.54.0
    from openinference.instrumentation import OITracer, TraceConfig
    from openinference.instrumentation.openai import OpenAIInstrumentor

    made, exporter = provider()
    OpenAIInstrumentor().instrument(tracer_provider=made)
    tracer = OITracer(made.get_tracer("agent"), config=TraceConfig())

    def tool(name, arguments, id):
        return tracer.tool(name=name)(FUNCTIONS[name])(**arguments)

    @tracer.agent(name="researcher")
    def agent(question):
        return run_agent(client, tool)

    agent("what is x?")
    return exporter.get_finished_spans()


def openinference_twice(client):  # openinference-instrumentation-openai 0.1.66, -litellm 0.1.51, litellm 1.109.1
    import litellm
    from openinference.instrumentation.litellm import LiteLLMInstrumentor
    from openinference.instrumentation.openai import OpenAIInstrumentor

    made, exporter = provider()
    OpenAIInstrumentor().instrument(tracer_provider=made)
    LiteLLMInstrumentor().instrument(tracer_provider=made)
    asked = {"model": "openai/gpt-4o", "api_base": str(client.base_url), "api_key": "x"}
    messages = [{"role": "user", "content": "what is x?"}]
    with made.get_tracer("agent").start_as_current_span("researcher"):
        litellm.completion(**asked, messages=messages)
        list(litellm.completion(**asked, messages=messages, stream=True))
    return exporter.get_finished_spans()


def openllmetry(client):  # opentelemetry-instrumentation-openai 0.62.4; agent and tools by hand, in its conventions
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    made, exporter = provider()
    OpenAIInstrumentor().instrument(tracer_provider=made)
    tracer = made.get_tracer("opentelemetry.instrumentation.traceloop")

    def entity(kind, name, given, run):
        with tracer.start_as_current_span(f"{name}.{kind}") as span:
            span.set_attribute("traceloop.span.kind", kind)
            span.set_attribute("traceloop.entity.name", name)
            span.set_attribute("traceloop.entity.input", json.dumps(given))
            output = run()
            span.set_attribute("traceloop.entity.output", json.dumps(output))
            return output

    def tool(name, arguments, id):
        return entity("tool", name, {"args": [], "kwargs": arguments}, lambda: FUNCTIONS[name](**arguments))

    entity("agent", "researcher", {"args": ["what is x?"], "kwargs": {}}, lambda: run_agent(client, tool))
    return exporter.get_finished_spans()


def openai_v2(client):  # opentelemetry-instrumentation-openai-v2 2.4b0; agent and tools by hand, in its conventions
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor

    made, exporter = provider()
    OpenAIInstrumentor().instrument(tracer_provider=made)
    tracer = made.get_tracer("agent")

    def tool(name, arguments, id):
        with tracer.start_as_current_span(f"execute_tool {name}") as span:
            span.set_attribute("gen_ai.operation.name", "execute_tool")
            span.set_attribute("gen_ai.tool.name", name)
            span.set_attribute("gen_ai.tool.call.id", id)
            span.set_attribute("gen_ai.tool.call.arguments", json.dumps(arguments))
            output = FUNCTIONS[name](**arguments)
            span.set_attribute("gen_ai.tool.call.result", output)
            return output

    with tracer.start_as_current_span("invoke_agent researcher") as span:
        span.set_attribute("gen_ai.operation.name", "invoke_agent")
        span.set_attribute("gen_ai.agent.name", "researcher")
        run_agent(client, tool)
    return exporter.get_finished_spans()


def langfuse(client):  # langfuse 5.0.4, openai 3.51.0
    made, exporter = provider()
    from langfuse import Langfuse, observe
    from langfuse.openai import OpenAI

    Langfuse(public_key="pk", secret_key="sk", base_url="http://127.0.0.1:9", tracer_provider=made)
    traced = OpenAI(base_url=str(client.base_url), api_key="x")

    def tool(name, arguments, id):
        return observe(name=name, as_type="tool")(FUNCTIONS[name])(**arguments)

    @observe(name="researcher", as_type="agent")
    def agent(question):
        return run_agent(traced, tool)

    agent("what is x?")
    return exporter.get_finished_spans()


def arttrace(client, out):  # what arttrace itself captures of the same program
    import tempfile

    import spool

    import arttrace as sdk

    with tempfile.TemporaryDirectory() as folder:
        sdk.init(dir=folder)

        def tool(name, arguments, id):
            return sdk.tool(FUNCTIONS[name])(**arguments)

        @sdk.trajectory
        def researcher(question):
            return run_agent(client, tool)

        researcher("what is x?")
        sdk.flush()
        from arttrace.records.record import encode_record

        lines = [encode_record(span).decode() for span in spool.read_spans(Path(folder))]
        Path(out).write_text("\n".join(lines) + "\n")


def write(spans, out):
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    def hexed(value):
        if isinstance(value, list):
            return [hexed(item) for item in value]
        if isinstance(value, dict):
            ids = ("traceId", "spanId", "parentSpanId")
            return {k: base64.b64decode(v).hex() if k in ids else hexed(v) for k, v in value.items()}
        return value

    Path(out).write_text(
        json.dumps(hexed(MessageToDict(encode_spans(spans), use_integers_for_enums=True)), indent=1, ensure_ascii=False)
        + "\n"
    )


if __name__ == "__main__":
    kind, out = sys.argv[1:]
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental" if kind == "openai_v2" else ""
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "span_only" if kind == "openai_v2" else "true"
    from openai import OpenAI

    with serve() as server:
        client = OpenAI(base_url=server.url, api_key="x")
        if kind == "arttrace":
            arttrace(client, out)
        else:
            write(globals()[kind](client), out)
