"""Pull: the observations and scores of a Langfuse project as spans and rewards of the store, page by page.

Memory is bounded by a page. Where a pull was interrupted, the next one of the same query goes on.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from arttrace.formats.files.known_ids import KnownIds
from arttrace.formats.sdks.langfuse.api import EXPANDED, FIELDS, NotNumeric, observation, reward, scored_trace
from arttrace.formats.sdks.langfuse.reading import hex_id
from arttrace.formats.systems.refused_items import instead_of
from arttrace.records.record import Record
from arttrace.store import AnyStore
from arttrace.views.langfuse.client import OBSERVATIONS, SCORES, LangfuseClient, LangfuseError
from arttrace.views.langfuse.state import Cursor, PullCursor

_OBSERVATIONS_OF_PAGE = 500
_TRACES_OF_PAGE = 1000
_TRACES_AT_ONCE = 40
_SCORES_OF_PAGE = 100
_KEPT_REASONS = 5
_AGAIN = "What came before it is in the store; pull again with --from and --to, in shorter times."
_FIRST = "1970-01-01T00:00:00.000Z"


class TraceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which traces are read: those with an observation that all of this holds for. Times are ISO 8601."""

    since: str | None = None
    until: str | None = None
    tags: tuple[str, ...] = ()
    name: str | None = None
    session: str | None = None
    environment: str | None = None
    user: str | None = None

    @property
    def id(self) -> str:
        """16 hex digits."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()

    @property
    def is_whole(self) -> bool:
        """Whether every observation of the time is asked for, so that none need be looked for by its trace."""
        return not (self.tags or self.name or self.session or self.environment or self.user)

    @property
    def is_bounded(self) -> bool:
        """Whether there are traces beyond the time that is asked for."""
        return self.since is not None or self.until is not None

    def filter(self, until: str) -> str:
        """The `filter` of `/v2/observations`, as JSON."""
        conditions: list[dict[str, Any]] = [_condition("datetime", "startTime", "<", until)]
        if self.since is not None:
            conditions.append(_condition("datetime", "startTime", ">=", self.since))
        if self.tags:
            conditions.append(_condition("arrayOptions", "tags", "all of", list(self.tags)))
        for column, value in (
            ("traceName", self.name),
            ("sessionId", self.session),
            ("environment", self.environment),
            ("userId", self.user),
        ):
            if value is not None:
                conditions.append(_condition("string", column, "=", value))
        return msgspec.json.encode(conditions).decode()


def _condition(kind: str, column: str, operator: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "column": column, "operator": operator, "value": value}


class Pulled(msgspec.Struct):
    """What a pull brought: observations and scores read, how many of both were here before, scores that are no numbers,
    and what was refused."""

    observations: int = 0
    scores: int = 0
    already_stored: int = 0
    not_numeric: int = 0
    refused: int = 0
    reasons: list[str] = []

    def refuse(self, error: ValueError) -> None:
        """Keeps the first reasons."""
        self.refused += 1
        if len(self.reasons) < _KEPT_REASONS:
            self.reasons.append(str(error))


def pull(
    store: AnyStore,
    client: LangfuseClient,
    query: TraceQuery,
    kept: PullCursor,
    *,
    with_scores: bool = True,
    progress: Callable[[Pulled], None] = lambda _: None,
) -> Pulled:
    """Take in what the query asks for. What is there already stays once. `progress` is called after each page. Raises
    LangfuseError when Langfuse refuses, or is away for long; what was read by then is stored."""
    now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    until = query.until or now
    at = kept.load() or Cursor(to=until, since=query.since)
    done = Pulled(observations=at.observations, scores=at.scores, already_stored=at.already_stored)
    while True:
        asked = _narrowed(query, at)
        if at.phase == "observations":
            kept.save(at)
            for items, traces, cursor in _observations(client, asked, at):
                _append_spans(store, items, done)
                if with_scores and traces:
                    _scores_of(store, client, traces, done)
                if cursor != at.cursor:  # what comes before it is there, and counted
                    at = _at(done, at, cursor=cursor)
                    kept.save(at)
                progress(done)
            at = _at(done, at, phase="scores", cursor=None)
            kept.save(at)
        if with_scores and asked.is_whole:
            for items, cursor in _pages(client, SCORES, _scores_query(asked), at.cursor):
                _append(store, _rewards(_of_stored(store, items) if query.is_bounded else items, done), done)
                kept.save(_at(done, at, cursor=cursor))
                progress(done)
        if at.to >= until:
            break
        # It went on with an earlier one: what began since then is asked for as well.
        since = at.to if query.since is None else max(at.to, query.since)
        at = _at(done, at, phase="observations", cursor=None, since=since, to=until)
    kept.clear()
    return done


def _narrowed(query: TraceQuery, at: Cursor) -> TraceQuery:
    """The query of the time that is being read."""
    return msgspec.structs.replace(query, since=at.since or query.since)


def total(client: LangfuseClient, query: TraceQuery, kept: PullCursor) -> int | None:
    """How many observations the query asks for, None where that is not known: whole traces are taken, and what is
    counted is what the conditions hold for. Asked while it is under way."""
    at = kept.load()
    if not query.is_whole or at is None:
        return None
    return client.count(_narrowed(query, at).since or _FIRST, at.to)


def _observations(
    client: LangfuseClient, query: TraceQuery, at: Cursor
) -> Iterator[tuple[list[dict[str, Any]], Sequence[str], str | None]]:
    """Pages of observations, each with the traces that are whole by it, and the cursor at which to go on after it."""
    asked = {"fields": FIELDS, "expandMetadata": EXPANDED, "limit": str(_OBSERVATIONS_OF_PAGE)}
    wanted = {"filter": query.filter(at.to)}
    if query.is_whole:
        for items, cursor in _pages(client, OBSERVATIONS, {**asked, **wanted}, at.cursor):
            yield items, (), cursor
        return
    seen = KnownIds()
    narrow = {"fields": "core", "limit": str(_TRACES_OF_PAGE), **wanted}
    before = at.cursor
    for found, cursor in _pages(client, OBSERVATIONS, narrow, at.cursor):
        traces = list(dict.fromkeys(id for item in found if isinstance(id := item.get("traceId"), str)))
        new = [id for id in traces if seen.get(id.encode()) is None]
        for id in new:
            seen.keep(id.encode(), 1)
        for start in range(0, len(new), _TRACES_AT_ONCE):
            some = new[start : start + _TRACES_AT_ONCE]
            whole = {
                **asked,
                "filter": msgspec.json.encode([_condition("stringOptions", "traceId", "any of", some)]).decode(),
            }
            for items, _ in _pages(client, OBSERVATIONS, whole, None):
                yield items, (), before
            yield [], some, before
        before = cursor
        yield [], (), cursor


def _pages(
    client: LangfuseClient, path: str, query: dict[str, str], cursor: str | None
) -> Iterator[tuple[list[dict[str, Any]], str | None]]:
    """Pages, each with the cursor of the next. Raises LangfuseError through `client`."""
    while True:
        items, following = client.page(path, {**query, **({"cursor": cursor} if cursor else {})})
        if following is not None and following == cursor:
            raise LangfuseError(f"Langfuse names a page of {path} as the one that comes after it", _AGAIN)
        yield items, following
        if following is None:
            return
        cursor = following


def _scores_query(query: TraceQuery) -> dict[str, str]:
    """Scores may be given long after a run: those of the time from its beginning on, whatever traces they are of."""
    asked = {"fields": "details,subject", "limit": str(_SCORES_OF_PAGE)}
    return {**asked, "fromTimestamp": query.since} if query.since is not None else asked


def _of_stored(store: AnyStore, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The scores of traces that are in the store."""
    traces = {id: hex_id(id, 32) for item in items if (id := scored_trace(item)) is not None}
    if not traces:
        return []
    listed = ", ".join(f"'{id}'" for id in sorted({*traces.values()}))
    there = {id for (id,) in store.sql(f"SELECT DISTINCT trace_id FROM spans WHERE trace_id IN ({listed})")[1]}  # noqa: S608  hex digits
    return [item for item in items if traces.get(scored_trace(item) or "") in there]


