"""OpenAI's chat messages, tools and settings, wherever another format holds them, as attributes of ours; Anthropic's
messages and tools too, and items of the Responses API, which stand where messages do. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import msgspec

from arttrace.formats.sdks.anthropic_messages import in_openais_form
from arttrace.records import semconv
from arttrace.records.message import Part, joined_text, thought_of
from arttrace.records.span import Attributes
from arttrace.records.values.finish_reasons import stated_reason
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.nesting import UNREADABLE
from arttrace.trajectories.decoding.attribute_values import from_json
from arttrace.trajectories.decoding.messages import chat_tool
from arttrace.wire.apis.anthropic.chat import chat_tools
from arttrace.wire.apis.openai.response_items import parse_input, parse_output
from arttrace.wire.apis.openai.responses import status_reason
from arttrace.wire.messages import parse_message

_encoder = msgspec.json.Encoder()

_SETTINGS = {
    "model": semconv.REQUEST_MODEL,
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "top_k": semconv.REQUEST_TOP_K,
    "max_tokens": semconv.REQUEST_MAX_TOKENS,
    "max_completion_tokens": semconv.REQUEST_MAX_TOKENS,
    "seed": semconv.REQUEST_SEED,
    "frequency_penalty": semconv.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": semconv.REQUEST_PRESENCE_PENALTY,
}


def inputs(messages: Sequence[Any]) -> str:
    """Messages in OpenAI's form, or Anthropic's, as the JSON text of `gen_ai.input.messages`."""
    given = [message for message in messages if isinstance(message, dict)]
    if are_items(given):
        return _list_text(parse_input(given) or ())
    return _list_text([parse_message(plain(chat)) for message in given for chat in in_openais_form(message)])


def are_items(messages: Sequence[Any]) -> bool:
    """Whether what stands in the place of messages are items of the Responses API: some have a type and no role, or
    texts of its types."""
    given = json_objects(messages)
    if any("tool_calls" in one or one.get("role") == "tool" for one in given):
        return False
    return any(_is_item(one) or any(map(_is_text_of_an_item, json_objects(one.get("content")))) for one in given)


def items_asked(given: Any, instructions: Any) -> list[Any]:
    """What a request of the Responses API asks, in the place of messages: a text is the user's."""
    asked = given if isinstance(given, list) else [{"role": "user", "content": given}]
    return [*([{"role": "system", "content": instructions}] if instructions else []), *asked]


