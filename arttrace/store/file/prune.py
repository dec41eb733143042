"""Pruning: what to remove, and the store rewritten without it, since deleting in DuckDB frees no space.

Runs go as a whole, with the traces, texts and rewards that nothing else needs; so do rewards of runs that never came.
Policy steps, consumption and judgements stay, so that a run that comes again is still known as consumed. What sampling
left out an hour ago goes whatever its age; that it was left out is known for a week longer, for what of it may still
come.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import duckdb
import msgspec

from arttrace.records import semconv
from arttrace.records.values.units import quantity
from arttrace.store.file.cancellation import Stopped
from arttrace.store.file.connections import SharedFile
from arttrace.store.file.duckdb_file import bytes_in_use, copy_beside
from arttrace.store.file.kept_copy import NewestRows, PrunableRun, copy_kept, copy_rest, newest_rows
from arttrace.store.rows.left_out import IS_MARK, LEFT_OUT
from arttrace.store.rows.span_membership import place
from arttrace.store.rows.view_parts.definition import BELONGS_TO
from arttrace.system.errors import StoreError

_FOR_GOOD = f"{LEFT_OUT} AND m.arrived_ns < ?"
"""The ids of runs that were left out before a time."""

REWARDS_OF_NO_RUN = f"""reward_records WHERE trajectory_id NOT IN (
        SELECT trajectory_id FROM span_records WHERE trajectory_id IS NOT NULL AND NOT ({IS_MARK}))
    AND split_part(trajectory_id, ':', 1) NOT IN (SELECT trace_id FROM span_records)
    AND id NOT IN (SELECT id FROM placed_rewards)"""  # noqa: S608
"""Rewards that wait for their run, to select from."""
_BEFORE = "AND time_ns BETWEEN 1 AND ?"  # one without a time is of no known age

_HOUR_NS = 3_600_000_000_000
_REVOCABLE_NS = _HOUR_NS
"""For so long a reward brings back a run that sampling left out."""

_STOPPED_NS = 24 * _HOUR_NS
"""After so long without anything new, what has not ended will not."""

_AHEAD_NS = 86_400_000_000_000  # a clock may be so far ahead of the store's; beyond it, a span's time means nothing


class Source(msgspec.Struct, frozen=True):
    """How many trajectories and spans of one sender go, and when the first and the last of them happened. It is a
    project or service's name, or the file they were imported from."""

    name: str
    trajectories: int
    spans: int
    first_ns: int
    last_ns: int


class Pruned(msgspec.Struct, frozen=True):
    """What went (or, `dry_run`, would go) and what is left; bytes are those of the file, after None in a dry run.
    `sources` says where what went came from, the most trajectories first; `rewards` are those of runs that never came.
    """

    trajectories: int
    spans: int
    kept_trajectories: int
    bytes_before: int
    bytes_after: int | None = None
    sources: tuple[Source, ...] = ()
    rewards: int = 0


def counts_text(counts: Pruned | Source) -> str:
    """How much went, as people read it: 1 trajectory (3 spans)."""
    runs = f"{quantity(counts.trajectories, 'trajectory')} ({quantity(counts.spans, 'span')})"
    if isinstance(counts, Pruned) and counts.rewards:
        one = counts.rewards == 1
        return f"{runs} and {'1 reward of a run' if one else f'{counts.rewards} rewards of runs'} that never came"
    return runs


