"""Responses, legacy completions and embeddings: whole, streamed, cut anywhere, or nonsense."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_server import IDS, LOGPROBS, TEXT, TOOLS, completion, completion_events, response, response_events

from arttrace.records import semconv
from arttrace.records.values.tokens import decode_logprobs, decode_token_ids
from arttrace.wire import Decoded, Exchange, decode

STREAM = {"content-type": "text/event-stream"}
ASK: dict[str, Any] = {"model": "m", "input": "hi"}


def run(path: str, body: Any, request: Any = ASK, **options: Any) -> Decoded:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode(Exchange(json.dumps(request).encode(), **{"status": 200, "body": data, "path": path, **options}))


def sse(events: list[Any], *, done: bool = False) -> bytes:
    lines = [f"event: {event.get('type')}\ndata: {json.dumps(event)}\n\n" for event in events]
    return ("".join(lines) + "data: [DONE]\n\n" * done).encode()


def read(decoded: Decoded, name: str) -> Any:
    return json.loads(decoded.attributes[name])


def call_part(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_call", "name": name, "arguments": arguments, "id": id}


@pytest.mark.parametrize("words", ["m", "tools", "refuse", "cut", "ids", "tools-ids-cut"])
def test_a_stream_of_a_response_gives_what_the_whole_gives(words: str) -> None:
    whole = run("/v1/responses", response(ASK, words.split("-")))
    streamed = run("/v1/responses", sse(response_events(ASK, words.split("-"))), headers=STREAM)
    assert streamed == whole
    assert whole.name == "chat m"
    assert whole.failure is None
    attributes = whole.attributes
    assert attributes[semconv.OPERATION_NAME] == "chat"
    assert attributes[semconv.OPENAI_API_TYPE] == "responses"
    assert attributes[semconv.RESPONSE_ID] == "resp_1"
    assert attributes[semconv.USAGE_INPUT_TOKENS] == 7
    assert attributes[semconv.USAGE_OUTPUT_TOKENS] == 3
    assert attributes[semconv.USAGE_CACHE_READ_INPUT_TOKENS] == 4
    assert attributes[semconv.USAGE_REASONING_OUTPUT_TOKENS] == 1
    (answer,) = read(whole, semconv.OUTPUT_MESSAGES)
    expected: list[Any] = [{"type": "reasoning", "content": "thinking"}, {"type": "text", "content": TEXT}]
    if words == "refuse":
        expected[1] = {"type": "other", "value": {"type": "refusal", "refusal": "no"}}
    if "tools" in words:
        expected += [call_part(*call) for call in TOOLS]
        search = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}}
        expected.append({"type": "other", "value": search})
    assert answer["parts"] == expected
    reason = "length" if "cut" in words else "tool_calls" if "tools" in words else "stop"
    assert attributes[semconv.RESPONSE_FINISH_REASONS] == [answer["finish_reason"]] == [reason]
    found = decode_logprobs(attributes.get(semconv.LOGPROBS))
    assert found == (tuple(LOGPROBS) if "ids" in words else None)


@pytest.mark.parametrize("words", ["m", "tools", "refuse", "ids"])
def test_a_stream_cut_after_any_event_holds_what_had_come(words: str) -> None:
    events = response_events(ASK, words.split("-"))
    texts, tools = [], []
    for number in range(len(events)):
        decoded = run("/v1/responses", sse(events[:number]), headers=STREAM, ending="closed")
        assert decoded.attributes[semconv.INTERRUPTED] == "closed"
        assert decoded.failure is None
        parts = read(decoded, semconv.OUTPUT_MESSAGES)[0]["parts"] if number > 1 else []
        texts.append("".join(part["content"] for part in parts if part["type"] == "text"))
        tools.append("".join(part["arguments"] for part in parts if part["type"] == "tool_call"))
    for grown in (texts, tools):
        assert all(later.startswith(earlier) for earlier, later in pairwise(grown))
    assert texts[-1] == ("" if words == "refuse" else TEXT)
    assert tools[-1] == ("".join(arguments for _, _, arguments in TOOLS) if words == "tools" else "")


def test_a_stream_cut_within_commands_of_a_shell_holds_what_had_come() -> None:
    """Commands and what they printed lie in lists of their items, and came with neither."""
    call = {"type": "shell_call", "id": "s", "call_id": "c", "action": {"commands": [], "timeout_ms": 9}}
    output = {"type": "shell_call_output", "id": "o", "call_id": "c", "output": []}
    of_call, of_output = {"output_index": 0}, {"output_index": 1, "item_id": "o"}
    command, printed = "response.shell_call_command", "response.shell_call_output_content"
    events: list[dict[str, Any]] = [
        {"type": "response.output_item.added", **of_call, "item": call},
        {"type": f"{command}.added", **of_call, "command_index": 0, "command": "l"},
        {"type": f"{command}.delta", **of_call, "command_index": 0, "delta": "s "},
        {"type": f"{command}.delta", **of_call, "command_index": 0, "delta": "-l"},
        {"type": f"{command}.done", **of_call, "command_index": 0, "command": "ls -l"},
        {"type": f"{command}.added", **of_call, "command_index": 1, "command": ""},
        {"type": f"{command}.delta", **of_call, "command_index": 1, "delta": "pw"},
        {"type": "response.output_item.added", **of_output, "item": output},
        {"type": f"{printed}.delta", **of_output, "command_index": 0, "delta": {"stdout": "a.p"}},
        {"type": f"{printed}.delta", **of_output, "command_index": 0, "delta": {"stdout": "y", "stderr": "no"}},
        {"type": f"{printed}.done", **of_output, "command_index": 0, "output": [{"stdout": "a.py", "stderr": ""}]},
        {"type": f"{printed}.delta", **of_output, "command_index": 1, "delta": {"stderr": "?", "stdout": None}},
    ]
    came: list[tuple[Any, Any]] = []
    for number in range(1, len(events) + 1):
        lines = [{"type": "response.created", "response": response(ASK, []) | {"output": []}}, *events[:number]]
        data = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in lines)
        decoded = run("/v1/responses", data, headers=STREAM, ending="closed")
        shell, *shown = read(decoded, semconv.OUTPUT_MESSAGES)[0]["parts"]
        came.append((shell["value"]["action"]["commands"], shown[0]["response"] if shown else None))
        assert shell["value"]["action"]["timeout_ms"] == 9
    assert [commands for commands, _ in came[:7]] == [
        [], ["l"], ["ls "], ["ls -l"], ["ls -l"], ["ls -l", ""], ["ls -l", "pw"]
    ]  # fmt: skip
    done = {"stdout": "a.py", "stderr": ""}
    assert [shown for _, shown in came[7:]] == [
        "",
        [{"stdout": "a.p", "stderr": ""}],
        [{"stdout": "a.py", "stderr": "no"}],
        [done],
        [done, {"stdout": "", "stderr": "?"}],
    ]


def test_token_ids_of_a_response_as_vllm_gives_them() -> None:
    """Asked with enable_response_messages, it tells what it read and wrote as raw messages with their tokens."""
    raw = {"input_messages": [{"type": "raw_message_tokens", "message": "hi", "tokens": [7, 8]}]}
    raw["output_messages"] = [{"tokens": [1, 2]}, {"tokens": [3]}]
    attributes = run("/v1/responses", response(ASK, []) | raw).attributes
    assert list(decode_token_ids(attributes[semconv.PROMPT_TOKEN_IDS])) == [7, 8]
    assert list(decode_token_ids(attributes[semconv.TOKEN_IDS])) == [1, 2, 3]
    for odd in ("x", [], [{"tokens": [1]}, {}], [{"tokens": ["1"]}], [None]):
        attributes = run("/v1/responses", response(ASK, []) | {"output_messages": odd}).attributes
        assert semconv.TOKEN_IDS not in attributes


def test_log_probabilities_that_stand_beside_the_token_ids_of_a_response() -> None:
    """`arttrace serve` puts them there: a call of a tool has no text that they could be those of."""
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
    text = {"type": "output_text", "text": "a", "logprobs": [{"token": "a", "logprob": -3.0}]}
    both = [{"type": "message", "role": "assistant", "content": [text]}, call]
    raw = {"output_messages": [{"tokens": [1, 2], "logprobs": [-0.5, -1.5]}, {"tokens": [3], "logprobs": [-2.0]}]}
    for items in ([call], both):
        attributes = run("/v1/responses", response(ASK, []) | {"output": items} | raw).attributes
        assert list(decode_logprobs(attributes[semconv.LOGPROBS])) == [-0.5, -1.5, -2.0]
    for odd in ([], "x", [None], [{"tokens": [1]}], [{"tokens": [1, 2], "logprobs": [-0.5]}], [{"logprobs": [-0.5]}]):
        attributes = run("/v1/responses", response(ASK, []) | {"output": both, "output_messages": odd}).attributes
        assert list(decode_logprobs(attributes[semconv.LOGPROBS])) == [-3.0]
    for odd in (["x"], [None], [True], [-(10**400)]):
        raw = {"output_messages": [{"tokens": [1], "logprobs": odd}]}
        assert semconv.LOGPROBS not in run("/v1/responses", response(ASK, []) | {"output": [call]} | raw).attributes


def test_a_request_of_the_responses_api() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "u"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz", "status": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "look"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_1", "status": "completed"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "raw text"},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "5"}]},
        {"role": "developer", "content": "be brief"},
        "odd",
    ]
    request = {
        "model": "m", "input": items, "instructions": "be good", "previous_response_id": "resp_0", "temperature": 0.5,
        "max_output_tokens": 9, "tools": [{"type": "web_search"}], "conversation": {"id": "conv_1"},
    }  # fmt: skip
    decoded = run("/openai/v1/responses", response(request, ["m"]), request)
    attributes = decoded.attributes
    assert attributes[semconv.PREVIOUS_RESPONSE_ID] == "resp_0"
    assert attributes[semconv.CONVERSATION_ID] == "conv_1"
    assert attributes[semconv.MESSAGES_KEPT] == ["conversation"]
    assert attributes[semconv.REQUEST_MAX_TOKENS] == 9
    assert attributes[semconv.REQUEST_TEMPERATURE] == 0.5
    assert read(decoded, semconv.TOOL_DEFINITIONS) == [{"type": "web_search"}]
    assert read(decoded, semconv.SYSTEM_INSTRUCTIONS) == [{"type": "text", "content": "be good"}]
    messages = [(message["role"], message["parts"]) for message in read(decoded, semconv.INPUT_MESSAGES)]
    assert messages == [
        ("user", [{"type": "text", "content": "see"},
                  {"type": "other", "value": {"type": "input_image", "image_url": "u"}}]),
        ("assistant", [
            {"type": "other", "value": {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"}},
            {"type": "text", "content": "look"}, call_part("c1", "f", "{}"), call_part("c2", "g", "raw text"),
        ]),
        ("tool", [{"type": "tool_call_response", "response": "4", "id": "c1"}]),
        ("tool", [{"type": "tool_call_response", "response": [{"type": "input_text", "text": "5"}], "id": "c2"}]),
        ("developer", [{"type": "text", "content": "be brief"}]),
        ("user", [{"type": "other", "value": {"type": "content", "content": "odd"}}]),
    ]  # fmt: skip


@pytest.mark.parametrize("words", ["m", "tools", "refuse"])
def test_an_answer_that_is_sent_again_reads_as_it_was_sampled(words: str) -> None:
    answered = response(ASK, [words])
    first = read(run("/v1/responses", answered), semconv.OUTPUT_MESSAGES)[0]["parts"]
    again = {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}, *answered["output"], {"role": "user", "content": "x"}],
    }
    messages = read(run("/v1/responses", answered, again), semconv.INPUT_MESSAGES)
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["parts"] == first


def test_responses_that_fail() -> None:
    failed = {**response(ASK, ["m"]), "status": "failed", "output": [], "error": {"code": "x", "message": "engine"}}
    assert run("/v1/responses", failed).failure == ("response_failed", "engine")
    event = {"type": "response.failed", "response": failed}
    assert run("/v1/responses", sse([event]), headers=STREAM).failure == ("response_failed", "engine")
    broken = {"type": "error", "code": "server_error", "message": "it broke", "param": None}
    decoded = run("/v1/responses", sse([*response_events(ASK, ["m"])[:6], broken]), headers=STREAM)
    assert decoded.failure == ("stream_error", "it broke")
    assert decoded.attributes[semconv.INTERRUPTED] == "error"
    assert run("/v1/responses", {"error": {"message": "bad"}}, status=400).failure == ("400", "bad")
    assert run("/v1/responses", b"[1]").failure == ("invalid_response", "the response is no JSON object")


@pytest.mark.parametrize("status", ["queued", "in_progress", "completed"])
def test_a_response_that_is_answered_by_another_request_says_so(status: str) -> None:
    asked = {**response(ASK, ["m"]), "status": status, "output": [], "background": True}
    said = run("/v1/responses", asked).attributes.get(semconv.INTERRUPTED)
    assert said == (None if status == "completed" else "background")


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize(("read", "ended"), [(1, False), (6, False), (None, True)])
def test_a_stream_of_the_background_that_was_left_goes_on_without(
    background: bool, read: int | None, ended: bool
) -> None:
    events = sse(response_events(ASK, ["m"])[:read])
    asked = {**ASK, "stream": True, "background": background}
    decoded = run("/v1/responses", events, asked, headers=STREAM, ending="complete" if ended else "closed")
    left = None if ended else "background" if background else "closed"
    assert decoded.attributes.get(semconv.INTERRUPTED) == left


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("words", ["m", "ids", "two-ids"])
def test_legacy_completions(words: str, echo: bool) -> None:
    request = {"model": "m", "prompt": ["one", "two"], "echo": echo, "n": 2 if "two" in words else 1, "suffix": "end"}
    decoded = run("/v1/completions", completion(request, words.split("-")), request)
    assert decoded.name == "text_completion m"
    several = len(read(decoded, semconv.INPUT_MESSAGES)) > 1
    assert decoded.attributes.get(semconv.PROMPT_FORM) == ("several" if several else None)
    end = {"type": "other", "value": {"type": "suffix", "suffix": "end"}}
    assert [message["parts"] for message in read(decoded, semconv.INPUT_MESSAGES)] == [
        [{"type": "text", "content": prompt}, end] for prompt in ("one", "two")
    ]
    answers = [answer["parts"][0]["content"] for answer in read(decoded, semconv.OUTPUT_MESSAGES)]
    n = 2 if "two" in words else 1
    assert answers == [prompt * echo + TEXT for prompt in ("one", "two") for _ in range(n)]
    attributes = decoded.attributes
    for index in range(2 * n):
        suffix = f".{index}" if index else ""
        ids = decode_token_ids(attributes.get(semconv.TOKEN_IDS + suffix))
        assert ids == (tuple(IDS) if "ids" in words else None)
        # Of an echo only what was sampled is kept.
        assert decode_logprobs(attributes.get(semconv.LOGPROBS + suffix)) == (tuple(LOGPROBS) if ids else None)
        prompt = decode_token_ids(attributes.get(semconv.PROMPT_TOKEN_IDS + suffix))
        own = index == 0 or index >= n
        assert prompt == ((index // n, 2) if ids and own else None)
    if not echo:
        events = sse(completion_events(request, words.split("-")), done=True)
        streamed = run("/v1/completions", events, request, headers=STREAM)
        kept = {name for name in attributes if "usage" not in name}
        assert {name: streamed.attributes.get(name) for name in kept} == {name: attributes[name] for name in kept}


def test_an_echo_without_ids_has_no_logprobs_and_a_prompt_of_ids_is_a_part() -> None:
    request = {"model": "m", "prompt": [5, 6], "echo": True}
    body = {"choices": [{"index": 0, "text": "x", "logprobs": {"token_logprobs": [None, -1.0]}}]}
    decoded = run("/v1/completions", body, request)
    assert semconv.LOGPROBS not in decoded.attributes
    (message,) = read(decoded, semconv.INPUT_MESSAGES)
    assert message["parts"] == [{"type": "other", "value": {"type": "token_ids", "token_ids": [5, 6]}}]


def test_embeddings_have_no_content() -> None:
    request = {"model": "e", "input": "mandelbrot", "encoding_format": "base64", "dimensions": 2}
    body = {"model": "e-1", "data": [{"embedding": [0.1, 0.2]}], "usage": {"prompt_tokens": 5, "total_tokens": 5}}
    decoded = run("/v1/embeddings", body, request)
    assert decoded == Decoded(
        "embeddings e",
        {
            semconv.OPERATION_NAME: "embeddings", semconv.OPENAI_API_TYPE: "embeddings", semconv.REQUEST_MODEL: "e",
            semconv.REQUEST_ENCODING_FORMATS: ["base64"], semconv.EMBEDDINGS_DIMENSION_COUNT: 2,
            semconv.HTTP_STATUS_CODE: 200, semconv.RESPONSE_MODEL: "e-1", semconv.USAGE_INPUT_TOKENS: 5,
        },
    )  # fmt: skip
    assert run("/v1/embeddings", b"[]", request).failure == ("invalid_response", "the response is no JSON object")


def test_the_model_of_an_azure_deployment_is_in_the_path() -> None:
    decoded = run("/openai/deployments/gpt-x/chat/completions", {"choices": []}, {"messages": []})
    assert decoded.name == "chat gpt-x"


def test_a_long_image_is_cut_and_the_cut_is_said() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 9000}
    request = {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "see"}, image]}]}
    exchange = Exchange(json.dumps(request).encode(), path="/v1/responses")
    attributes = decode(exchange, limit=2000).attributes
    assert attributes[semconv.TRUNCATED] == [semconv.INPUT_MESSAGES]
    parts = json.loads(attributes[semconv.INPUT_MESSAGES])[0]["parts"]
    assert parts == [{"type": "text", "content": "see"}, {"type": "other", "value": {"type": "input_image"}}]


NAMES = (
    "type input output content role item output_index delta response error summary text call_id name arguments prompt "
    "choices logprobs token_logprobs usage status instructions conversation echo model output_messages tokens arttrace "
    "token_ids logprob message messages delta stop_reason index content_block system tools"
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES.split()),
            inner
            | st.sampled_from(["message", "reasoning", "function_call", "response.output_text.delta", "x_output"]),
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(
    path=st.sampled_from(["/responses", "/completions", "/embeddings", "/chat/completions", "/v1/messages"]),
    request=json_values, body=json_values, stream=st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=250)
def test_nothing_raises_for_any_json(path: str, request: Any, body: Any, stream: bool) -> None:
    data = (f"data: {json.dumps(body)}\n\n" * 2).encode() if stream else json.dumps(body).encode()
    run(path, data, request, headers=STREAM if stream else {})