def items_answered(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a response of the Responses API, the first with why the response ended; none of what is no such."""
    items = json_objects(response.get("output"))
    return [{**items[0], "finish_reason": status_reason(response, items)}, *items[1:]] if are_items(items) else []


def _is_item(value: dict[str, Any]) -> bool:
    kind = value.get("type")
    return (
        "role" not in value
        and isinstance(kind, str)
        and (kind in ("reasoning", "item_reference", "compaction") or kind.endswith(("_call", "_call_output")))
    )


def _is_text_of_an_item(part: dict[str, Any]) -> bool:
    return part.get("type") in ("input_text", "output_text") and isinstance(part.get("text"), str)


class GrowingInputs:
    """`inputs` of a history that grows: what it begins with as it did the last time is not read again."""

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._text = ""

    def text(self, messages: Sequence[Any]) -> str:
        """As `inputs` gives it."""
        known = len(self._messages)
        if known > len(messages) or not all(map(operator.is_, self._messages, messages)):
            self._messages, self._text, known = [], "", 0
        more = inputs(new := messages[known:])[1:-1]
        self._messages += new
        self._text = f"{self._text},{more}" if self._text and more else self._text or more
        return f"[{self._text}]"


def answers(messages: Sequence[Any]) -> str:
    """Answers in either form, each with its finish reason, as the JSON text of `gen_ai.output.messages`; items of the
    Responses API are one answer."""
    if are_items(messages):
        items = json_objects(messages)
        whys = (reason for one in items if (reason := stated_reason(one)) is not None)
        cut = "incomplete" if any(one.get("status") == "incomplete" for one in items) else None
        return _list_text([_answer("assistant", parse_output(items), None, next(whys, cut))])
    found = []
    for message in messages:
        if isinstance(message, dict):
            [*_, said] = in_openais_form({"role": "assistant", **message})
            parsed = parse_message(plain(said))
            found.append(_answer(parsed.role, parsed.parts, parsed.name, stated_reason(message)))
    return _list_text(found)


def _answer(role: str, parts: Sequence[Part], name: str | None, reason: str | None) -> dict[str, Any]:
    answer = {"role": role, "parts": parts, "name": name}
    return answer if reason is None else {**answer, "finish_reason": reason}


def reasons_of(response: Any) -> list[str | None]:
    """Why each answer of a response ended: one of OpenAI's, Anthropic's or Gemini's APIs, or what LangChain makes of
    them."""
    if not isinstance(response, dict):
        return []
    for name in ("choices", "candidates"):
        if isinstance(found := response.get(name), list):
            return [stated_reason(json_object(one)) for one in found]
    generations = response.get("generations")
    if not isinstance(generations, list):
        return [stated_reason(response)]
    first = generations[0] if generations else None
    return [_reason_of_generation(json_object(one)) for one in (first if isinstance(first, list) else generations)]


def _reason_of_generation(generation: dict[str, Any]) -> str | None:
    message = json_object(generation.get("message"))
    about = json_object(json_object(message.get("kwargs", message)).get("response_metadata"))
    return stated_reason(json_object(generation.get("generation_info"))) or stated_reason(about)


def tools(definitions: Sequence[Any]) -> str:
    """Tool definitions in either form, in Gemini's or Bedrock's, as the JSON text of `gen_ai.tool.definitions`, in
    OpenAI's nested one."""
    return _list_text([_tool(one) for tool in definitions if isinstance(tool, dict) for one in declared(tool)])


def declared(tool: dict[str, Any]) -> list[dict[str, Any]]:
    """The functions that a tool of Gemini's, or Bedrock's, declares; any other tool alone."""
    if spec := json_object(tool.get("toolSpec")):
        schema = json_object(spec.get("inputSchema")).get("json")
        return [{"name": spec.get("name"), "description": spec.get("description"), "parameters": schema}]
    functions = tool.get("function_declarations", tool.get("functionDeclarations"))
    if not isinstance(functions, list):
        return [tool]
    return [
        {
            "name": one.get("name"),
            "description": one.get("description"),
            "parameters": one.get("parameters_json_schema", one.get("parametersJsonSchema", one.get("parameters"))),
        }
        for one in functions
        if isinstance(one, dict)
    ]


def offered_tools(given: Any) -> list[Any] | None:
    """A list of tools, or the JSON text of one, as tables hold it; None for anything else."""
    found = from_json(given) if isinstance(given, str) else given
    return found if isinstance(found, list) else None


def settings(parameters: Any) -> Attributes:
    """Request parameters under the names of the conventions."""
    if not isinstance(parameters, dict):
        return {}
    return {
        name: value
        for key, name in _SETTINGS.items()
        if isinstance(value := parameters.get(key), (int, float, str)) and not isinstance(value, bool)
    }


def langchain_result(output: Any) -> Attributes:
    """What a tool returned, and for which call, where this is the message that LangChain made of it; else nothing."""
    given = json_object(from_json(output))
    dumped = json_object(given.get("output")) or given
    message = json_object(dumped.get("data", dumped.get("kwargs", dumped)))
    if message.get("type") != "tool" or "content" not in message:
        return {}
    content, id = message["content"], message.get("tool_call_id")
    found: Attributes = {semconv.TOOL_CALL_RESULT: content if isinstance(content, str) else text_of(content)}
    return {**found, semconv.TOOL_CALL_ID: id} if isinstance(id, str) and id else found


def keywords(given: Any) -> Any:
    """A function's input without the frame `{"args": [], "kwargs": {...}}`, where there are only keywords."""
    if isinstance(given, dict) and set(given) == {"args", "kwargs"} and not given["args"]:
        return given["kwargs"]
    return given


def text_of(value: Any) -> str | None:
    """JSON text of a value; None stays None, and is what becomes of a value too deep to be written."""
    try:
        return None if value is None else _encoder.encode(value).decode()
    except UNREADABLE:
        return None


def metadata_text(members: dict[str, Any]) -> str:
    """JSON text of the metadata of a run. Raises ValueError where it is too deep to be written."""
    if (found := text_of(members)) is None:
        raise ValueError("its metadata is nested too deep to be written")
    return found


def last_text(messages: Any) -> str | None:
    """The text of the last of some messages, in the conventions' form or as a chat has it; None where it has none."""
    last = json_object(messages[-1]) if isinstance(messages, list) and messages else {}
    said = last.get("parts", last.get("content"))
    texts = [part for part in json_objects(said) if part.get("type") in ("text", "output_text")]
    return (said if isinstance(said, str) else joined_text(texts)) or None


def _list_text(items: Sequence[Any]) -> str:
    """JSON text of a list, without the items that cannot be written."""
    return text_of(items) or f"[{','.join(text for item in items if (text := text_of(item)) is not None)}]"


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if "input_schema" in tool:
        [said] = chat_tools([{**tool, "input_schema": from_json(tool["input_schema"])}])
        return dict(said)
    is_the_servers = not {"parameters", *_SCHEMA} & tool.keys() and tool.get("type") not in (None, "function", "custom")
    if "function" in tool or "name" not in tool or is_the_servers:
        return tool
    return chat_tool({_SCHEMA.get(key, key): value for key, value in tool.items() if key != "type"})


_SCHEMA = {"inputSchema": "parameters"}  # of MCP, and of Vercel's AI SDK


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Tool calls without the `function` level are given it; arguments stay as they are, of those too that LangChain
    puts apart where they are no JSON. Gemini's `model` is the assistant."""
    if message.get("role") == "model":
        message = {**message, "role": "assistant"}
    calls = message.get("tool_calls")
    if isinstance(invalid := message.get("invalid_tool_calls"), list) and invalid:
        valid = calls if isinstance(calls, list) else []
        known = [json_object(call).get("id") for call in valid]
        calls = [*valid, *(call for call in invalid if json_object(call).get("id") not in known)]
    if message.get("role") == "assistant" and isinstance(message.get("content"), list):
        message = _without_items(message, calls)
    if not isinstance(calls, list):
        return message
    nested = [
        call
        if not isinstance(call, dict) or "function" in call or not isinstance(call.get("name"), str)
        else {
            "id": call.get("id"),
            "function": {"name": call.get("name"), "arguments": call.get("arguments", call.get("args"))},
        }
        for call in calls
    ]
    return {**message, "tool_calls": nested}


_CALLS = ("function_call", "custom_tool_call", "tool_call")


def _without_items(message: dict[str, Any], calls: Any) -> dict[str, Any]:
    """An answer of the Responses API, whose items LangChain keeps among the parts of its content: thoughts apart, and
    without the calls that stand among its tool calls as well."""
    ids = [json_object(call).get("id") for call in calls] if isinstance(calls, list) else []
    parts, thoughts = [], []
    for part in message["content"]:
        item = json_object(part)
        if item.get("type") == "reasoning" and (thought := thought_of(item)):
            thoughts.append(thought)
        elif item.get("type") not in _CALLS or item.get("call_id", item.get("id")) not in ids:
            parts.append(part)
    apart = {"reasoning_content": "\n\n".join(thoughts)} if thoughts else {}
    return {**message, **apart, "content": parts} if len(parts) < len(message["content"]) else message
