"""Runs one tool loop with a client of each API under another SDK's instrumentation and writes it as OTLP/JSON.

    python make_loops.py API SDK OUT.json

API is anthropic, responses, gemini, bedrock or langchain, SDK openinference or
openllmetry, of langchain also langfuse and langsmith, of responses also genai; litellm is both.

Each file `API_SDK.json` of this folder was made so, in an environment with the packages named below, those that end in
`_old` with the older ones. Ids and times differ from run to run.

openinference: openinference-instrumentation-anthropic 3.1.0 (old: 0.1.20), -openai 0.1.66, -google-genai 1.4.14
openllmetry: opentelemetry-instrumentation-anthropic 0.62.4 (old: 0.40.14), -openai 0.62.4, -google-generativeai 0.62.4
genai: opentelemetry-instrumentation-genai-openai 1.3b0; -openai-v2 2.4b0 makes no spans of responses
langchain: langchain 1.5.2, langchain-anthropic 1.7.10, its instrumentations (0.1.80, 0.62.4), langfuse 5.0.4,
    langsmith 0.15.1
bedrock: boto3 1.44.8, openinference-instrumentation-bedrock 0.1.61, opentelemetry-instrumentation-bedrock 0.62.4
litellm: 1.109.1, whose own callback writes spans
clients: anthropic 2.14.0 (old: 0.125.0), openai 3.57.0, google-genai 3.6.1 (openllmetry: 2)
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

from make import FUNCTIONS, provider, write

SYSTEM, QUESTION, FURTHER = "You look things up.", "what is x?", "Go on."
DESCRIBED = {"look": "Look up.", "add": "Add."}
THOUGHT, TEXT, ANSWER = "Both at once.", "I look.", "x is 3."
CALLS = {"look": {"q": "x"}, "add": {"a": 1, "b": 2}}


@contextmanager
def serving(answers):
    """The address of a server that gives these answers, one after the other."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            body = json.dumps(answers.pop(0)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def anthropic_answers():
    message = {"type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    message["usage"] = {"input_tokens": 7, "output_tokens": 5}
    calls = [{"type": "tool_use", "id": f"call_{name}", "name": name, "input": asked} for name, asked in CALLS.items()]
    thought = {"type": "thinking", "thinking": THOUGHT, "signature": "sig"}
    first = [thought, {"type": "text", "text": TEXT}, *calls]
    yield {**message, "id": "msg_1", "stop_reason": "tool_use", "content": first}
    yield {**message, "id": "msg_2", "stop_reason": "end_turn", "content": [{"type": "text", "text": ANSWER}]}


def run_anthropic(url):
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="x")
    tools = [
        {"name": name, "description": said, "input_schema": {"type": "object"}} for name, said in DESCRIBED.items()
    ]
    asked = {"model": "m", "max_tokens": 64, "system": SYSTEM, "tools": tools}
    messages = [{"role": "user", "content": QUESTION}]
    first = client.messages.create(messages=messages, **asked)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": FUNCTIONS[block.name](**block.input)}
        for block in first.content
        if block.type == "tool_use"
    ]
    messages += [{"role": "assistant", "content": first.content}]
    messages += [{"role": "user", "content": [*results, {"type": "text", "text": FURTHER}]}]
    client.messages.create(messages=messages, **asked)


def responses_answers():
    usage = {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    response = {"object": "response", "created_at": 1, "model": "m", "status": "completed", "usage": usage}
    response |= {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}

    def said(id, text):
        part = {"type": "output_text", "text": text, "annotations": []}
        return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": [part]}

    calls = [
        {
            "type": "function_call",
            "id": f"fc_{name}",
            "call_id": f"call_{name}",
            "name": name,
            "arguments": json.dumps(asked),
            "status": "completed",
        }
        for name, asked in CALLS.items()
    ]
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": THOUGHT}]}
    yield {**response, "id": "resp_1", "output": [thought, said("msg_1", TEXT), *calls]}
    yield {**response, "id": "resp_2", "output": [said("msg_2", ANSWER)]}


def run_responses(url):
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="x")
    tools = [
        {"type": "function", "name": name, "description": said, "parameters": {"type": "object"}}
        for name, said in DESCRIBED.items()
    ]
    asked = {"model": "m", "instructions": SYSTEM, "tools": tools}
    items = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(input=items, **asked)
    items += first.output
    for item in first.output:
        if item.type == "function_call":
            output = FUNCTIONS[item.name](**json.loads(item.arguments))
            items.append({"type": "function_call_output", "call_id": item.call_id, "output": output})
    client.responses.create(input=[*items, {"role": "user", "content": FURTHER}], **asked)


