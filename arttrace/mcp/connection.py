"""A connection to an MCP server, and what the server offers: bounded, and in the form in which models take tools."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from mcp import Client, MCPError, StdioServerParameters
from mcp.server import MCPServer
from mcp.types import TextResourceContents

from arttrace.records.values.users_text import error_line
from arttrace.system.addresses import is_http, why_never_asked, without_login
from arttrace.system.errors import RolloutError

Server = str | Sequence[str] | StdioServerParameters | MCPServer[Any] | Callable[[], Client]
"""A server: its URL (streamable HTTP), the command line that starts it (stdio), the `mcp` package's parameters for one,
a server object in this process, or a function that makes an `mcp.Client`, for headers and the like."""

MAX_TOOLS = 128
MAX_RESOURCES = 100
_MAX_EXCERPTS = 10
_EXCERPT_CHARS = 2000
_READ_TIMEOUT_S = 120.0
_MAX_PAGES = 100


class Resource(msgspec.Struct, frozen=True):
    """A resource of a server. `excerpt` is its beginning, where it is text and among the first ten."""

    uri: str
    name: str
    description: str = ""
    excerpt: str = ""


class Offer(msgspec.Struct, frozen=True):
    """What a server offers: its own instructions, tools in OpenAI's form, and resources."""

    instructions: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    resources: tuple[Resource, ...] = ()

    def described(self) -> str:
        """The offer in words, for a model that writes tasks."""
        lines = [self.instructions] if self.instructions else []
        lines.append("The agent has these tools:")
        for tool in self.tools:
            function = tool["function"]
            schema = msgspec.json.encode(function["parameters"]).decode()
            lines.append(f"- {function['name']}: {function['description']}\n  arguments: {schema}")
        if self.resources:
            lines.append("It can read these resources:")
        for one in self.resources:
            lines.append(f"- {one.name} ({one.uri}): {one.description}")
            if one.excerpt:
                lines.append(f"  begins with: {one.excerpt}")
        return "\n".join(lines)


@asynccontextmanager
async def connect(server: Server) -> AsyncIterator[Client]:
    """An `mcp.Client` connected to a server, with a session of its own; a server on stdio is started for it.

    Args:
        server: The server.

    Raises:
        RolloutError: The server cannot be reached, does not speak the protocol, or breaks off the session.
    """
    raised: BaseException | None = None
    try:
        async with AsyncExitStack() as stack:
            connected = await _entered(stack, server)
            try:
                yield connected
            except BaseException as error:
                raised = error
                raise
    except BaseExceptionGroup as failed:
        if raised is None:
            raise
        if isinstance(raised, asyncio.CancelledError) and not _is_cancelled():
            raise _ended(f"{_shown(server)} broke off the session: {error_line(_first(failed))}") from failed
        raise raised from raised.__cause__  # the client's tasks put what the block raises into a group


def _is_cancelled() -> bool:
    """Whether somebody wants the task to end; where a connection breaks, it is the client that ends the block."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _ended(what: str) -> RolloutError:
    return RolloutError(f"the MCP server {what}", "See what it printed, and try the calls of the run by hand.")


async def require_answer(client: Client) -> None:
    """Raises RolloutError where a server that began a session does not answer any more."""
    try:
        await client.list_tools()
    except MCPError as error:
        raise _ended(f"ended during the run: {error_line(error)}") from error


async def _entered(stack: AsyncExitStack, server: Server) -> Client:
    try:
        return await stack.enter_async_context(_client(server))
    except Exception as error:
        why = _first(error)
        raise RolloutError(
            f"the MCP server {_shown(server)} cannot be reached: {error_line(why)}",
            "Give the URL at which it answers, or a command line that starts it on stdio, and try that by hand.",
        ) from error


async def read_offer(client: Client, *, excerpts: bool = True) -> Offer:
    """What a server offers: at most 128 tools and 100 resources, and the beginning of the first ten resources.

    Args:
        client: The connection, from `connect`.
        excerpts: Read these resources; without it, they have no beginning.

    Raises:
        RolloutError: The server offers no tool.
    """
    tools = await _pages(client.list_tools, "tools", MAX_TOOLS)
    if not tools:
        raise RolloutError("the MCP server offers no tool", "There is nothing in it that an agent could learn to use.")
    found = []
    if client.server_capabilities.resources is not None:
        for place, one in enumerate(await _pages(client.list_resources, "resources", MAX_RESOURCES)):
            excerpt = await _excerpt(client, str(one.uri)) if excerpts and place < _MAX_EXCERPTS else ""
            found.append(Resource(str(one.uri), one.name, one.description or "", excerpt))
    return Offer(client.instructions or "", tuple(_offered(tool) for tool in tools), tuple(found))


def _client(server: Server) -> Client:
    if isinstance(server, str):
        if is_http(server):
            if why := why_never_asked(server, None):  # the client's own error quotes a part of a login
                raise ValueError(why)
            return Client(server, read_timeout_seconds=_READ_TIMEOUT_S)
        server = shlex.split(server)
    if isinstance(server, Sequence):
        if not server:
            raise ValueError("the command line is empty")
        server = StdioServerParameters(command=server[0], args=list(server[1:]))
    if isinstance(server, StdioServerParameters | MCPServer):
        return Client(server, read_timeout_seconds=_READ_TIMEOUT_S)
    return server()


def _shown(server: Server) -> str:
    """A server's address, or its command without arguments, which may hold keys."""
    if isinstance(server, str) and is_http(server):
        return without_login(server).partition("?")[0]
    if isinstance(server, str):
        server = server.split()
    if isinstance(server, Sequence):
        return server[0] if server else "with an empty command line"
    return server.command if isinstance(server, StdioServerParameters) else repr(server)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _pages(list_page: Callable[..., Any], name: str, most: int) -> list[Any]:
    found: list[Any] = []
    cursor = None
    for _ in range(_MAX_PAGES):
        page = await list_page(cursor=cursor)
        found += getattr(page, name)
        cursor = page.next_cursor
        if cursor is None or len(found) >= most:
            break
    return found[:most]


async def _excerpt(client: Client, uri: str) -> str:
    try:
        read = await client.read_resource(uri)
    except MCPError:
        return ""
    texts = [part.text for part in getattr(read, "contents", []) if isinstance(part, TextResourceContents)]
    return "\n".join(texts)[:_EXCERPT_CHARS]


def _offered(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}
