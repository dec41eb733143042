"""Runs agents under W&B Weave and writes their calls as Weave gives them out, beside what arttrace captured of them.

    WF_TRACE_SERVER_URL=http://127.0.0.1:PORT WANDB_API_KEY=... python make_weave.py FOLDER KIND

KIND is all, langchain or logger.

weave 0.54.0 with openai 3.51.0, anthropic 2.10.0, litellm 1.109.1, google-genai 3.6.1; langchain 1.5.2 with
langchain-anthropic 1.7.10. The trace server was the one that weave 0.52.20 has on SQLite, behind the routes of its REST
API that weave asks for. Ids and times differ from run to run; what Weave says of the machine and the paths in
tracebacks are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

import trio  # noqa: F401 - eventlet, which another package brings, takes its sockets where it comes first
import weave
from chat_server import serve
from make import FUNCTIONS, TOOLS, run_agent
from make_loops import (
    anthropic_answers,
    gemini_answers,
    langchain_answers,
    litellm_answers,
    responses_answers,
    run_anthropic,
    run_gemini,
    run_langchain,
    run_litellm,
    run_responses,
    serving,
)
from messages_server import serve_messages
from openai import APIStatusError, AsyncOpenAI, OpenAI
from weave.integrations.patch import patch_google_genai

import arttrace

PROJECT, CHAIN, LOGGED = "team/agents", "team/chain", "team/logged"
AS_TEXT = ("researcher", "plainly", "claude", "responder", "gemini")
"""The agents whose calls are written as `get_calls` gives them as well."""


def traced(name, kind="agent"):
    """A function that both record: weave as an op, arttrace as an agent or a tool."""
    ours = arttrace.tool if kind == "tool" else arttrace.trajectory
    return lambda function: weave.op(name=name, kind=kind)(ours(name=name)(function))


def tool(name, arguments, id):
    return traced(name, "tool")(FUNCTIONS[name])(**arguments)


@traced("researcher")
def researcher(client, question):
    return run_agent(client, tool)


@traced("streamer")
def streamer(client, question):
    messages = [{"role": "user", "content": question}]
    asked = {"model": "gpt-4o", "stream": True, "stream_options": {"include_usage": True}}
    parts = client.chat.completions.create(messages=messages, **asked)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in parts if chunk.choices)
    for _ in client.chat.completions.create(messages=messages, tools=TOOLS, **asked):
        pass
    for _ in client.chat.completions.create(messages=messages, **asked):
        break  # an answer that nobody reads to its end
    return text


@traced("sub")
async def sub(client, topic):
    messages = [{"role": "user", "content": f"about {topic}"}]
    done = await client.chat.completions.create(model="gpt-4o", messages=messages, top_p=0.9, seed=7, n=2)
    return done.choices[0].message.content


@traced("planner")
async def planner(client, topics):
    return await asyncio.gather(*(sub(client, topic) for topic in topics))


@traced("retrier")
def retrier(client, question):
    messages = [{"role": "user", "content": question}]
    try:
        client.chat.completions.create(model="gpt-4o", messages=messages)
    except APIStatusError:
        return client.chat.completions.create(model="gpt-4o", messages=messages).choices[0].message.content


@traced("fallen")
def fallen(client, question):
    client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": question}])


@traced("chatter")
def chatter(client, messages):
    done = client.chat.completions.create(model="gpt-4o", messages=messages)
    return [*messages, {"role": "assistant", "content": done.choices[0].message.content}]


@traced("claude")
def claude(url):
    run_anthropic(url)


@traced("claude streamed")
def claude_streamed(url):
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="x")
    asked = {"model": "claude", "max_tokens": 64, "messages": [{"role": "user", "content": "weather?"}]}
    for _ in client.messages.create(stream=True, **asked):
        pass
    with client.messages.stream(**asked) as stream:
        return stream.get_final_message().content[1].text


@traced("responder")
def responder(url):
    run_responses(url)


@traced("gateway")
def gateway(url):
    run_litellm(url)


@traced("gemini")
def gemini(url):
    run_gemini(url)


@weave.op
def add(a, b):
    return FUNCTIONS["add"](a, b)


@weave.op
def ask(client, messages, **more):
    return client.chat.completions.create(model="gpt-4o", messages=messages, **more).choices[0].message


@weave.op
@arttrace.trajectory(name="plain")
def plainly(client, question):
    """Of ops that say no kind: one around a call, one that is a tool."""
    messages = [{"role": "user", "content": question}]
    answer = ask(client, messages, tools=TOOLS, extra_body={"return_token_ids": True})
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": arttrace.tool(add)(**json.loads(call.function.arguments))}
        for call in answer.tool_calls
        if call.function.name == "add"
    ]
    return ask(client, [*messages, answer, *results]).content


def rate(output):
    return {"right": "about" in output, "length": 0.25}


async def evaluate(client):
    """A project's evaluation: two examples, twice each."""
    rows = [{"topic": "apples"}, {"topic": "beans"}]

    @weave.op
    @arttrace.trajectory(name="predict")
    async def predict(topic):
        return await sub(client(), topic)

    return await weave.Evaluation(dataset=rows, scorers=[weave.op(rate)], trials=2).evaluate(predict)


