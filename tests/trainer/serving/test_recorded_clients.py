"""Each way in which OpenAI's client may be asked: its answer carries its trajectory, and the server has recorded it."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pydantic
import pytest
from gateway_site import Site, gateway_at

import arttrace
import arttrace.loop as art
from arttrace.loop.trajectory import conversation_record
from arttrace.store import open_store
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from trainer.serving.training import TrainingDesk

JSON, EVENTS = "application/json", "text/event-stream"
MESSAGES: list[Any] = [{"role": "user", "content": "6 x 7?"}]
CHAT: dict[str, Any] = {"model": "lora:latest", "messages": MESSAGES}
TWO = {**CHAT, "n": 2}
RESPONSE: dict[str, Any] = {"model": "lora:latest", "instructions": "Count.", "input": "6 x 7?"}
TEXTS = ['{"is": 42}', '{"is": 41}']


class Number(pydantic.BaseModel):
    is_: int = pydantic.Field(alias="is")


def logprobs(*values: float) -> dict[str, Any]:
    return {"content": [{"token": "x", "bytes": None, "logprob": value, "top_logprobs": []} for value in values]}


def completion(n: int) -> bytes:
    choices = [
        {
            "index": index,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
            "token_ids": [10 + index, 2],
            "logprobs": logprobs(-0.5, -0.25),
        }
        for index, text in enumerate(TEXTS[:n])
    ]
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "policy@0", "prompt_token_ids": [1, 2]}
    usage = {"prompt_tokens": 2, "completion_tokens": 2 * n, "total_tokens": 2 + 2 * n}
    return json.dumps({**head, "choices": choices, "usage": usage}).encode()


def chunks(n: int, *, cut: bool = False) -> bytes:
    """The choices of a stream by turns, each in two chunks; the last choice of one that is cut has no end."""
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "policy@0"}
    choices: list[dict[str, Any]] = []
    for index, text in enumerate(TEXTS[:n]):
        delta = {"role": "assistant", "content": text[:4]}
        choices.append({"index": index, "delta": delta, "token_ids": [10 + index], "logprobs": logprobs(-0.5)})
    for index, text in enumerate(TEXTS[: n - cut]):
        end: dict[str, Any] = {"index": index, "delta": {"content": text[4:]}, "finish_reason": "stop"}
        choices.append({**end, "token_ids": [2], "logprobs": logprobs(-0.25)})
    frames = [{**head, "choices": [choice]} for choice in choices]
    frames[0]["prompt_token_ids"] = [1, 2]
    usage = {"prompt_tokens": 2, "completion_tokens": 2 * n, "total_tokens": 2 + 2 * n}
    frames.append({**head, "choices": [], "usage": usage})
    return b"".join(b"data: %s\n\n" % line for line in (*(json.dumps(one).encode() for one in frames), b"[DONE]"))


def response() -> dict[str, Any]:
    text = {"type": "output_text", "text": TEXTS[0], "annotations": []}
    call = {"type": "function_call", "id": "f1", "call_id": "c1", "name": "look", "arguments": '{"q": 1}'}
    output = [{"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}, call]
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "policy@0", "status": "completed"}
    return {**head, "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def events() -> bytes:
    whole = response()
    made: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}
    ]
    for index, item in enumerate(whole["output"]):
        empty = {**item, "content": []} if item["type"] == "message" else {**item, "arguments": ""}
        made.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        if item["type"] == "message":
            part = {"output_index": index, "content_index": 0, "item_id": "m1"}
            made.append({"type": "response.content_part.added", **part, "part": {**item["content"][0], "text": ""}})
            made.append({"type": "response.output_text.delta", **part, "delta": TEXTS[0], "logprobs": []})
        made.append({"type": "response.output_item.done", "output_index": index, "item": item})
    made.append({"type": "response.completed", "response": whole})
    lines = [{**one, "sequence_number": number} for number, one in enumerate(made)]
    return b"".join(b"event: %s\ndata: %s\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in lines)


async def have(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def read(stream: Any) -> list[Any]:
    if hasattr(stream, "__aiter__"):
        return [one async for one in stream]
    return await asyncio.to_thread(list, stream)


async def within(manager: Any, use: Callable[[Any], Awaitable[Any]]) -> Any:
    """What was entered, once it was used and left."""
    if hasattr(manager, "__aenter__"):
        async with manager as entered:
            await use(entered)
    else:
        with manager as entered:
            await use(entered)
    return entered


async def to_its_end(answer: Any) -> None:
    assert answer.trajectory.choices() == []
    await read(answer)


async def whole(client: Any) -> Any:
    return await have(client.chat.completions.create(**TWO))


async def streamed(client: Any) -> Any:
    stream = await have(client.chat.completions.create(**TWO, stream=True))
    await to_its_end(stream)
    return stream


async def parsed(client: Any) -> Any:
    answer = await have(client.chat.completions.parse(**TWO, response_format=Number))
    assert [choice.message.parsed.is_ for choice in answer.choices] == [42, 41]
    return answer


async def by_events(client: Any) -> Any:
    return await within(client.chat.completions.stream(**TWO), to_its_end)


async def by_its_final_completion(client: Any) -> Any:
    async def use(stream: Any) -> None:
        final = await have(stream.get_final_completion())
        assert [choice.message.content for choice in final.choices] == TEXTS

    return await within(client.beta.chat.completions.stream(**TWO), use)


async def raw(client: Any) -> Any:
    answer = await have(client.chat.completions.with_raw_response.create(**TWO))
    assert answer.parse().trajectory is answer.trajectory
    assert answer.headers["content-type"] == JSON
    return answer


async def raw_of_the_client(client: Any) -> Any:
    return (await have(client.with_raw_response.chat.completions.parse(**TWO, response_format=Number))).parse()


async def raw_stream(client: Any) -> Any:
    answer = await have(client.chat.completions.with_raw_response.create(**TWO, stream=True))
    stream = answer.parse()
    assert stream.trajectory is answer.trajectory
    await to_its_end(stream)
    return answer


async def streaming_response(client: Any) -> Any:
    async def use(answer: Any) -> None:
        assert answer.trajectory.choices() == []
        assert (await have(answer.parse())).trajectory is answer.trajectory

    return await within(client.chat.completions.with_streaming_response.create(**TWO), use)


async def lines_of_a_streaming_response(client: Any) -> Any:
    async def use(answer: Any) -> None:
        assert (await read(answer.iter_lines()))[-2:] == ["data: [DONE]", ""]

    return await within(client.chat.completions.with_streaming_response.create(**TWO, stream=True), use)


async def other_options(client: Any) -> Any:
    return await have(client.with_options(timeout=60).chat.completions.create(**TWO))


async def copied(client: Any) -> Any:
    return await have(client.copy(max_retries=1).chat.completions.create(**TWO))


async def responses(client: Any) -> Any:
    return await have(client.responses.create(**RESPONSE))


async def responses_streamed(client: Any) -> Any:
    stream = await have(client.responses.create(**RESPONSE, stream=True))
    await to_its_end(stream)
    return stream


async def responses_parsed(client: Any) -> Any:
    answer = await have(client.responses.parse(**RESPONSE, text_format=Number))
    assert answer.output_parsed.is_ == 42
    return answer


async def responses_by_events(client: Any) -> Any:
    return await within(client.responses.stream(**RESPONSE), to_its_end)


async def responses_raw(client: Any) -> Any:
    return await have(client.responses.with_raw_response.create(**RESPONSE))


async def responses_streaming(client: Any) -> Any:
    async def use(answer: Any) -> None:
        assert (await have(answer.json()))["id"] == "resp_1"

    return await within(client.responses.with_streaming_response.create(**RESPONSE), use)


Case = tuple[Callable[[Any], Awaitable[Any]], str, bytes]
CHATS: list[Case] = [
    (whole, JSON, completion(2)),
    (streamed, EVENTS, chunks(2)),
    (parsed, JSON, completion(2)),
    (by_events, EVENTS, chunks(2)),
    (by_its_final_completion, EVENTS, chunks(2)),
    (raw, JSON, completion(2)),
    (raw_of_the_client, JSON, completion(2)),
    (raw_stream, EVENTS, chunks(2)),
    (streaming_response, JSON, completion(2)),
    (lines_of_a_streaming_response, EVENTS, chunks(2)),
    (other_options, JSON, completion(2)),
    (copied, JSON, completion(2)),
]
RESPONSES: list[Case] = [
    (responses, JSON, json.dumps(response()).encode()),
    (responses_streamed, EVENTS, events()),
    (responses_parsed, JSON, json.dumps(response()).encode()),
    (responses_by_events, EVENTS, events()),
    (responses_raw, JSON, json.dumps(response()).encode()),
    (responses_streaming, JSON, json.dumps(response()).encode()),
]


def named(cases: list[Case]) -> list[Any]:
    return [pytest.param(*case, id=case[0].__name__) for case in cases]


@pytest.fixture
async def site(tmp_path: Path) -> Any:
    made = gateway_at(tmp_path, desk=lambda recorder, gate: TrainingDesk(recorder, gate, print, blocks=True))
    async with made as site:
        yield site


async def ask(site: Site, asynchronous: bool, way: Callable[[Any], Awaitable[Any]]) -> art.Trajectory:
    url = f"{site.http.base_url}/v1"
    if asynchronous:
        async with art.AsyncClient(base_url=url) as client:
            return (await way(client)).trajectory

    def synchronous() -> art.Trajectory:
        with art.Client(base_url=url) as client:
            return asyncio.run(way(client)).trajectory

    return await asyncio.to_thread(synchronous)


def recorded(site: Site) -> Mapping[str, Any]:
    site.gateway.recorder.close()
    with open_store(DataDir(site.directory), create=True) as store:
        return {run.id: run for run in store.trajectories()}


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(("way", "kind", "body"), named(CHATS))
async def test_every_choice_of_a_chat_is_a_row(
    site: Site, way: Callable[[Any], Awaitable[Any]], kind: str, body: bytes, asynchronous: bool
) -> None:
    site.engine.scripted.append((200, kind, body))
    trajectory = await ask(site, asynchronous, way)
    said = [trajectory.messages(), *(history.messages() for history in trajectory.additional_histories)]
    assert said == [[*MESSAGES, {"role": "assistant", "content": text}] for text in TEXTS]
    assert [choice.token_ids for choice in trajectory.choices()] == [[10, 2], [11, 2]]
    for choice in trajectory.choices():
        assert [entry.logprob for entry in choice.logprobs.content] == [-0.5, -0.25]
    assert len(conversation_record(trajectory).agents) == 2, "a judge reads both"
    [run] = recorded(site).values()
    assert run.id == trajectory.id
    rows, report = sequences(run)
    if "parse" in way.__name__ or way is raw_of_the_client:
        assert report.quarantined_tokens == 4, "a grammar has forced them"
    else:
        assert sorted(row.token_ids for row in rows) == [(1, 2, 10, 2), (1, 2, 11, 2)]
        assert [row.logprobs for row in rows] == [(None, None, -0.5, -0.25)] * 2


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(("way", "kind", "body"), named(RESPONSES))
async def test_a_response_is_a_choice(
    site: Site, way: Callable[[Any], Awaitable[Any]], kind: str, body: bytes, asynchronous: bool
) -> None:
    site.engine.scripted.append((200, kind, body))
    trajectory = await ask(site, asynchronous, way)
    system, user, answer = trajectory.messages()
    assert (system["content"], user["content"], answer["content"]) == ("Count.", "6 x 7?", TEXTS[0])
    [choice] = trajectory.choices()
    assert (choice.finish_reason, choice.message.tool_calls[0].function.name) == ("tool_calls", "look")
    [run] = recorded(site).values()
    assert (run.id, len(run.calls)) == (trajectory.id, 1)


async def test_calls_that_name_one_run_are_one_run(site: Site) -> None:
    site.engine.scripted += [(200, JSON, completion(1)), (200, JSON, completion(1))]
    async with art.AsyncClient(base_url=f"{site.http.base_url}/v1") as client:
        first = await client.chat.completions.create(**CHAT)
        extra = {"art": {"trajectory_id": first.trajectory.id, "agent": "checker"}}
        second = await client.chat.completions.create(**CHAT, extra_body=extra)
    assert extra["art"] == {"trajectory_id": first.trajectory.id, "agent": "checker"}, "the program's own is left alone"
    assert second.trajectory.id == first.trajectory.id
    [run] = recorded(site).values()
    assert (run.id, len(run.calls)) == (first.trajectory.id, 2)


def test_what_samples_nothing_is_sent_as_it_is() -> None:
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json={"object": "list", "model": "m", "data": []})

    with httpx.Client(transport=httpx.MockTransport(answer)) as transport:
        client = art.Client(base_url="http://server/v1", api_key="x", http_client=transport)
        embedded = client.embeddings.create(model="m", input="6 x 7?", encoding_format="float")
    assert sent == [{"model": "m", "input": "6 x 7?", "encoding_format": "float"}]
    assert not hasattr(embedded, "trajectory")


async def test_each_prompt_of_a_completion_has_its_choices(site: Site) -> None:
    ended = [{"index": index, "finish_reason": "stop", "text": text} for index, text in enumerate("abcd")]
    answer = {"id": "x", "object": "text_completion", "created": 1, "model": "policy@0", "choices": ended}
    site.engine.scripted.append((200, JSON, json.dumps(answer).encode()))

    async def complete(client: Any) -> Any:
        return await have(client.completions.create(model="lora:latest", prompt=["one", "two"], n=2))

    trajectory = await ask(site, True, complete)
    said = [trajectory.messages(), *(history.messages() for history in trajectory.additional_histories)]
    assert [[message["content"] for message in one] for one in said] == [
        ["one", "a"], ["one", "b"], ["two", "c"], ["two", "d"]
    ]  # fmt: skip
    assert set(recorded(site)) == {trajectory.id}


def pieces(body: bytes) -> list[bytes]:
    """A stream's beginnings, by events."""
    whole = body.split(b"\n\n")[:-1]
    return [b"".join(one + b"\n\n" for one in whole[:count]) for count in range(len(whole))]


