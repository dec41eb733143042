"""Converse's messages in the form of OpenAI's chat messages: for spans of its calls, and for those of SDKs that hold
its blocks.

A message there may hold results of tools and text side by side; here each result is a message of role "tool". Source
of the fields: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ContentBlock.html
"""

from __future__ import annotations

from typing import Any

from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.wire.messages import arguments_text


def chat_messages(messages: Any) -> list[dict[str, Any]] | None:
    """The chat messages that a request's `messages` say; None when these are no list of objects."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    return [chat for message in messages for chat in of_message(message.get("role"), message.get("content"))]


def of_message(role: Any, content: Any) -> list[dict[str, Any]]:
    """One message as chat messages: the results of tools one by one, then what else is said, if anything is or nothing
    is said at all."""
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    if role == "assistant":
        return [_answer(blocks)]
    results: list[dict[str, Any]] = []
    parts: list[Any] = []
    for block in blocks:
        given = block.get("toolResult") if isinstance(block, dict) else None
        if isinstance(given, dict):
            said, beside = _result(given.get("content"))
            results.append({"role": "tool", "tool_call_id": given.get("toolUseId"), "content": said})
            parts += beside
        else:
            parts += parts_of(block)
    if parts or not results:
        results.append({"role": role if isinstance(role, str) and role != "tool" else "user", "content": parts})
    return results


def parts_of(block: Any) -> list[dict[str, Any]]:
    """A block as content parts in OpenAI's form, one of an unknown kind as it came; none for a mark of the server's
    cache, of which the model sees nothing."""
    match block:
        case str():
            return [{"type": "text", "text": block}]
        case {"text": str() as text} | {"guardContent": {"text": {"text": str() as text}}}:
            return [{"type": "text", "text": text}]
        case {"image": dict() as image} | {"guardContent": {"image": dict() as image}}:
            return [_image(image)]
        case {"audio": {"format": str() as form, "source": {"bytes": str() as data}}}:
            return [{"type": "input_audio", "input_audio": {"data": data, "format": form}}]
        case {"document": dict() as document}:
            return [_document(document)]
        case {"searchResult": dict() as found}:
            return [_titled(found.get("title"), _texts(found.get("content")))]
        case {"citationsContent": dict() as cited}:
            return [{"type": "text", "text": _texts(cited.get("content"), "")}]
        case {"cachePoint": _}:
            return []
    if isinstance(block, dict) and block:
        return [{"type": next(iter(block)), **block}]
    return [{"type": "content", "content": block}]


def _answer(blocks: list[Any]) -> dict[str, Any]:
    parts: list[Any] = []
    calls: list[dict[str, Any]] = []
    thoughts = ""
    for block in blocks:
        match block:
            case {"toolUse": {"name": str() as name, **asked}} if asked.get("type") != "server_tool_use":
                function = {"name": name, "arguments": _arguments(asked.get("input"))}
                calls.append({"id": asked.get("toolUseId"), "type": "function", "function": function})
            case {"reasoningContent": {"reasoningText": {"text": str() as thought}}}:
                thoughts += thought
            case {"text": ""}:
                pass
            case _:
                parts += parts_of(block)
    message: dict[str, Any] = {"role": "assistant", "content": parts or (None if calls else "")}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message


def _arguments(given: Any) -> str:
    return arguments_text({} if given is None else given) or "{}"


def _result(content: Any) -> tuple[Any, list[dict[str, Any]]]:
    """What a tool gave back: its text, or the one value that it is. Beside it the images and the like: templates render
    text alone as a tool's result, so that these follow as the user's."""
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    if len(blocks) == 1 and isinstance(blocks[0], dict) and "json" in blocks[0]:
        return blocks[0]["json"], []
    texts: list[str] = []
    beside: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, dict) and "json" in block:
            texts.append(_arguments(block["json"]))
            continue
        for part in parts_of(block):
            if part["type"] == "text":
                texts.append(part["text"])
            else:
                beside.append(part)
    return "\n".join(texts), beside


def _image(image: dict[str, Any]) -> dict[str, Any]:
    match image:
        case {"source": {"bytes": str() as data}}:
            url = f"data:image/{image.get('format')};base64,{data}"
            return {"type": "image_url", "image_url": {"url": url}}
        case {"source": {"s3Location": {"uri": str() as uri}}}:
            return {"type": "image_url", "image_url": {"url": uri}}
    return {"type": "image", "image": image}


def _document(document: dict[str, Any]) -> dict[str, Any]:
    """A document that is text, as text below its name; any other as it came."""
    source = json_object(document.get("source"))
    if isinstance(text := source.get("text"), str):
        return _titled(document.get("name"), text)
    if texts := _texts(source.get("content")):
        return _titled(document.get("name"), texts)
    return {"type": "document", "document": document}


def _titled(title: Any, text: str) -> dict[str, Any]:
    return {"type": "text", "text": f"{title}\n\n{text}" if isinstance(title, str) and title else text}


def _texts(content: Any, between: str = "\n") -> str:
    return between.join(text for one in json_objects(content) if isinstance(text := one.get("text"), str))


def chat_tools(tools: Any) -> list[Any]:
    """A request's tools as OpenAI's chat completions take them; those of the server as they came."""
    found: list[Any] = []
    for tool in json_objects(tools):
        spec = tool.get("toolSpec")
        if isinstance(spec, dict):
            described = {name: spec[name] for name in ("name", "description", "strict") if spec.get(name) is not None}
            schema = json_object(spec.get("inputSchema")).get("json")
            parameters = {} if schema is None else {"parameters": schema}
            found.append({"type": "function", "function": {**described, **parameters}})
        elif "cachePoint" not in tool:
            found.append(tool)
    return found
