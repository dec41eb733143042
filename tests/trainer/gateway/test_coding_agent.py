"""A coding agent's recorded requests, sent again by Anthropic's client: what the engine is asked, and what is recorded.

data/coding_agent.json is what Claude Code 2.1.197 asked under `arttrace run --policy`: to sort the imports of two
files. It reads both and lists the folder in one answer, then has two sub-agents at once count them. Its texts and the
descriptions of its tools are not there: {{NUMBER:LENGTH}} stands for each, and is filled to that length here.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from gateway_site import Site

from arttrace.store import open_store
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from trainer.gateway.messages.request import chat_request

DATA = Path(__file__).parent / "data" / "coding_agent.json"
AGENT = "x-claude-code-agent-id"


def recorded_exchanges() -> list[dict[str, Any]]:
    data = json.loads(re.sub(r"\{\{(\d+):(\d+)\}\}", lambda found: filled(*map(int, found.groups())), DATA.read_text()))
    for exchange in data["exchanges"]:
        exchange["body"]["tools"] = [data["tools"][name] for name in exchange["body"]["tools"]]
    return list(data["exchanges"])


def filled(number: int, length: int) -> str:
    return (f"text {number} " * length)[:length]


def ids_of(message: dict[str, Any]) -> list[int]:
    """A stand-in for a chat template: five token ids of a message, however its arguments are written."""
    calls = [
        (one["function"]["name"], json.loads(one["function"]["arguments"])) for one in message.get("tool_calls", ())
    ]
    said = json.dumps([message["role"], message.get("content") or "", calls], sort_keys=True)
    return [zlib.crc32(f"{position}{said}".encode()) >> 1 for position in range(5)]


def answer_of(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The engine's message for the blocks that the agent got."""
    called = [
        {
            "index": index,
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for index, block in enumerate(block for block in blocks if block["type"] == "tool_use")
    ]
    texts = "".join(block["text"] for block in blocks if block["type"] == "text")
    return {"role": "assistant", "content": texts, **({"tool_calls": called} if called else {})}


def engines_answer(number: int, chat: dict[str, Any], message: dict[str, Any]) -> tuple[int, str, bytes]:
    """As one body, or with each token in a chunk of its own."""
    prompt = [id for one in chat["messages"] for id in ids_of(one)]
    ids = ids_of(message)
    finish = "tool_calls" if "tool_calls" in message else "stop"
    head = {"id": f"chatcmpl-{number}", "model": "policy@0"}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}

    def choice(finish: str | None, ids: list[int], **said: Any) -> dict[str, Any]:
        content = [{"token": "x", "logprob": -0.5} for _ in ids]
        return {"index": 0, "finish_reason": finish, "token_ids": ids, "logprobs": {"content": content}, **said}

    if not chat.get("stream"):
        whole = {"choices": [choice(finish, ids, message=message)], "prompt_token_ids": prompt, "usage": usage}
        return 200, "application/json", json.dumps(head | whole).encode()
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": message["content"]}]
    for call in message.get("tool_calls", ()):
        name, text = call["function"]["name"], call["function"]["arguments"]
        deltas.append({"tool_calls": [{**call, "function": {"name": name, "arguments": text[:7]}}]})
        deltas.append({"tool_calls": [{"index": call["index"], "function": {"arguments": text[7:]}}]})
    made = [{**head, "choices": [choice(None, [], delta=delta)]} for delta in deltas]
    made += [{**head, "choices": [choice(None, [id], delta={})]} for id in ids]
    made[0]["prompt_token_ids"] = prompt
    made += [{**head, "choices": [choice(finish, [], delta={})]}, {**head, "choices": [], "usage": usage}]
    lines = [json.dumps(one).encode() for one in made]
    return 200, "text/event-stream", b"".join(b"data: %s\n\n" % line for line in (*lines, b"[DONE]"))


