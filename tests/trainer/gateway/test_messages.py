"""Anthropic's Messages API at the gateway: its real client against it, chat completions and tokens behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from engine_answers import ASKED, WEATHER, chunks, completion
from gateway_site import Site

from arttrace.store import open_store
from arttrace.system.paths import DataDir
from trainer.gateway.errors import Refusal
from trainer.gateway.messages.answer import MessageStream
from trainer.gateway.messages.request import chat_request, tokenize_request


@pytest.fixture
async def client(site: Site) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=str(site.http.base_url), api_key="any", max_retries=0) as client:
        yield client


def chat(**fields: Any) -> dict[str, Any]:
    return json.loads(chat_request(json.dumps(ASKED | fields).encode()))


def refused(**fields: Any) -> str:
    with pytest.raises(Refusal) as refusal:
        chat_request(json.dumps(ASKED | fields).encode())
    assert refusal.value.status == 400
    return refusal.value.message


def test_a_conversation_with_tools_is_the_chat_that_an_openai_client_would_send() -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "?"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"town": "Rome"}},
                {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "go on"},
            ],
        },
    ]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    made = chat(system=system, messages=turns, tools=[WEATHER], metadata={"user_id": "u"}, stop_sequences=["END"])
    assert made["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"town":"Rome"}'}},
                {"id": "t2", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "sun"},
        {"role": "tool", "tool_call_id": "t2", "content": "rain"},
        {"role": "user", "content": "go on"},
    ]
    function = {"name": "weather", "description": "Of a town", "parameters": WEATHER["input_schema"]}
    assert made["tools"] == [{"type": "function", "function": function}]
    assert (made["stop"], made["max_tokens"]) == (["END"], 16)
    assert "metadata" not in made
    assert "stream_options" not in made


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "w"}, {"tool_choice": {"type": "function", "function": {"name": "w"}}}),
    ],
)
def test_tool_choices(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    assert expected.items() <= chat(tools=[WEATHER], tool_choice=choice).items()


def test_thinking_effort_and_formats_reach_the_engine() -> None:
    assert chat(thinking={"type": "disabled"})["chat_template_kwargs"] == {"enable_thinking": False}
    assert chat(thinking={"type": "enabled", "budget_tokens": 1024})["chat_template_kwargs"]["enable_thinking"]
    assert "chat_template_kwargs" not in chat()
    assert chat(output_config={"effort": "max"})["reasoning_effort"] == "high"
    form = {"type": "json_schema", "schema": {"type": "object"}}
    assert chat(output_config={"format": form})["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert chat(min_p=0.1)["min_p"] == 0.1  # the engine's own


def test_images_and_documents_are_shown() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    inside = [{"type": "text", "text": "seen"}, {"type": "image", "source": source}]
    document = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}
    content = [{"type": "tool_result", "tool_use_id": "t", "content": inside}, document]
    assert chat(messages=[{"role": "user", "content": content}])["messages"] == [
        {"role": "tool", "tool_call_id": "t", "content": "seen"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                {"type": "text", "text": "T\n\nd"},
            ],
        },
    ]


def test_results_of_tools_stand_in_a_row_also_where_one_holds_an_image() -> None:
    """A chat template takes what a tool returned only directly behind the calls."""
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    content = [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]},
        {"type": "tool_result", "tool_use_id": "u", "content": "seen"},
        {"type": "text", "text": "And?"},
    ]
    made = chat(messages=[{"role": "user", "content": content}])["messages"]
    assert [(one["role"], one.get("tool_call_id")) for one in made] == [("tool", "t"), ("tool", "u"), ("user", None)]
    assert [part["type"] for part in made[2]["content"]] == ["image_url", "text"]


def test_a_result_that_is_no_text_and_no_list_is_refused_by_name() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": {"degrees": 4}}
    assert "messages.0.content.0.content.0" in refused(messages=[{"role": "user", "content": [result]}])


def test_what_changes_with_every_call_is_not_said_to_the_model() -> None:
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=17ab;"}
    rest = {"type": "text", "text": "You are an agent."}
    reminder = {"role": "system", "content": "Todo list is empty."}
    made = chat(system=[billing, rest], messages=[*ASKED["messages"], reminder])["messages"]
    assert made[0] == {"role": "system", "content": "You are an agent."}
    assert made[-1] == {"role": "user", "content": "<system-reminder>\nTodo list is empty.\n</system-reminder>"}


def test_what_cannot_be_served_is_refused_by_name() -> None:
    assert "max_tokens" in refused(max_tokens=None)
    assert "messages" in refused(messages=[])
    assert "messages.0.role" in refused(messages=[{"role": "tool", "content": "x"}])
    assert "web_search_20250305" in refused(tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert "mcp_servers" in refused(mcp_servers=[{"url": "https://x"}])
    assert "compaction" in refused(compaction={"type": "enabled"})
    assert "'server_tool_use'" in refused(messages=[{"role": "assistant", "content": [{"type": "server_tool_use"}]}])
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}
    assert "document" in refused(messages=[{"role": "user", "content": [pdf]}])
    assert "one answer" in refused(n=2)
    strange: list[Any] = [{}]
    assert "blocks of type" in refused(messages=[{"role": "user", "content": [{"type": strange}]}])
    assert "tool_choice.type" in refused(tool_choice={"type": strange})
    assert "output_config.format" in refused(output_config={"effort": strange, "format": {"type": strange}})
    for body in (b"[]", b"{", b'{"model": "policy", "max_tokens": 1, "messages": [3]}', b"[" * 5000):
        with pytest.raises(Refusal):
            chat_request(body)
        with pytest.raises(Refusal):
            tokenize_request(body)


async def test_an_answer_with_thought_and_tools(site: Site, client: anthropic.AsyncAnthropic) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Rome"}'}}
    broken = {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"town": '}}
    said = {"role": "assistant", "content": "I look.", "reasoning": "hm", "tool_calls": [call, broken]}
    site.engine.scripted.append(completion(said, "tool_calls"))
    message = await client.messages.create(**ASKED, tools=[WEATHER])
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[0].thinking == "hm"
    assert message.content[2].input == {"town": "Rome"}
    assert message.content[3].input == {"INVALID_JSON": '{"town": '}
    assert (message.stop_reason, message.model, message.role) == ("tool_use", "policy@0", "assistant")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (3, 6, 4)
    tokens = message.model_extra["arttrace"]
    assert tokens == {"prompt_token_ids": [1, 2, 3], "token_ids": [7, 8], "logprobs": [-0.5, -0.25]}
    assert site.engine.generations[-1]["return_token_ids"] is True
    assert site.engine.generations[-1]["model"] == "base"


@anthropic.beta_async_tool
async def weather(town: str) -> str:
    """Of a town."""
    return f"sun in {town}"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_runner_is_reported_that_no_thread_is_held_and_sends_the_whole_conversation(
    stream: bool, site: Site, client: anthropic.AsyncAnthropic
) -> None:
    function = {"name": "weather", "arguments": '{"town": "Rome"}'}
    called = {"tool_calls": [{"id": "c1", "index": 0, "type": "function", "function": function}]}
    said = chunks if stream else completion
    site.engine.scripted += [said(called, finish="tool_calls"), said({"content": "Sunny."}, finish="stop")]
    asked: Any = {**ASKED, "system": "Be brief.", "tools": [weather], "stream": stream}
    await client.beta.messages.tool_runner(**asked).until_done()
    first, second = site.engine.generations
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert second["messages"][:2] == first["messages"]
    assert second["tools"] == first["tools"]
    assert "thread" not in first


async def test_who_asks_for_a_thread_is_reported_what_to_send(client: anthropic.AsyncAnthropic) -> None:
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        with pytest.raises(anthropic.BadRequestError, match="no conversation is held here") as no:
            await client.beta.messages.create(**ASKED, thread=thread)
        assert no.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"


@pytest.mark.parametrize(
    ("finish", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("stop", 151645, ("end_turn", None)),
        ("length", None, ("max_tokens", None)),
        ("content_filter", None, ("refusal", None)),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_why_an_answer_ended(
    site: Site,
    client: anthropic.AsyncAnthropic,
    finish: str,
    stop: object,
    expected: tuple[str, str | None],
    stream: bool,
) -> None:
    if stream:
        site.engine.scripted.append(chunks({"role": "assistant"}, {"content": "a"}, finish=finish, stop_reason=stop))
        async with client.messages.stream(**ASKED) as events:
            message = await events.get_final_message()
    else:
        site.engine.scripted.append(completion({"content": "a"}, finish, stop_reason=stop))
        message = await client.messages.create(**ASKED)
    assert (message.stop_reason, message.stop_sequence) == expected
    assert message.content[0].text == "a"


async def test_a_stream_is_the_same_message(site: Site, client: anthropic.AsyncAnthropic) -> None:
    def tool(index: int, **function: str) -> dict[str, Any]:
        id = {"id": f"c{index}", "type": "function"} if "name" in function else {}
        return {"tool_calls": [{"index": index, **id, "function": function}]}

    site.engine.scripted.append(
        chunks(
            {"role": "assistant", "content": ""},
            {"reasoning": "h"},
            {"reasoning": "m"},
            {"content": "I "},
            {"content": "look."},
            tool(0, name="weather"),
            tool(0, arguments='{"town":'),
            tool(0, arguments=' "Rome"}'),
            tool(1, name="weather", arguments=""),
            finish="tool_calls",
        )
    )
    async with client.messages.stream(**ASKED, tools=[WEATHER]) as stream:
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    thought, text, first, second = message.content
    assert (thought.thinking, text.text, first.input, second.input) == ("hm", "I look.", {"town": "Rome"}, {})
    assert (first.id, second.id, message.stop_reason) == ("c0", "c1", "tool_use")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 4)
    assert site.engine.generations[-1]["stream_options"] == {"include_usage": True}


def test_events_are_the_same_wherever_the_bytes_are_split() -> None:
    body = chunks({"content": "é"}, {"content": "b"}, {"reasoning": "c"})[2]
    whole = MessageStream().feed(body)
    stream = MessageStream()
    assert b"".join(stream.feed(body[place : place + 1]) for place in range(len(body))) == whole
    end = json.loads(whole.split(b"event: message_delta\ndata: ")[1].split(b"\n")[0])
    assert end["arttrace"] == {"prompt_token_ids": [1, 2, 3], "token_ids": [7, 8, 9], "logprobs": [-0.5] * 3}


async def test_refusals_have_the_form_that_the_client_knows(site: Site, client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="no model 'claude'") as unknown:
        await client.messages.create(**ASKED | {"model": "claude"})
    assert unknown.value.body["error"]["type"] == "not_found_error"
    site.engine.scripted.append((400, "application/json", b'{"error": {"message": "too long", "code": 400}}'))
    with pytest.raises(anthropic.BadRequestError, match="too long"):
        await client.messages.create(**ASKED)
    site.engine.scripted.append((200, "application/json", b"<html>"))
    with pytest.raises(anthropic.InternalServerError, match="not a chat completion"):
        await client.messages.create(**ASKED)
    site.gateway.gate.pause(refuse=True)
    with pytest.raises(anthropic.InternalServerError, match="paused") as paused:
        await client.messages.create(**ASKED)
    assert paused.value.body["error"]["type"] == "overloaded_error"
    assert paused.value.response.headers["retry-after"] == "2"


async def test_an_engine_that_dies_in_a_stream_is_an_error_event(site: Site, client: anthropic.AsyncAnthropic) -> None:
    site.engine.break_stream = True
    with pytest.raises(anthropic.APIStatusError, match="died while answering"):
        async with client.messages.stream(**ASKED) as stream:
            await stream.get_final_message()


async def test_a_stream_without_an_end_is_an_error_event(site: Site, client: anthropic.AsyncAnthropic) -> None:
    status, kind, body = chunks({"content": "a"}, {"content": "b"})
    for cut in (body.removesuffix(b"data: [DONE]\n\n"), body[: len(body) // 3]):
        site.engine.scripted.append((status, kind, cut))
        with pytest.raises(anthropic.APIStatusError, match="stream ended before its answer did"):
            async with client.messages.stream(**ASKED) as stream:
                await stream.get_final_message()


@pytest.mark.parametrize("site", ["secret"], indirect=True)
async def test_the_key_may_come_as_anthropics_clients_send_it(site: Site) -> None:
    url = str(site.http.base_url)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**ASKED)
    for key in ({"api_key": "secret"}, {"auth_token": "secret", "api_key": None}):
        async with anthropic.AsyncAnthropic(base_url=url, max_retries=0, **key) as client:
            site.engine.scripted.append(completion({"content": "a"}))
            assert (await client.messages.create(**ASKED)).content[0].text == "a"


async def test_tokens_are_counted_by_the_engine(site: Site, client: anthropic.AsyncAnthropic) -> None:
    site.engine.scripted.append((200, "application/json", b'{"count": 12, "max_model_len": 512, "tokens": [1]}'))
    asked = {name: ASKED[name] for name in ("model", "messages")}
    assert (await client.messages.count_tokens(**asked, tools=[WEATHER])).input_tokens == 12
    sent = site.engine.generations[-1]
    assert (sent["model"], sent["add_generation_prompt"]) == ("base", True)
    assert sent["tools"][0]["function"]["name"] == "weather"
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.count_tokens(**asked | {"model": "claude"})
    site.engine.scripted.append((400, "application/json", b'{"error": {"message": "no template"}}'))
    with pytest.raises(anthropic.BadRequestError, match="no template"):
        await client.messages.count_tokens(**asked)


async def test_models_are_listed_for_both_clients(site: Site, client: anthropic.AsyncAnthropic) -> None:
    names = [model.id async for model in client.models.list()]
    assert names == [model["id"] for model in (await site.http.get("/v1/models")).json()["data"]]
    assert "policy:latest" in names


async def test_a_named_trajectory_has_the_engines_tokens(site: Site) -> None:
    url = str(site.http.base_url).rstrip("/") + "/r/run-1"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
        site.engine.scripted.append(completion({"role": "assistant", "content": "first"}))
        first = await client.messages.create(**ASKED)
        site.engine.scripted.append(chunks({"content": "sec"}, {"content": "ond"}))
        history = [
            *ASKED["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": "?"},
        ]
        async with client.messages.stream(**ASKED | {"messages": history}) as stream:
            await stream.get_final_message()
    assert (await site.http.post("/r/run-1/end", json={"reward": 1.0})).json()["calls"] == 2
    site.gateway.recorder.close()
    with open_store(DataDir(site.directory), create=True) as store:
        (run,) = store.trajectories()
    assert run.incomplete == ""
    one, two = (each.call for each in run.calls)
    assert [message.text for message in two.messages] == ["hi", "first", "?"]
    assert list(one.prompt_token_ids) == [1, 2, 3]
    assert (list(one.choices[0].token_ids), list(two.choices[0].token_ids)) == ([7, 8], [7, 8])
    assert [choice.message.text for choice in (one.choices[0], two.choices[0])] == ["first", "second"]
