"""`arttrace mcp`: the store for coding agents and other clients of the Model Context Protocol (MCP), read only."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, get_args

import click
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from rich.console import Console

from arttrace.commands.shared.options import store_option
from arttrace.formats.imported_run import is_undated
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import AnyStore, TrajectorySummary, open_store
from arttrace.store.access.sql import encode_values, named_rows
from arttrace.store.rows.view_definition import as_markdown
from arttrace.store.rows.views import DESCRIBED
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from arttrace.views import run_filter, terminal
from arttrace.views.console.comparison import compare, document
from arttrace.views.run_filter import RunFilter, moment, newest
from arttrace.views.statistics import By, statistics

_MAX_ROWS = 1000
_MAX_CHARACTERS = 100_000
_MAX_NAMES = 50
_WIDTH = 200
_MORE = {"left_out": "older runs that match; raise limit"}


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
    try:
        server(data).run("stdio")
    except KeyboardInterrupt:
        os._exit(0)  # a thread waits for the client's next line, and the interpreter's end for that thread


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.default_int_handler(number, frame)


def server(data: DataDir) -> MCPServer[Any]:
    """The server for one data directory; each call opens the store and closes it."""
    made: MCPServer[Any] = MCPServer(
        "arttrace", instructions="Runs of LLM agents as arttrace captured them; read only."
    )

    def reading(work: Callable[[AnyStore], str]) -> str:
        try:
            with open_store(data) as store:
                text = work(store)
        except (ArttraceError, ValueError) as error:
            raise ToolError(str(error)) from error
        cut = f"\n[cut at {_MAX_CHARACTERS} of {len(text)} characters]"
        return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + cut

    def listed(store: AnyStore, wanted: RunFilter, limit: int) -> str:
        found = newest(store, wanted, limit + 1)
        more = [_MORE] if len(found) > limit else []
        return _json([*map(_row, found[:limit]), *more])

    @made.tool()
    def list_runs(
        entry: str | None = None,
        group: str | None = None,
        tag: str | None = None,
        policy: str | None = None,
        status: str | None = None,
        reward: str | None = None,
        since: str | None = None,
        limit: int = 20,
    ) -> str:
        """Runs as JSON, the newest first. `status` is complete, unread, incomplete or failed; `reward` a comparison
        such as "<0.5", or "none"; `since` an age such as "2h" or a date; the others as list_runs shows them. The last
        item says whether there are more than `limit`."""
        return reading(
            lambda store: listed(
                store,
                RunFilter(
                    entry=entry,
                    group=group,
                    tags=() if tag is None else (tag,),
                    policy=policy,
                    status=() if status is None else (status,),
                    reward=reward,
                    since_ns=None if since is None else moment(since),
                ),
                limit,
            )
        )

    @made.tool()
    def search_runs(text: str, limit: int = 20) -> str:
        """Runs in whose messages, arguments or results the text stands, as JSON, the newest first."""
        return reading(lambda store: listed(store, RunFilter(search=text), limit))

    @made.tool()
    def show_run(id: str) -> str:
        """One run as text: what is known of it, then its agents as a tree with messages, tool calls and HTTP requests.
        `id` may be the beginning of one."""

        def shown(store: AnyStore) -> str:
            run = store.trajectory(id)
            tokens, report = sequences(run)
            page = Console(file=io.StringIO(), width=_WIDTH, highlight=False)
            page.print(terminal.trajectory_view(run, tokens, report, trajectory_reward(run)))
            return page.file.getvalue()  # type: ignore[attr-defined, no-any-return]

        return reading(shown)

    @made.tool()
    def diff(first: str, second: str, limit: int = 20) -> str:
        """Where two runs part, as JSON: the last steps that they have in common, then what each did from there, at most
        `limit` steps. The ids may be beginnings."""
        return reading(
            lambda store: _json(document(compare(store.trajectory(first), store.trajectory(second), max(1, limit))))
        )

    @made.tool()
    def stats(since: str | None = None) -> str:
        """Runs, calls, tokens, errors, seconds and mean reward as JSON: by entry, agent, model and tool, as `arttrace
        stats --json` has them, the most frequent of each. `since` is an age such as "2h" or a date."""

        def summed(store: AnyStore) -> str:
            since_ns = 0 if since is None else moment(since)
            return _json({kind: statistics(store, kind, since_ns=since_ns)[:_MAX_NAMES] for kind in get_args(By)})

        return reading(summed)

    views = as_markdown(DESCRIBED)

    @made.tool(description=f"Run one SQL query of DuckDB's dialect that reads these views, as JSON:\n\n{views}")
    def sql(query: str) -> str:
        def asked(store: AnyStore) -> str:
            columns, rows = store.sql(query)
            more = [] if len(rows) <= _MAX_ROWS else [{"left_out": len(rows) - _MAX_ROWS}]
            return _json([*named_rows(columns, rows[:_MAX_ROWS]), *more])

        return reading(asked)

    return made


def _row(run: TrajectorySummary) -> dict[str, Any]:
    return {
        "id": run.id,
        "entry": run.entry,
        "group": run.group,
        "started_ns": None if is_undated(run.start_ns) else run.start_ns,
        "agents": run.agents,
        "calls": run.calls,
        "tool_calls": run.tool_calls,
        "policy": list(run.policy_versions),
        "reward": trajectory_reward(run),
        "status": run_filter.status(run),
        "error": run.error,
        "incomplete": run.incomplete,
        "unread": run.unread,
        "tags": list(run.tags),
        "metadata": run.metadata,
    }


def _json(value: Any) -> str:
    return encode_values(value).decode()