def _scores_of(store: AnyStore, client: LangfuseClient, traces: Sequence[str], done: Pulled) -> None:
    asked = {"fields": "details,subject", "limit": str(_SCORES_OF_PAGE), "traceId": ",".join(traces)}
    for items, _ in _pages(client, SCORES, asked, None):
        _append(store, _rewards(items, done), done)


def _at(done: Pulled, at: Cursor, **changes: Any) -> Cursor:
    counts = {"observations": done.observations, "scores": done.scores, "already_stored": done.already_stored}
    return msgspec.structs.replace(at, **counts, **changes)


def _append(store: AnyStore, records: Sequence[Record], done: Pulled) -> None:
    done.already_stored += len(records) - store.append(records)


def _append_spans(store: AnyStore, items: Sequence[dict[str, Any]], done: Pulled) -> None:
    """What stands in for an observation that is refused is no observation."""
    found: list[Record] = []
    stand_ins: list[Record] = []
    for item in items:
        try:
            found.append(observation(item))
        except ValueError as error:
            done.refuse(error)
            if (instead := instead_of(item, str(error))) is not None:
                stand_ins.append(instead)
    done.observations += len(found)
    _append(store, found, done)
    if stand_ins:
        store.append(stand_ins)


def _rewards(items: Sequence[dict[str, Any]], done: Pulled) -> list[Record]:
    found: list[Record] = []
    for item in items:
        try:
            one = reward(item)
        except NotNumeric:
            done.not_numeric += 1
            continue
        except ValueError as error:
            done.refuse(error)
            continue
        if one is not None:
            found.append(one)
    done.scores += len(found)
    return found