def gemini_answers():
    about = {"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 5, "totalTokenCount": 12}}
    about["modelVersion"] = "m"

    def candidates(*parts):
        return [{"content": {"role": "model", "parts": [*parts]}, "finishReason": "STOP", "index": 0}]

    calls = [{"functionCall": {"name": name, "args": asked}} for name, asked in CALLS.items()]
    yield {**about, "candidates": candidates({"text": THOUGHT, "thought": True}, {"text": TEXT}, *calls)}
    yield {**about, "candidates": candidates({"text": ANSWER})}


def run_gemini(url):
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="x", http_options={"base_url": url})
    declared = [
        types.FunctionDeclaration(name=name, description=said, parameters_json_schema={"type": "object"})
        for name, said in DESCRIBED.items()
    ]
    config = types.GenerateContentConfig(
        system_instruction=SYSTEM,
        tools=[types.Tool(function_declarations=declared)],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    contents = [types.Content(role="user", parts=[types.Part(text=QUESTION)])]
    first = client.models.generate_content(model="m", contents=contents, config=config).candidates[0].content
    asked = [part.function_call for part in first.parts if part.function_call]
    results = [
        types.Part.from_function_response(name=call.name, response={"result": FUNCTIONS[call.name](**call.args)})
        for call in asked
    ]
    contents += [first, types.Content(role="user", parts=results)]
    contents.append(types.Content(role="user", parts=[types.Part(text=FURTHER)]))
    client.models.generate_content(model="m", contents=contents, config=config)


def bedrock_answers():
    about = {"usage": {"inputTokens": 7, "outputTokens": 5, "totalTokens": 12}, "metrics": {"latencyMs": 1}}
    thought = {"reasoningContent": {"reasoningText": {"text": THOUGHT, "signature": "sig"}}}
    calls = [{"toolUse": {"toolUseId": f"call_{name}", "name": name, "input": asked}} for name, asked in CALLS.items()]
    first = {"role": "assistant", "content": [thought, {"text": TEXT}, *calls]}
    yield {**about, "stopReason": "tool_use", "output": {"message": first}}
    yield {
        **about,
        "stopReason": "end_turn",
        "output": {"message": {"role": "assistant", "content": [{"text": ANSWER}]}},
    }


def run_bedrock(url):
    import boto3

    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    client = boto3.client("bedrock-runtime", endpoint_url=url, **keys)
    schema = {"json": {"type": "object"}}
    tools = [
        {"toolSpec": {"name": name, "description": said, "inputSchema": schema}} for name, said in DESCRIBED.items()
    ]
    asked = {"modelId": "m", "system": [{"text": SYSTEM}], "toolConfig": {"tools": tools}}
    messages = [{"role": "user", "content": [{"text": QUESTION}]}]
    first = client.converse(messages=messages, **asked)["output"]["message"]
    results = [
        {"toolResult": {"toolUseId": use["toolUseId"], "content": [{"text": FUNCTIONS[use["name"]](**use["input"])}]}}
        for use in [block["toolUse"] for block in first["content"] if "toolUse" in block]
    ]
    messages += [first, {"role": "user", "content": [*results, {"text": FURTHER}]}]
    client.converse(messages=messages, **asked)


langchain_answers = anthropic_answers
CALLBACKS = []


def litellm_answers():
    about = {"object": "chat.completion", "created": 1, "model": "m"}
    about["usage"] = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}

    def choices(reason, **message):
        return [{"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message}}]

    calls = [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(asked)}}
        for name, asked in CALLS.items()
    ]
    yield {**about, "id": "c1", "choices": choices("tool_calls", content=TEXT, tool_calls=calls)}
    yield {**about, "id": "c2", "choices": choices("stop", content=ANSWER)}


def run_litellm(url):
    import asyncio

    import litellm

    tools = [
        {"type": "function", "function": {"name": name, "description": said, "parameters": {"type": "object"}}}
        for name, said in DESCRIBED.items()
    ]
    asked = {"model": "openai/m", "api_base": url, "api_key": "x", "tools": tools}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]

    async def run():
        first = (await litellm.acompletion(messages=messages, **asked)).choices[0].message
        results = [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": FUNCTIONS[call.function.name](**json.loads(call.function.arguments)),
            }
            for call in first.tool_calls
        ]
        further = [first.model_dump(exclude_none=True), *results, {"role": "user", "content": FURTHER}]
        await litellm.acompletion(messages=[*messages, *further], **asked)
        await asyncio.sleep(2)  # its callbacks run in the background

    asyncio.run(run())