def run(server):
    client = OpenAI(base_url=server.url, api_key="x", max_retries=0)

    def other():
        return AsyncOpenAI(base_url=server.url, api_key="x")

    _, call = researcher.call(client, "what is x?")
    call.feedback.add_reaction("👍")
    call.feedback.add_note("well done")
    call.feedback.add("correctness", {"value": 0.5})
    call.feedback.add("tone", {"value": "kind"})
    streamer(client, "hello there friend")
    asyncio.run(planner(other(), ["apples", "beans"]))
    server.failures.append((500, b'{"error": {"message": "engine died", "type": "server_error"}}'))
    retrier(client, "again?")
    server.failures.append((429, b'{"error": {"message": "slow down", "type": "rate_limit"}}'))
    with contextlib.suppress(APIStatusError):
        fallen(client, "and now?")
    with weave.thread("talk-1"), weave.attributes({"customer": "ada"}):
        messages = chatter(client, [{"role": "user", "content": "one"}])
        chatter(client, [*messages, {"role": "user", "content": "two"}])
    plainly(client, "one and two?")
    agents = (
        (claude, anthropic_answers),
        (responder, responses_answers),
        (gateway, litellm_answers),
        (gemini, gemini_answers),
    )
    for agent, answers in agents:
        with serving(list(answers())) as url:
            agent(url)
    with serve_messages() as messages_server:
        claude_streamed(messages_server.url)
    asyncio.run(evaluate(other))


def plain(value):
    """As a program may write what `to_dict` gives: a time in ISO form, an object of Weave's as the text that it has."""
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)


def scrubbed(call):
    """A call without what it says of the machine."""
    about = call["attributes"]["weave"]
    for name in ("sys_version", "os_name", "os_version", "os_release"):
        about.pop(name)
    if call["exception"]:
        raised = json.loads(call["exception"])
        frames = [{**frame, "filename": Path(frame["filename"]).name} for frame in raised["traceback"][:1]]
        call["exception"] = json.dumps({**raised, "traceback": frames})
    return call


def write(path, calls):
    path.write_text("".join(json.dumps(scrubbed(call)) + "\n" for call in calls))


def stored(**asked):
    import httpx

    answer = httpx.post(os.environ["WF_TRACE_SERVER_URL"] + "/calls/stream_query", json=asked)
    return [json.loads(line) for line in answer.text.splitlines()]


def started(name):
    """What `weave.init` starts, without asking W&B who this is."""
    import weave.trace.weave_init as weave_init

    weave_init.get_username = lambda: None
    return weave_init.init_weave(name, ensure_project_exists=False)


def run_all(folder):
    from spool import read_spans

    from arttrace.records.record import encode_record

    with tempfile.TemporaryDirectory() as own:
        arttrace.init(dir=own)
        project = started(PROJECT)
        patch_google_genai()
        with serve() as server:
            run(server)
        project.finish()
        arttrace.flush()
        asked = {"include_feedback": True, "include_costs": True}
        given = [json.loads(json.dumps(call.to_dict(), default=plain)) for call in project.get_calls(**asked)]
        of_some = {call["trace_id"] for call in given if call["op_name"].split("/")[-1].split(":")[0] in AS_TEXT}
        write(folder / "weave_get_calls.jsonl", [call for call in given if call["trace_id"] in of_some])
        write(folder / "weave.jsonl", stored(project_id=PROJECT, **asked))
        here = f"{Path(__file__).parent}/"
        rows = [encode_record(span).decode().replace(here, "") for span in read_spans(Path(own))]
        (folder / "weave_captured.jsonl").write_text("\n".join(rows) + "\n")


def run_chain(folder):
    project = started(CHAIN)
    with serving(list(langchain_answers())) as url:
        run_langchain(url)
    project.finish()
    write(folder / "weave_langchain.jsonl", stored(project_id=CHAIN))


def run_logger(folder):
    """An evaluation that a program logs itself, with a score that it gives and one for which it asks a model."""
    project = started(LOGGED)
    with serve() as server:
        client = OpenAI(base_url=server.url, api_key="x")

        def ask(model, text):
            done = client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
            return done.choices[0].message.content

        log = weave.EvaluationLogger(model="careful", dataset="questions")
        for question in ("apples", "beans"):
            with log.log_prediction(inputs={"question": question}) as prediction:
                prediction.output = ask("gpt-4o", question)
                prediction.log_score("length", 0.25)
                with prediction.log_score("judged") as score:
                    ask("judge", f"Is this good: {prediction.output}")
                    score.value = True
        log.log_summary({"questions": 2})
    project.finish()
    write(folder / "weave_logged.jsonl", stored(project_id=LOGGED, include_feedback=True))


RUNS = {"all": run_all, "langchain": run_chain, "logger": run_logger}

if __name__ == "__main__":
    folder, kind = sys.argv[1:]
    RUNS[kind](Path(folder))