async def test_a_stream_that_breaks_anywhere_has_no_choice_before_all_have_ended(site: Site) -> None:
    began = pieces(chunks(2))
    site.engine.scripted += [(200, EVENTS, body) for body in began]
    found: list[int] = []
    async with art.AsyncClient(base_url=f"{site.http.base_url}/v1") as client:
        for _ in began:
            stream = await client.chat.completions.create(**TWO, stream=True)
            async for _ in stream:
                pass
            found.append(len(stream.trajectory.choices()))
    assert found == [0, 0, 0, 0, 2, 2], "two begin, two end, then the usage"


async def test_a_stream_that_is_left_has_no_choice(site: Site) -> None:
    site.engine.scripted += [(200, EVENTS, chunks(2))] * 2
    async with art.AsyncClient(base_url=f"{site.http.base_url}/v1") as client:
        async with await client.chat.completions.create(**TWO, stream=True) as stream:
            async for chunk in stream:
                assert chunk.choices[0].index == 0
                break
        assert stream.trajectory.choices() == []
        unread = await client.chat.completions.create(**TWO, stream=True)
        await unread.close()
        assert unread.trajectory.choices() == []


@pytest.mark.parametrize(
    "body",
    [b"[]", b"null", b"{", b'{"choices": null}', b'{"choices": [null, 1, {}]}', b'{"choices": {"a": 1}}'],
    ids=range(6),
)
async def test_what_is_no_answer_is_handed_on_without_a_choice(site: Site, body: bytes) -> None:
    async with art.AsyncClient(base_url=f"{site.http.base_url}/v1") as client:
        for asked in (client.chat.completions, client.responses):
            site.engine.scripted += [(200, JSON, body)]
            raw = await asked.with_raw_response.create(**(CHAT if asked is client.chat.completions else RESPONSE))
            assert raw.content == body
            assert [one for one in raw.trajectory.choices() if one.message is not None] == []