def prune(file: SharedFile, *, before_ns: int | None, max_bytes: int | None, dry_run: bool) -> Pruned:
    """Takes out runs that ended and came in before a time, the rewards that were given before it and whose run never
    came, and the oldest runs until the rest takes at most this size. Where runs go, or the file is larger for blocks
    that are free, it is written anew beside the old one, which is read and written meanwhile; then it takes its place
    at once. Raises StoreError when it cannot be; nothing is lost then."""
    target = copy_beside(file.path)
    with file.one_rewrite:
        try:
            with file.lock, file.rewriting() as connection:
                connection.execute("CHECKPOINT")
                with file.if_possible():
                    place(connection)
                before = file.path.stat().st_size
                after = None if dry_run else before
                found, until = runs(connection), newest_rows(connection)
                whole = sum(run.size for run in found)
                in_use = bytes_in_use(connection)
                budget = None if max_bytes is None or in_use <= max_bytes else int(whole * max_bytes / in_use)
                kept = within(found, before_ns=before_ns, max_size=budget)
                waiting = _rewards_of_no_run(connection, before_ns, dry_run=dry_run)
                file.changes += 0 if dry_run else waiting
                is_loose = max_bytes is not None and in_use <= max_bytes < before
                rewrite = not dry_run and (is_loose or len(kept) < len(found))
                gone = () if rewrite else sources(connection, found, kept)
            while rewrite:
                _copy_beside_others(file, target, kept, until)
                with file.lock, file.rewriting() as connection:
                    held, in_use = copy_rest(connection, target, found, kept, until)
                    fewer = _fewer(kept) if max_bytes is not None and in_use > max_bytes else kept
                    rewrite = len(fewer) < len(kept)  # the size was an estimate
                    kept = fewer if rewrite else held
                    if not rewrite:
                        gone = sources(connection, found, kept)
                        file.reopen(target)
                        after = file.path.stat().st_size
        except (duckdb.Error, OSError, StoreError) as error:
            target.unlink(missing_ok=True)
            if isinstance(error, Stopped):
                raise
            file.raise_if_damaged("rewritten", error)
            raise StoreError(
                f"the store {file.path} could not be rewritten: {error}",
                "Nothing that was to be kept is lost. There must be room for a copy of it beside the store.",
            ) from error
    return Pruned(
        trajectories=sum(len(run.shown) for run in found) - sum(len(run.shown) for run in kept),
        spans=sum(run.spans for run in found) - sum(run.spans for run in kept),
        kept_trajectories=sum(len(run.shown) for run in kept),
        bytes_before=before,
        bytes_after=after,
        sources=gone,
        rewards=waiting,
    )


def _copy_beside_others(file: SharedFile, target: Path, kept: Sequence[PrunableRun], until: NewestRows) -> None:
    failed: duckdb.Error | None = None
    with file.reading() as connection:
        try:
            copy_kept(connection, target, kept, until)
        except duckdb.InterruptException:  # who asked has left
            raise
        except duckdb.Error as error:  # it is the copy that could not be written
            file.note(error)
            failed = error
    if failed is not None:
        raise failed


