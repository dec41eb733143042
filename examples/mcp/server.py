"""An MCP server: timetable and fares of a small railway. It knows nothing of arttrace.

`python server.py` serves on stdio, `python server.py --http PORT` at http://127.0.0.1:PORT/mcp."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import timetable
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

T = TypeVar("T")

server = MCPServer(
    "timetable",
    instructions="Trains of a small railway: three lines, one direction, the same every day.",
    log_level="ERROR",
)


def answered(work: Callable[[], T]) -> T:
    """What the timetable says, or why it says nothing, as a client of the tool reads it."""
    try:
        return work()
    except ValueError as error:
        raise ToolError(str(error)) from error


@server.tool()
def stations() -> list[str]:
    """The names of all stations."""
    return timetable.stations()


@server.tool()
def departures(station: str, after: str, limit: int = 3) -> list[str]:
    """The next trains from a station at a time (HH:MM) or later, with the stations at which they call."""
    found = answered(lambda: timetable.departures(station, timetable.minutes(after)))[: max(1, min(limit, 10))]
    return [
        f"{timetable.clock(one.at)} {one.line}: "
        + ", ".join(f"{name} {timetable.clock(arrives)}" for name, arrives in one.calls_at)
        for one in found
    ]


@server.tool()
def fare(origin: str, destination: str, travel_class: str = "second") -> str:
    """The price of a direct journey, in first or second class."""
    cents = answered(lambda: timetable.fare(origin, destination, travel_class))
    return f"{cents // 100}.{cents % 100:02d}"


@server.resource("timetable://lines")
def lines() -> str:
    """The lines and their stations, in order."""
    return "\n".join(f"{line}: {', '.join(name for name, _ in calls)}" for line, calls in timetable.LINES.items())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--http"]:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