class LiteLLM:
    """Its own callback, which makes spans by a provider of its own."""

    def instrument(self, tracer_provider):
        import litellm
        from litellm.integrations.opentelemetry import OpenTelemetry, OpenTelemetryConfig

        litellm.callbacks = [OpenTelemetry(config=OpenTelemetryConfig(exporter=exporter))]


class LangSmith:
    """Its tracer, which LangChain calls by itself, with spans in the place of its own service."""

    def instrument(self, tracer_provider):
        from opentelemetry import trace

        names = ("LANGSMITH_OTEL_ENABLED", "LANGSMITH_OTEL_ONLY", "LANGSMITH_TRACING")
        os.environ |= {**dict.fromkeys(names, "true"), "LANGSMITH_API_KEY": "x"}
        os.environ["LANGSMITH_ENDPOINT"] = "http://127.0.0.1:9"
        trace.set_tracer_provider(tracer_provider)


class Langfuse:
    """Its handler for LangChain in the place of an instrumentation."""

    def instrument(self, tracer_provider):
        from langfuse import Langfuse
        from langfuse.langchain import CallbackHandler

        Langfuse(public_key="pk", secret_key="sk", base_url="http://127.0.0.1:9", tracer_provider=tracer_provider)
        CALLBACKS.append(CallbackHandler())


def run_langchain(url):
    from langchain.agents import create_agent
    from langchain_anthropic import ChatAnthropic

    def look(q: str) -> str:
        """Look up."""
        return FUNCTIONS["look"](q)

    def add(a: int, b: int) -> str:
        """Add."""
        return FUNCTIONS["add"](a, b)

    model = ChatAnthropic(model="m", base_url=url, api_key="x", max_tokens=64)
    agent = create_agent(model, [look, add], system_prompt=SYSTEM)
    agent.invoke({"messages": [{"role": "user", "content": QUESTION}]}, config={"callbacks": CALLBACKS})
    time.sleep(3)  # LangSmith's tracer runs in the background


def instrumentor(api, sdk):
    if own := {"langfuse": Langfuse, "langsmith": LangSmith, "litellm": LiteLLM}.get(sdk):
        found = own
    elif sdk == "genai":
        from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor as found
    elif api == "langchain" and sdk == "openinference":
        from openinference.instrumentation.langchain import LangChainInstrumentor as found
    elif api == "langchain":
        from opentelemetry.instrumentation.langchain import LangchainInstrumentor as found
    elif api == "bedrock" and sdk == "openinference":
        from openinference.instrumentation.bedrock import BedrockInstrumentor as found
    elif api == "bedrock":
        from opentelemetry.instrumentation.bedrock import BedrockInstrumentor as found
    elif sdk == "openinference" and api == "anthropic":
        from openinference.instrumentation.anthropic import AnthropicInstrumentor as found
    elif sdk == "openinference" and api == "responses":
        from openinference.instrumentation.openai import OpenAIInstrumentor as found
    elif sdk == "openinference":
        from openinference.instrumentation.google_genai import GoogleGenAIInstrumentor as found
    elif api == "anthropic":
        from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor as found
    elif api == "responses":
        from opentelemetry.instrumentation.openai import OpenAIInstrumentor as found
    else:
        from opentelemetry.instrumentation.google_generativeai import GoogleGenerativeAiInstrumentor as found
    return found()


if __name__ == "__main__":
    api, sdk, out = sys.argv[1:]
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "span_only"
    made, exporter = provider()
    instrumentor(api, sdk).instrument(tracer_provider=made)
    with serving(list(globals()[f"{api}_answers"]())) as url:
        if api == "litellm":  # it would write on this span, in the place of its own
            run_litellm(url)
        else:
            with made.get_tracer("agent").start_as_current_span("invoke_agent researcher") as span:
                span.set_attribute("gen_ai.operation.name", "invoke_agent")
                span.set_attribute("gen_ai.agent.name", "researcher")
                globals()[f"run_{api}"](url)
    write(exporter.get_finished_spans(), out)