def _fewer(kept: Sequence[PrunableRun]) -> list[PrunableRun]:
    """About three quarters of the runs by size. The newest, which was to stay by it, does, and those that go on."""
    return within(kept, before_ns=None, max_size=sum(run.size for run in kept) * 3 // 4) or list(kept[:1])


def _rewards_of_no_run(connection: duckdb.DuckDBPyConnection, before_ns: int | None, *, dry_run: bool) -> int:
    """How many go. They take no room to speak of: the file need not be written anew for them."""
    if before_ns is None:
        return 0
    those = f"{REWARDS_OF_NO_RUN} {_BEFORE}"
    query = f"SELECT count(*) FROM {those}" if dry_run else f"DELETE FROM {those}"  # noqa: S608
    [(count,)] = connection.execute(query, [before_ns - 1]).fetchall()
    return int(count)


def left_out_for_good() -> str:
    """The query for how many spans are stored of runs that sampling left out for good, and which part of all bytes they
    are."""
    there = f"NOT ({IS_MARK}) AND trajectory_id IN ({_FOR_GOOD})".replace("?", str(time.time_ns() - _REVOCABLE_NS))
    return f"""SELECT count(DISTINCT span_id) FILTER ({there}),
        coalesce(sum(bytes) FILTER ({there}), 0) / greatest(sum(bytes), 1) FROM span_records"""  # noqa: S608


def runs(connection: duckdb.DuckDBPyConnection) -> list[PrunableRun]:
    """Every run of the store, the newest first."""
    rows = connection.execute(
        f"""SELECT s.trace_id, s.trajectory_id, max(greatest(arrived_ns, if(
                greatest(start_ns, end_ns, 0) - arrived_ns > {_AHEAD_NS}, arrived_ns, greatest(start_ns, end_ns, 0)))),
            sum(bytes)::BIGINT, count(DISTINCT s.span_id), min(start_ns), max(start_ns), arg_min(origin, start_ns),
            coalesce(max(project), ''), {BELONGS_TO}
        FROM span_records s LEFT JOIN placed_spans p ON p.trace_id = s.trace_id AND p.span_id = s.span_id
        WHERE NOT (s.{IS_MARK}) GROUP BY ALL"""  # noqa: S608
    ).fetchall()
    gone = {id for (id,) in connection.execute(_FOR_GOOD, [time.time_ns() - _REVOCABLE_NS]).fetchall()}
    of_trace: dict[str, PrunableRun] = {}
    of_trajectory: dict[str, PrunableRun] = {}

    def join(run: PrunableRun, other: PrunableRun) -> None:
        small, large = sorted((run, other), key=lambda one: len(one.traces))
        large.last_ns, large.size = max(large.last_ns, small.last_ns), large.size + small.size
        large.spans += small.spans
        if small.first_start_ns < large.first_start_ns:
            large.first_start_ns, large.origin = small.first_start_ns, small.origin
        large.project = max(large.project, small.project)
        large.last_start_ns = max(large.last_start_ns, small.last_start_ns)
        large.traces |= small.traces
        large.trajectories |= small.trajectories
        large.shown |= small.shown
        of_trace.update(dict.fromkeys(small.traces, large))
        of_trajectory.update(dict.fromkeys(small.trajectories, large))

    for trace_id, trajectory_id, last_ns, size, spans, first_start_ns, last_start_ns, origin, project, shown in rows:
        run = PrunableRun(set(), {trace_id}, project, origin, last_ns, size, spans, first_start_ns, last_start_ns)
        run.shown.update(() if shown is None else (shown,))
        if trace_id in of_trace:
            join(of_trace[trace_id], run)
        else:
            of_trace[trace_id] = run
        run = of_trace[trace_id]
        if trajectory_id is None:
            continue
        run.trajectories.add(trajectory_id)
        other = of_trajectory.setdefault(trajectory_id, run)
        if other is not run:
            join(run, other)
    for trace_id, linked in connection.execute("SELECT trace_id, linked_trace_id FROM links").fetchall():
        if trace_id in of_trace and linked in of_trace and of_trace[trace_id] is not of_trace[linked]:
            join(of_trace[trace_id], of_trace[linked])
    unique = {id(run): run for run in of_trace.values()}.values()
    going_on = connection.execute(
        """SELECT DISTINCT trace_id FROM (
            SELECT trace_id FROM span_records GROUP BY trace_id, span_id HAVING max(end_ns) = 0)"""
    ).fetchall()
    for (trace_id,) in going_on:
        if trace_id in of_trace:
            of_trace[trace_id].goes_on = of_trace[trace_id].last_ns >= time.time_ns() - _STOPPED_NS
    for run in unique:
        run.left_out = bool(run.trajectories) and run.trajectories <= gone
    return sorted(unique, key=lambda run: (-run.last_ns, min(run.traces)))


def sources(
    connection: duckdb.DuckDBPyConnection, found: Sequence[PrunableRun], kept: Sequence[PrunableRun]
) -> tuple[Source, ...]:
    """Where those of the runs came from that are not kept, the most trajectories first."""
    stay = {id(run) for run in kept}
    gone = [run for run in found if id(run) not in stay]
    origins = list({run.origin for run in gone})
    query = f"""SELECT id, coalesce(text::JSON->'resource'->>'{semconv.SERVICE_NAME}', text::JSON->>'scope_name', '')
        FROM texts WHERE id IN (SELECT unnest(?::BIGINT[]))"""  # noqa: S608
    names = dict(connection.execute(query, [origins]).fetchall())
    of_name: dict[str, list[PrunableRun]] = {}
    for run in gone:
        of_name.setdefault(run.project or names.get(run.origin) or "(no name)", []).append(run)
    by_source = [
        Source(
            name,
            sum(len(run.shown) for run in members),
            sum(run.spans for run in members),
            min(run.first_start_ns for run in members),
            max(run.last_start_ns for run in members),
        )
        for name, members in of_name.items()
    ]
    return tuple(sorted(by_source, key=lambda one: (-one.trajectories, one.name)))


def within(found: Sequence[PrunableRun], *, before_ns: int | None, max_size: int | None) -> list[PrunableRun]:
    """The runs that stay: those that go on, and of the others what is not left out, not older than `before_ns`, and of
    the newest whose sizes add up to at most `max_size`."""
    kept, size = [], 0
    for run in found:
        if run.left_out:
            continue
        size += run.size
        fits = (before_ns is None or run.last_ns >= before_ns) and (max_size is None or size <= max_size)
        if fits or run.goes_on:
            kept.append(run)
    return kept
