"""The bodies of model calls that another program writes into a directory, as Claude Code does: each request before it
is sent, each answer when it is whole, and a line of `index.jsonl` that names both.

What was taken is removed. Each attempt of a call writes its request anew. Source of the files: Claude Code's
`OTEL_LOG_RAW_API_BODIES` (https://code.claude.com/docs/en/monitoring-usage).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from arttrace.records.values.lenient_json import json_object
from arttrace.wire.span_attributes import json_or_none

INDEX = "index.jsonl"
_REQUESTS, _ANSWERS = "*.request.json", "*.response.json"


class RefusedAttempt(NamedTuple):
    """An attempt that the server did not answer as asked, as the other program said when it waited to try again."""

    time_ns: int
    status: int | None


class WrittenCall(msgspec.Struct, frozen=True):
    """One call. Times are in nanoseconds since the epoch, `answer` is None where none came whole."""

    request: bytes
    answer: bytes | None
    answer_id: str
    source: str
    """Which part of the program asked, as it names it."""
    started_ns: int
    ended_ns: int
    refused: tuple[RefusedAttempt, ...] = ()
    """Its attempts before this one."""


class WrittenBodies:
    """What is written into one directory, taken as it comes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read = 0
        self._waiting: list[dict[str, Any]] = []

    def take(self, refusals: list[RefusedAttempt]) -> list[WrittenCall]:
        """The calls that have come whole since the last time. `refusals` are those that the program has told of; those
        that belong to one of its calls are taken out of the list."""
        self._waiting += self._new_lines()
        taken: list[WrittenCall] = []
        for line in [*self._waiting]:
            request, answer = self._body(line.get("request_file")), self._body(line.get("response_file"))
            if answer is None or request is None or not isinstance(json_or_none(answer), dict):
                continue  # it is being written
            self._waiting.remove(line)
            path = self._directory / line["request_file"]
            ended_ns = _time_ns(line.get("timestamp"))
            started_ns = min(path.stat().st_mtime_ns, ended_ns)  # it is written beside being sent
            self._remove(path, self._directory / line["response_file"])
            taken.append(
                WrittenCall(
                    request=request,
                    answer=answer,
                    answer_id=str(line.get("message_id")),
                    source=str(line.get("query_source")),
                    started_ns=started_ns,
                    ended_ns=ended_ns,
                    refused=tuple(self._attempts_of(request, started_ns, refusals)),
                )
            )
        return taken

    def rest(self, refusals: list[RefusedAttempt]) -> list[WrittenCall]:
        """The calls that have no whole answer when the program has ended: those of one request are attempts of one.

        An older program writes no index: which answer is whose is not known there, and none is given.
        """
        if not (self._directory / INDEX).exists() and any(self._directory.glob(_ANSWERS)):
            return []
        found: dict[bytes, list[int]] = {}
        for began_ns, path in self._requests():
            if (request := self._body(path.name)) is not None:
                found.setdefault(request, []).append(began_ns)
            self._remove(path)
        rest = []
        for request, began in found.items():
            refused = [refusals.pop(0) if refusals else RefusedAttempt(ns, None) for ns in began]
            ended_ns = max(refused[-1].time_ns, began[-1])
            rest.append(WrittenCall(request, None, "", "", began[0], ended_ns, tuple(refused)))
        return rest

    def _attempts_of(self, request: bytes, started_ns: int, refusals: list[RefusedAttempt]) -> Iterable[RefusedAttempt]:
        for began_ns, path in self._requests() if refusals else ():
            if began_ns > started_ns or path.stat().st_size != len(request) or self._body(path.name) != request:
                continue
            if refusals:
                self._remove(path)
                yield refusals.pop(0)

    def _new_lines(self) -> list[dict[str, Any]]:
        try:
            with (self._directory / INDEX).open("rb") as index:
                index.seek(self._read)
                lines = index.read()
        except FileNotFoundError:
            return []
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json_object(json_or_none(line)) for line in whole.splitlines()]

    def _requests(self) -> list[tuple[int, Path]]:
        return sorted((path.stat().st_mtime_ns, path) for path in self._directory.glob(_REQUESTS))

    def _body(self, name: Any) -> bytes | None:
        if not isinstance(name, str) or "/" in name:
            return None
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    @staticmethod
    def _remove(*paths: Path) -> None:
        for path in paths:
            path.unlink(missing_ok=True)


def _time_ns(timestamp: Any) -> int:
    try:
        return round(datetime.fromisoformat(timestamp).timestamp() * 1e3) * 1_000_000
    except (TypeError, ValueError):
        return time.time_ns()
