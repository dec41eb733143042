"""All runs of a store, looked through page by page, and where each stands among those of its group: in a table on disk,
so that memory does not grow with their number.

What is in memory is a page of summaries; what has to be known of every run (its id, group, start and reward) lies in a
temporary file of SQLite's, which goes when it is closed.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator
from itertools import groupby

import msgspec

from arttrace.records.values.equal_rewards import are_equal, exact_mean
from arttrace.rewards.combine import scale_of, scales_that_count, trajectory_reward
from arttrace.rewards.selection import never_trained_on
from arttrace.store import AnyStore, TrajectorySummary
from arttrace.store.access.summary_pages import summary_pages
from arttrace.store.bounded_parts import sized_parts
from arttrace.views.run_filter import RunFilter, chosen, ids_with_text

_TABLES = """
CREATE TABLE runs (id TEXT PRIMARY KEY, key TEXT, start INTEGER, wanted INTEGER, reward REAL, scale TEXT,
    spans INTEGER) WITHOUT ROWID;
CREATE TABLE numbers (id TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID;
CREATE TABLE groups (key TEXT PRIMARY KEY, members INTEGER) WITHOUT ROWID;
CREATE TABLE compared (key TEXT, scale TEXT, mean REAL, equal INTEGER, PRIMARY KEY (key, scale)) WITHOUT ROWID;
"""
_PLACES = """SELECT id, number, members, (reward - mean) * (NOT equal)
    FROM runs JOIN numbers USING (id) JOIN groups USING (key) LEFT JOIN compared USING (key, scale)"""
_BY_GROUP = """SELECT id, key, spans FROM (
    SELECT id, key, spans, start, min(start) OVER same AS first,
        first_value(id) OVER (same ORDER BY start, id) AS first_id
    FROM runs WHERE wanted WINDOW same AS (PARTITION BY key)
) ORDER BY first, first_id, start, id"""


class Place(msgspec.Struct, frozen=True):
    """Where a run stands in its group: its number, from 0 in order of start, and how much better it did than the mean
    of those that can be compared; None where it is none of them, or nobody is to be compared with."""

    number: int
    of: int
    advantage: float | None = None


class RunIndex:
    """The runs of a store at one time; `count` of them match the filter, all of them have about `spans` spans. Use it
    as a context manager, or close it."""

    def __init__(self, store: AnyStore, wanted: RunFilter) -> None:
        self._table = sqlite3.connect("")  # a temporary file, which only SQLite knows of
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.executescript(_TABLES)
        with_text = ids_with_text(store, wanted)
        for runs in summary_pages(store):
            match = {run.id for run in chosen(runs, wanted, with_text)}
            rows = [(run.id, run.group, run.start_ns, run.id in match, *_reward(run), _spans(run)) for run in runs]
            self._table.executemany("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        [(self.count,)] = self._table.execute("SELECT count(*) FROM runs WHERE wanted")
        [(self.spans,)] = self._table.execute("SELECT coalesce(sum(spans), 0) FROM runs")

    def __enter__(self) -> RunIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the file."""
        self._table.close()

    def groups(self, spans: int, *, whole: bool) -> Iterator[list[tuple[str, list[str]]]]:
        """The key of each group with the ids of those of its runs that match, in order of start; the groups in the
        order in which they began. In parts of about so many spans: every part is a look through the store's tables,
        and is in memory. A group may be in two parts, unless each is to be `whole`."""
        part: list[tuple[str, list[str]]] = []
        counted = 0
        for key, rows in groupby(self._table.execute(_BY_GROUP), key=lambda row: row[1]):
            ids: list[str] = []
            for id, _, size in rows:
                if counted >= spans and not (whole and ids):
                    yield [*part, (key, ids)] if ids else part
                    part, ids, counted = [], [], 0
                ids.append(id)
                counted += size
            part.append((key, ids))
        if part:
            yield part

    def pages(self, spans: int) -> Iterator[list[str]]:
        """The runs that match, the oldest first, in parts of about so many spans."""
        return sized_parts(self._table.execute("SELECT id, spans FROM runs WHERE wanted ORDER BY start, id"), spans)

    def number_groups(self) -> None:
        """Finds what `places` names; all runs are compared, those too that do not match."""
        insert = self._table.execute
        ordered = insert("SELECT key, id, reward, scale FROM runs ORDER BY key, start, id")
        for key, members in groupby(ordered, key=lambda row: row[0]):
            rewards: dict[str, array[float]] = {}
            count = 0
            for _, id, reward, scale in members:
                insert("INSERT INTO numbers VALUES (?, ?)", [id, count])
                count += 1
                if reward is not None:
                    rewards.setdefault(scale, array("d")).append(reward)
            if count > 1:
                insert("INSERT INTO groups VALUES (?, ?)", [key, count])
            for scale in scales_that_count({scale: len(values) for scale, values in rewards.items()}):
                if len(values := rewards[scale]) > 1:
                    row = [key, scale, exact_mean(values), are_equal(values)]
                    insert("INSERT INTO compared VALUES (?, ?, ?, ?)", row)

    def places(self, ids: list[str]) -> dict[str, Place]:
        """Of those of these runs that are in a group of two or more."""
        named = ", ".join("?" * len(ids))
        rows = self._table.execute(f"{_PLACES} WHERE id IN ({named})", ids)
        return {id: Place(number, of, advantage) for id, number, of, advantage in rows}


def _reward(run: TrajectorySummary) -> tuple[float | None, str]:
    """The reward by which it is compared, if it is, and on which scale that is."""
    return None if never_trained_on(run) else trajectory_reward(run), scale_of(run)


def _spans(run: TrajectorySummary) -> int:
    """About how many spans it has."""
    return max(1, run.agents + run.calls + run.tool_calls)
