"""`arttrace mcp`: the store for coding agents and other clients of the Model Context Protocol (MCP), read only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from types import FrameType
from typing import Any

import anyio
import click
import msgspec
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from arttrace.commands.inspect.mcp_tools import TOOLS, StoreTool
from arttrace.commands.shared.ending import nobody_reads
from arttrace.commands.shared.options import store_option
from arttrace.store import AnyStore, open_store
from arttrace.store.file.cancellation import QUERY_S, Stop, took_too_long
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

_STOP_AGAIN_S = 0.2


@click.command("mcp")
@store_option
def command(data: DataDir) -> None:
    """Serve the store to an MCP client over stdin and stdout.

    The client starts this command; the contents of runs may be sent to the client's model. Tools: list_runs, show_run,
    search_runs, diff, stats, sql. All of them only read.
    """
    open_store(data).close()  # a client shows why a server does not start; tools that all fail it must ask first
    # Another handler than Python's own: for that one asyncio has its own, which waits for the thread below.
    signal.signal(signal.SIGINT, _interrupt)
    if hasattr(select, "poll"):
        threading.Thread(target=_end_when_nobody_reads, args=(os.dup(1),), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(_serve, StoreAnswers(data))
    os._exit(0)  # a thread may wait for the client's next line or for an owner's answer, and the interpreter for that


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.default_int_handler(number, frame)


def _end_when_nobody_reads(output: int) -> None:
    nobody_reads(output, wait=True)
    os._exit(0)  # the client's stdin may be open for as long as a process that it started


async def _serve(answers: StoreAnswers) -> None:
    async def tools(_context: Any, _asked: PaginatedRequestParams | None) -> ListToolsResult:
        hints = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        return ListToolsResult(
            tools=[
                Tool(name=name, description=one.description(), input_schema=one.schema(), annotations=hints)
                for name, one in TOOLS.items()
            ]
        )

    async def call(_context: Any, asked: CallToolRequestParams) -> CallToolResult:
        text, failed = await answers.answer(asked.name, asked.arguments or {})
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

    server: Server[Any] = Server(
        "arttrace",
        version=version("arttrace"),
        instructions="Runs of LLM agents as arttrace captured them; read only.",
        on_list_tools=tools,
        on_call_tool=call,
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


class StoreAnswers:
    """Answers of the tools from one data directory. The store is open while a tool reads it: others need it too. Calls
    at the same time share it."""

    def __init__(self, data: DataDir) -> None:
        self._data = data
        self._lock = threading.Lock()
        self._store: AnyStore | None = None
        self._readers = 0

    async def answer(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """What a tool answers, and whether that is an error. When it is cancelled, what it reads is stopped."""
        if name not in TOOLS:
            return f"there is no tool {name!r}; there are {', '.join(TOOLS)}", True
        try:
            tool = msgspec.convert(arguments, TOOLS[name], strict=False)
            return await self._read(tool), False
        except (ArttraceError, ValueError) as error:
            return str(error), True

    async def _read(self, tool: StoreTool) -> str:
        stop = Stop()
        running = asyncio.ensure_future(asyncio.to_thread(self._answered_by, tool, stop))

        def stopped(why: str, hint: str | None = None) -> None:
            if not running.done():
                stop(why, hint)
                asyncio.get_running_loop().call_later(_STOP_AGAIN_S, stopped, why, hint)

        try:
            await asyncio.wait((running,), timeout=QUERY_S if tool.is_query else None)
            stopped(*took_too_long(QUERY_S))
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stopped("whoever asked does not wait any more")
            running.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else asks for it
            raise

    def _answered_by(self, tool: StoreTool, stop: Stop) -> str:
        with stop.current(), self._shared() as store:
            return tool.answer(store)

    @contextlib.contextmanager
    def _shared(self) -> Iterator[AnyStore]:
        with self._lock:
            if self._store is None:
                self._store = open_store(self._data)
            else:
                self._store.ingest_spool()
            store = self._store
            self._readers += 1
        try:
            yield store
        finally:
            with self._lock:
                self._readers -= 1
                if not self._readers:
                    self._store = None
                    store.close()