async def sent(client: anthropic.AsyncAnthropic, exchange: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks that Anthropic's client makes of the answer."""
    asked: Any = {"body": exchange["body"], "options": {"headers": exchange["headers"]}, "cast_to": BetaMessage}
    if not exchange["body"]["stream"]:
        message = await client.post("/v1/messages?beta=true", **asked)
        return [block.model_dump(include={"type", "text", "id", "name", "input"}) for block in message.content]
    blocks: list[dict[str, Any]] = []
    kinds: list[str] = []
    events = await client.post(
        "/v1/messages?beta=true", **asked, stream=True, stream_cls=anthropic.AsyncStream[BetaRawMessageStreamEvent]
    )
    async for event in events:
        kinds.append(event.type)
        if event.type == "content_block_start":
            blocks.append(event.content_block.model_dump(include={"type", "text", "id", "name"}) | {"written": ""})
        elif event.type == "content_block_delta":
            delta = event.delta
            blocks[event.index]["written"] += delta.text if delta.type == "text_delta" else delta.partial_json
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    for block in blocks:
        written = block.pop("written")
        block |= {"text": written} if block["type"] == "text" else {"input": json.loads(written)}
    return blocks


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
async def test_recorded_requests_of_a_coding_agent_are_one_run_to_train_on(site: Site, streams: bool) -> None:
    exchanges = recorded_exchanges()
    base = f"{str(site.http.base_url).rstrip('/')}/r/run-1"
    async with anthropic.AsyncAnthropic(base_url=base, api_key="any", max_retries=0) as client:
        for number, exchange in enumerate(exchanges):
            body = exchange["body"]
            body["stream"] = streams
            chat = json.loads(chat_request(json.dumps(body).encode()))
            site.engine.scripted.append(engines_answer(number, chat, answer_of(exchange["answer"])))
            assert await sent(client, exchange) == exchange["answer"]

            asked = site.engine.generations[-1]
            assert [one["function"]["name"] for one in asked["tools"]] == [one["name"] for one in body["tools"]]
            assert len(asked["tools"]) > 20
            system = asked["messages"][0]
            assert (system["role"], "billing-header" in json.dumps(system)) == ("system", False)
            assert all(block["text"] in json.dumps(system["content"]) for block in body["system"][1:])
            results = [part["tool_use_id"] for m in body["messages"] for part in m["content"] if "tool_use_id" in part]
            assert [one["tool_call_id"] for one in asked["messages"] if one["role"] == "tool"] == results
    assert (await site.http.post("/r/run-1/end", json={"reward": 1.0})).json()["calls"] == len(exchanges)

    site.gateway.recorder.close()
    with open_store(DataDir(site.directory), create=True) as store:
        [run] = store.trajectories()
    assert (run.id, run.incomplete) == ("run-1", "")
    root, *sub_agents = run.agents
    spawned = [block["id"] for block in exchanges[1]["answer"] if block.get("name") == "Agent"]
    assert [(one.parent_id, one.spawned_by) for one in sub_agents] == [(root.id, id) for id in spawned]
    numbers = {None: root.id}
    for exchange in exchanges:
        id = exchange["headers"].get(AGENT)
        numbers.setdefault(id, next((one.id for one in sub_agents if one.id not in numbers.values()), ""))
    assert [call.agent_id for call in run.calls] == [numbers[one["headers"].get(AGENT)] for one in exchanges]

    rows, report = sequences(run)
    assert {row.agent_id for row in rows} == {one.id for one in run.agents}
    assert (len(rows), report.forks, report.quarantined_tokens) == (3, 0, 0)
    assert sum(sum(row.trained) for row in rows) == report.captured_tokens == 5 * len(exchanges)
    trained = [tuple(id for id, target in zip(row.token_ids, row.trained, strict=True) if target) for row in rows]
    said = [(numbers[one["headers"].get(AGENT)], ids_of(answer_of(one["answer"]))) for one in exchanges]
    for row, targets in zip(rows, trained, strict=True):
        assert targets == tuple(id for agent, ids in said if agent == row.agent_id for id in ids)


def test_the_recording_holds_no_text_of_others_and_no_secret() -> None:
    text = DATA.read_text()
    assert len(text) < 40_000
    assert re.findall(r'"(?:description|system)": ?"(?!\{\{\d+:\d+\}\}")[^"]{25,}"', text) == []
    assert not re.search(r"sk-|Bearer|/home/|/root/|/tmp/|device|@[a-z]+\.", text)
