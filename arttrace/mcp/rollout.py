"""A rollout on an MCP server: a chat with its tools, until the model answers without a call."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from mcp import Client, MCPError
from mcp.types import CONNECTION_CLOSED, TextContent, TextResourceContents

from arttrace.capture.api import update
from arttrace.capture.decorators import tool, trajectory
from arttrace.mcp.connection import Server, connect, read_offer, require_answer
from arttrace.records.values.lenient_json import read_json, well_formed
from arttrace.records.values.nesting import are_shallow
from arttrace.records.values.users_text import safe_text

SYSTEM_PROMPT = "Solve the user's task with the tools you have. When it is done, answer in words, without a tool call."
READ_RESOURCE = "read_resource"
_READ_TOOL = {
    "type": "function",
    "function": {
        "name": READ_RESOURCE,
        "description": "Read a resource of the server.",
        "parameters": {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
    },
}
_MAX_RESULT_CHARS = 20_000
_MOST_LEVELS = 64


class CalledModel(Protocol):
    """What a rollout needs of a model: `Model` and `TrainableModel` of `arttrace.loop` have it."""

    @property
    def inference_name(self) -> str: ...

    def openai_client(self) -> Any: ...


@trajectory(name="mcp", group=lambda model, task, *_, **__: task)
async def rollout(
    model: CalledModel,
    task: str,
    server: Server,
    *,
    max_turns: int = 10,
    system_prompt: str = SYSTEM_PROMPT,
    **request: Any,
) -> str:
    """One run of an agent on an MCP server, captured as a trajectory. The server's session is the run's own.

    A tool that fails, does not exist, breaks its own schema or gets arguments that are no JSON returns the error to the
    model, and the run continues.

    Args:
        model: The model that is asked.
        task: The user's message; runs of one task are a group.
        server: The server.
        max_turns: The largest number of requests to the model.
        system_prompt: The system message.
        request: Additional fields of each request, such as `temperature` and `max_tokens`.

    Returns:
        The model's last answer; the text beside its calls when `max_turns` ended the run.

    Raises:
        RolloutError: The server cannot be reached, ends during the run, or offers no tool.
        openai.OpenAIError: The model cannot be asked.

    Example:
        ```python
        scenarios = await generate_scenarios("npx -y @modelcontextprotocol/server-everything", 24)
        groups = await gather_trajectory_groups(
            (TrajectoryGroup(rollout(model, one.task, server) for _ in range(8)) for one in scenarios),
            after_each=lambda group: ruler_score_group(group, "openai/o3", swallow_exceptions=True),
        )
        ```
    """
    messages: list[Any] = [{"role": "system", "content": system_prompt}, {"role": "user", "content": task}]
    text = ""
    async with model.openai_client() as openai_client, connect(server) as client:
        offer = await read_offer(client, excerpts=False)
        reads = bool(offer.resources) and all(one["function"]["name"] != READ_RESOURCE for one in offer.tools)
        tools = [*offer.tools, *([_READ_TOOL] if reads else [])]
        for _ in range(max_turns):
            answer = await openai_client.chat.completions.create(
                model=model.inference_name, messages=messages, tools=tools, **request
            )
            message = answer.choices[0].message
            text = message.content or ""
            if not message.tool_calls:
                return text
            messages.append(well_formed(message.model_dump(exclude_none=True)))
            for call in message.tool_calls:
                work = _read_resource if reads and call.function.name == READ_RESOURCE else _call_tool
                name = well_formed(call.function.name)
                result = await _result(work, client, name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    update(tags=["max_turns"])
    return text


async def _result(work: Callable[..., Awaitable[str]], client: Client, name: str, arguments: str) -> str:
    """What the model reads of a call: its result, bounded, or its error."""
    try:
        given = _read(arguments)
    except ValueError as error:
        return f"error: the arguments of {name} cannot be read: {error}"
    try:
        text = await work(client, name, given)
    except (MCPError, RuntimeError) as error:  # the client raises the latter where a result breaks the tool's schema
        if (
            isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
        ):  # servers use the number for errors of tools
            await require_answer(client)
        text = f"error: {safe_text(error)}"
    if len(text) <= _MAX_RESULT_CHARS:
        return text
    return f"{text[:_MAX_RESULT_CHARS]}\n[cut at {_MAX_RESULT_CHARS} of {len(text)} characters]"


def _read(arguments: str) -> dict[str, Any]:
    """What can be sent to a server. Raises ValueError for anything else: the client breaks off the session for it."""
    try:
        given = read_json(arguments or "{}")
        is_shallow = are_shallow([given], _MOST_LEVELS)
    except RecursionError:
        is_shallow = False
    if not is_shallow:
        raise ValueError("they are nested too deep")
    if not isinstance(given, dict):
        raise ValueError("they are no JSON object")
    return given


async def _call_tool(client: Client, name: str, arguments: dict[str, Any]) -> str:
    result = await client.call_tool(name, arguments)
    parts = [part.text if isinstance(part, TextContent) else f"[{part.type}]" for part in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts)
    return f"error: {text}" if result.is_error else text


async def _read_resource(client: Client, name: str, arguments: dict[str, Any]) -> str:
    @tool(name=name)
    async def read_resource(uri: str) -> str:
        read = await client.read_resource(uri)
        return "\n".join(part.text if isinstance(part, TextResourceContents) else "[binary]" for part in read.contents)

    return await read_resource(str(arguments.get("uri", "")))