async def test_a_call_with_tools_is_sent_again_as_the_client_parsed_it(site: Site) -> None:
    function = {"name": "Number", "arguments": '{"is": 42}'}
    message = {"role": "assistant", "content": None}
    message["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]  # type: ignore[assignment]
    answer = json.loads(completion(1))
    answer["choices"] = [{"index": 0, "finish_reason": "tool_calls", "message": message}]
    site.engine.scripted.append((200, JSON, json.dumps(answer).encode()))
    async with art.AsyncClient(base_url=f"{site.http.base_url}/v1") as client:
        parsed = await client.chat.completions.parse(**CHAT, tools=[openai.pydantic_function_tool(Number)])
        assert parsed.choices[0].message.tool_calls[0].function.parsed_arguments.is_ == 42
        assert parsed.trajectory.messages()[1]["tool_calls"] == message["tool_calls"]
        site.engine.scripted.append((200, JSON, completion(1)))
        again = await client.chat.completions.create(model="lora:latest", messages=parsed.trajectory.messages())
    assert again.trajectory.messages()[1]["tool_calls"] == message["tool_calls"]
    assert site.engine.generations[1]["messages"][1]["tool_calls"] == message["tool_calls"]


async def test_within_a_captured_run_each_way_belongs_to_it(site: Site, tmp_path: Path) -> None:
    arttrace.init(dir=tmp_path / "client")
    ways = [(whole, completion(2)), (by_events, chunks(2)), (lines_of_a_streaming_response, chunks(2))]
    site.engine.scripted += [(200, JSON if way is whole else EVENTS, body) for way, body in ways]

    @arttrace.trajectory
    async def agent(client: art.AsyncClient) -> list[art.Trajectory]:
        return [(await way(client)).trajectory for way, _ in ways]

    try:
        async with art.AsyncClient(base_url=f"{site.http.base_url}/v1") as client:
            made = await agent(client)
        arttrace.flush()
    finally:
        arttrace.shutdown()
    assert recorded(site) == {}, "what is captured here is not recorded there"
    with open_store(DataDir(tmp_path / "client"), create=True) as store:
        [run] = store.trajectories()
    assert {(one.id, one.captured, len(one.choices())) for one in made} == {(run.id, True, 2)}
    assert [len(call.call.choices) for call in run.calls] == [2, 2, 2]


async def test_anthropics_client_names_the_run_in_the_same_field(site: Site) -> None:
    site.engine.scripted += [(200, JSON, completion(1)), (200, EVENTS, chunks(1))]
    asked: dict[str, Any] = {"model": "lora:latest", "max_tokens": 9, "messages": MESSAGES}
    named = {"art": {"trajectory_id": "run-7"}}
    async with anthropic.AsyncAnthropic(base_url=str(site.http.base_url), api_key="any") as client:
        answer = await client.messages.create(**asked, extra_body=named)
        assert answer.content[0].text == TEXTS[0]
        async with client.messages.stream(**asked, extra_body=named) as stream:
            assert await stream.get_final_text() == TEXTS[0]
        with pytest.raises(anthropic.BadRequestError, match="n: a message has one answer"):
            await client.messages.create(**asked, extra_body={**named, "n": 2})
    [run] = recorded(site).values()
    assert run.id == "run-7"
    assert [[tuple(one.token_ids or ()) for one in call.call.choices] for call in run.calls[:2]] == [[(10, 2)]] * 2
    assert all("art" not in body for body in site.engine.generations)


@pytest.mark.parametrize("name", [7, True, ["run-7"], {"id": "run-7"}, 1.5])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_run_whose_name_is_no_text_is_refused(site: Site, path: str, name: Any) -> None:
    asked = {"model": "lora:latest", "messages": MESSAGES, "input": "6 x 7?", "max_tokens": 9}
    answer = await site.http.post(path, json={**asked, "art": {"trajectory_id": name}})
    assert (answer.status_code, site.engine.generations) == (400, [])
    assert "a trajectory's name is a text, not" in answer.json()["error"]["message"]
