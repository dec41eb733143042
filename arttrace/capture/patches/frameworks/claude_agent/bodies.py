"""The bodies of model calls that Claude Code writes into a directory: each request before it is sent, each answer when
it is whole, and a line of `index.jsonl` that names both.

What was taken is removed. Each attempt of a call writes its request anew. Source of the files: Claude Code's
`OTEL_LOG_RAW_API_BODIES` (https://code.claude.com/docs/en/monitoring-usage).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from arttrace.records.values.lenient_json import json_object
from arttrace.wire.span_attributes import json_or_none

INDEX = "index.jsonl"
_REQUESTS, _ANSWERS = "*.request.json", "*.response.json"


class RefusedAttempt(NamedTuple):
    """An attempt that the server did not answer as asked, as Claude Code said when it waited to try again."""

    time_ns: int
    status: int | None


class WrittenCall(msgspec.Struct, frozen=True):
    """One call. Times are in nanoseconds since the epoch, `answer` is None where none came whole."""

    request: bytes
    asked: dict[str, Any]
    """The request as it was parsed; without members where it cannot be."""
    answer: bytes | None
    said: dict[str, Any]
    """The answer as it was parsed; without members where there is none."""
    answer_id: str
    source: str
    """Which part of the program asked, as it names it."""
    started_ns: int
    ended_ns: int
    refused: tuple[RefusedAttempt, ...] = ()
    """Its attempts before this one."""


class _IndexLine(msgspec.Struct):
    """A line of the index whose call has not been taken, and the sizes of its request and answer at the last look."""

    said: dict[str, Any]
    seen: tuple[int, int] = (0, 0)


class WrittenBodies:
    """What is written into one directory, taken as it comes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read = 0
        self._waiting: list[_IndexLine] = []
        self._attempts: set[Path] = set()
        """The requests that were taken for attempts of a call and that no line has named yet."""

    def take(self, refusals: list[RefusedAttempt]) -> Iterator[WrittenCall]:
        """The calls that have come whole since the last time. `refusals` are those that Claude Code has told of; those
        that belong to one of its calls are taken out of the list."""
        self._waiting += map(_IndexLine, self._new_lines())
        for line in [*self._waiting]:
            request, answer = self._file(line.said.get("request_file")), self._file(line.said.get("response_file"))
            if request is None or answer is None or request in self._attempts:
                self._waiting.remove(line)
                self._attempts -= {request}
                continue
            sizes = _size(request), _size(answer)
            if sizes == line.seen or not all(sizes):
                continue
            line.seen = sizes
            written = self._call(line.said, request, answer, refusals)
            if written is not None:
                self._waiting.remove(line)
                yield written

    def has_begun(self, answers: list[str]) -> bool:
        """Whether one of these answers may be being written: a file is there that no line names as another's."""
        others = [line.said for line in self._waiting if line.said.get("message_id") not in answers]
        named = {said.get("response_file") for said in others}
        return any(path.name not in named for path in self._directory.glob(_ANSWERS))

    def rest(self, refusals: list[RefusedAttempt]) -> Iterator[WrittenCall]:
        """The calls that have no whole answer when the program has ended: those of one request are attempts of one.

        An older program writes no index: which answer is whose is not known there, and none is given.
        """
        if not (self._directory / INDEX).exists() and any(self._directory.glob(_ANSWERS)):
            return
        found: dict[bytes, list[int]] = {}
        for began_ns, path in self._requests():
            found.setdefault(path.read_bytes(), []).append(began_ns)
            path.unlink()
        for request, began in found.items():
            refused = [refusals.pop(0) if refusals else RefusedAttempt(ns, None) for ns in began]
            ended_ns = max(refused[-1].time_ns, began[-1])
            yield WrittenCall(
                request=request,
                asked=json_object(json_or_none(request)),
                answer=None,
                said={},
                answer_id="",
                source="",
                started_ns=began[0],
                ended_ns=ended_ns,
                refused=tuple(refused),
            )

    def _call(
        self, line: dict[str, Any], request: Path, answer: Path, refusals: list[RefusedAttempt]
    ) -> WrittenCall | None:
        """The call of a line; None while one of its files is being written: both are written beside being sent."""
        received = answer.read_bytes()
        if not isinstance(said := json_or_none(received), dict):
            return None
        sent = request.read_bytes()
        if not isinstance(asked := json_or_none(sent), dict):
            return None
        began_ns = request.stat().st_mtime_ns
        ended_ns = _time_ns(line.get("timestamp"))
        started_ns = min(began_ns, ended_ns)
        request.unlink()
        answer.unlink()
        return WrittenCall(
            request=sent,
            asked=asked,
            answer=received,
            said=said,
            answer_id=str(line.get("message_id")),
            source=str(line.get("query_source")),
            started_ns=started_ns,
            ended_ns=ended_ns,
            refused=tuple(self._attempts_of(sent, started_ns, refusals)),
        )

    def _attempts_of(self, sent: bytes, started_ns: int, refusals: list[RefusedAttempt]) -> Iterator[RefusedAttempt]:
        for began_ns, path in self._requests() if refusals else ():
            if refusals and began_ns <= started_ns and _size(path) == len(sent) and path.read_bytes() == sent:
                path.unlink()
                self._attempts.add(path)
                yield refusals.pop(0)

    def _new_lines(self) -> list[dict[str, Any]]:
        if _size(self._directory / INDEX) <= self._read:
            return []
        with (self._directory / INDEX).open("rb") as index:
            index.seek(self._read)
            lines = index.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json_object(json_or_none(line)) for line in whole.splitlines()]

    def _requests(self) -> list[tuple[int, Path]]:
        return sorted((path.stat().st_mtime_ns, path) for path in self._directory.glob(_REQUESTS))

    def _file(self, name: Any) -> Path | None:
        is_name = isinstance(name, str) and "/" not in name and "\\" not in name and "\0" not in name
        return self._directory / name if is_name else None


def _size(path: Path) -> int:
    """In bytes; 0 where it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _time_ns(timestamp: Any) -> int:
    try:
        return round(datetime.fromisoformat(timestamp).timestamp() * 1e3) * 1_000_000
    except (TypeError, ValueError):
        return time.time_ns()
