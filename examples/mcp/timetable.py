"""A railway's timetable and fares, made of a few rules: the world behind the MCP server in server.py."""

from __future__ import annotations

from dataclasses import dataclass

LINES: dict[str, tuple[tuple[str, int], ...]] = {
    "Coast": (("Arden", 0), ("Brill", 18), ("Corfe", 41), ("Dunmore", 67), ("Eastry", 95)),
    "Valley": (("Arden", 0), ("Farley", 24), ("Corfe", 52), ("Gorran", 80)),
    "Hill": (("Farley", 0), ("Hythe", 33), ("Dunmore", 58)),
}
"""Stations of each line in order, with minutes from its first one."""

_FIRST, _LAST = 6 * 60, 22 * 60
_EVERY = {"Coast": 60, "Valley": 40, "Hill": 90}
_CENTS_PER_MINUTE = {"second": 12, "first": 19}


@dataclass(frozen=True)
class Departure:
    """One train from a station; times are minutes after midnight."""

    line: str
    at: int
    calls_at: tuple[tuple[str, int], ...]


def clock(minutes: int) -> str:
    """Minutes after midnight as HH:MM."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def minutes(text: str) -> int:
    """HH:MM as minutes after midnight. Raises ValueError for anything else."""
    hours, _, rest = text.partition(":")
    if not (hours.isdigit() and rest.isdigit() and len(rest) == 2 and int(hours) < 24 and int(rest) < 60):
        raise ValueError(f"{text!r} is no time such as 09:30")
    return int(hours) * 60 + int(rest)


def stations() -> list[str]:
    """All stations, by name."""
    return sorted({name for line in LINES.values() for name, _ in line})


def departures(station: str, after: int) -> list[Departure]:
    """The trains from a station at `after` or later, all lines and one direction, in order of time."""
    if station not in stations():
        raise ValueError(f"there is no station {station!r}; see the tool stations")
    found = []
    for line, calls in LINES.items():
        offsets = dict(calls)
        if station not in offsets or station == calls[-1][0]:
            continue
        for start in range(_FIRST, _LAST + 1, _EVERY[line]):
            at = start + offsets[station]
            if at >= after:
                onward = tuple((name, start + offset) for name, offset in calls if offset > offsets[station])
                found.append(Departure(line, at, onward))
    return sorted(found, key=lambda one: (one.at, one.line))


def fare(origin: str, destination: str, travel_class: str) -> int:
    """The price in cents of a direct journey. Raises ValueError where no line has both stations in this order."""
    if travel_class not in _CENTS_PER_MINUTE:
        raise ValueError(f"{travel_class!r} is no class: first or second")
    rides = [
        dict(calls)[destination] - dict(calls)[origin]
        for calls in LINES.values()
        if origin in dict(calls) and dict(calls).get(destination, -1) > dict(calls)[origin]
    ]
    if not rides:
        raise ValueError(f"no train goes from {origin} to {destination} without a change")
    return 100 + _CENTS_PER_MINUTE[travel_class] * min(rides)
