"""Made phoenix_spans.json and phoenix_frame.parquet: two runs of an agent, traced by OpenInference's instrumentation of
the openai client, sent over OTLP to a Phoenix server, and exported by Phoenix's own client (arize-phoenix 20.26.1,
arize-phoenix-client 3.5.0, openinference-instrumentation-openai 0.1.66). The model is the stand-in of tests/support.

    pip install arize-phoenix openinference-instrumentation-openai openai
    phoenix serve &
    PYTHONPATH=tests/support python tests/formats/data/make_phoenix.py http://127.0.0.1:6006
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from chat_server import serve
from openai import OpenAI
from openinference.instrumentation import OITracer, TraceConfig, using_attributes
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from phoenix.client import Client

HERE = Path(__file__).parent
PARAMETERS = {"look": {"q": "string"}, "add": {"a": "integer", "b": "integer"}}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {one: {"type": type} for one, type in given.items()}},
        },
    }
    for name, given in PARAMETERS.items()
]


def main(phoenix: str) -> None:
    provider = TracerProvider(resource=Resource({"openinference.project.name": "travel"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{phoenix}/v1/traces")))
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    tracer = OITracer(provider.get_tracer("travel"), config=TraceConfig())

    @tracer.tool(name="look")
    def look(q: str) -> str:
        return f"found {q}"

    @tracer.tool(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @tracer.agent(name="travel")
    def run(task: str) -> str | None:
        messages: list[Any] = [{"role": "system", "content": "You help."}, {"role": "user", "content": task}]
        asked = client.chat.completions.create(model="gpt-4o-mini", messages=messages, tools=TOOLS, temperature=0.5)
        answer = asked.choices[0].message
        messages.append(answer.model_dump(exclude_none=True))
        for call in answer.tool_calls or []:
            result = {"look": look, "add": add}[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
        shown = client.chat.completions.create(model="gpt-4o-mini", messages=messages, tools=TOOLS)
        if task == "nowhere":
            raise ValueError("no such place")
        return shown.choices[0].message.content

    with serve() as server:
        client = OpenAI(base_url=server.url, api_key="none")
        for task in ("to Rome", "nowhere"):
            with using_attributes(session_id="s-1", user_id="ada", metadata={"plan": "free"}, tags=["trip"]):
                try:
                    run(task)
                except ValueError:
                    print(f"{task}: failed, as it should")
    provider.force_flush()
    time.sleep(3)  # Phoenix stores them in the background
    exported = Client(base_url=phoenix).spans
    spans: list[Any] = list(exported.get_spans(project_identifier="travel", limit=100))
    frame = exported.get_spans_dataframe(project_identifier="travel")
    for events in [*(span.get("events") or [] for span in spans), *frame["events"]]:
        for event in events:
            event["attributes"]["exception.stacktrace"] = "left out"
    (HERE / "phoenix_spans.json").write_text(json.dumps(spans, indent=1) + "\n")
    frame.to_parquet(HERE / "phoenix_frame.parquet")


if __name__ == "__main__":
    main(sys.argv[1])
