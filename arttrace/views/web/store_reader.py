"""StoreReader: the store as the viewer reads it. Runs are listed from memory, brought up to date when the store has
changed; what one run's pages need is built once and kept while the run stays as it is."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec

from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import AnyStore, TrajectorySummary
from arttrace.store.access.run_spans import spans_in_parts, traces_of_run
from arttrace.store.access.summary_pages import KNOWN, NEWEST_UNREAD, UNREAD
from arttrace.store.rows.left_out import IS_MARK, is_mark
from arttrace.system.errors import StoreError
from arttrace.views.run_filter import runs_with

_FRESH_S = 0.4
FIRST = 500
"""How many runs that were never read are read before the list is shown, their summaries made, once; the others after
it."""
FIRST_SPANS = 3_000
"""How many spans these have at most, about half a second's work; of one with more the list shows nothing before."""
BEGINNING = 400
"""Of how many spans a run's first entries are made, where the whole run takes long."""
_KEPT = 48
_SEARCHES = 16

T = TypeVar("T")


class NotHere(StoreError):
    """What was asked for by name is not in the store; `what` is the kind of it: a run, a group."""

    def __init__(self, what: str, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.what = what


class _Mark(NamedTuple):
    """What distinguishes one state of the store from another."""

    spans: int = -1
    arrived_ns: int = 0
    rewards: int = 0
    regrouped: int = 0


_MARK = """SELECT count(*), coalesce(max(arrived_ns), 0), (SELECT count(*) FROM reward_records),
    (SELECT count(*) FROM regrouped) FROM span_records"""
_BEGAN = f"""WITH fresh AS (SELECT trace_id, trajectory_id FROM span_records WHERE arrived_ns > {{}})
    SELECT (SELECT count(*) FROM fresh), (SELECT min(start_ns) FROM span_records WHERE
        NOT ({IS_MARK}) AND (trajectory_id IN (SELECT trajectory_id FROM fresh)
        OR trace_id IN (SELECT trace_id FROM fresh)
        OR trace_id IN (SELECT linked_trace_id FROM links WHERE trace_id IN (SELECT trace_id FROM fresh))))"""  # noqa: S608


class SoFar(NamedTuple):
    """The newest runs, and how many are being read; 0 when these are all."""

    runs: tuple[TrajectorySummary, ...]
    unread: int


class StoreReader:
    """Reads a store for the pages. Threads may share it."""

    def __init__(self, store: AnyStore) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._mark = _Mark()
        self._looked = 0.0
        self._runs: dict[str, TrajectorySummary] = {}
        self._newest_first: tuple[TrajectorySummary, ...] = ()
        self._kept: OrderedDict[tuple[str, str], tuple[tuple[TrajectorySummary, int], Any]] = OrderedDict()
        self._making: WeakValueDictionary[tuple[str, str], threading.Lock] = WeakValueDictionary()
        self._searches: OrderedDict[tuple[str, _Mark], set[str]] = OrderedDict()
        self._reading: threading.Thread | None = None
        self._unread = 0
        self._begun = False

    @property
    def state(self) -> str:
        """Another text after every change of the store that was seen."""
        return "-".join(map(str, (*self._mark, self._unread)))

    def so_far(self) -> SoFar:
        """The newest runs at once, where most have never been read; these are then read in the background, and the
        next call has more of them. Raises StoreError."""
        with self._lock:
            if not self._begun and self._mark == _Mark():
                self.store.ingest_spool()
                self._begun = True
                first = self._next_unread()
                [(unread,)] = self.sql(UNREAD)
                if unread > len(first):
                    read = [id for (id,) in self.sql(KNOWN)]
                    self._newest_first = _sorted(self.store.summaries(ids=[*read, *first]))
                    self._unread = unread - len(first)
                    self._reading = threading.Thread(target=self._read_all, name="arttrace-summaries", daemon=True)
                    self._reading.start()
            if self._unread:
                return SoFar(self._newest_first, self._unread)
        return SoFar(self.runs(), 0)

    def runs(self) -> tuple[TrajectorySummary, ...]:
        """Every run, the newest first. Raises StoreError."""
        if (reading := self._reading) is not None:
            reading.join()
        with self._lock:
            if time.monotonic() - self._looked >= _FRESH_S:
                self._look()
                self._looked = time.monotonic()
            return self._newest_first

    def run(self, id_or_prefix: str) -> TrajectorySummary:
        """The run with this id, or the only one whose id begins so. Raises StoreError for none or several."""
        if self._reading is not None:
            listed = next((one for one in self._newest_first if one.id == id_or_prefix), None)
            if listed is None:
                listed = next((one for one in self.store.summaries(ids=[id_or_prefix]) if one.id == id_or_prefix), None)
            if listed is not None:
                return listed
        self.runs()
        if (found := self._runs.get(id_or_prefix)) is not None:
            return found
        beginning = [one for id, one in self._runs.items() if id.startswith(id_or_prefix)]
        if len(beginning) == 1:
            return beginning[0]
        if beginning:
            raise StoreError(f"{len(beginning)} runs begin with {id_or_prefix!r}.", "Give more of the id.")
        hint = "It may have been pruned; the list has those there are."
        raise NotHere("run", f"There is no run {id_or_prefix!r} here.", hint)

    def changed(self) -> None:
        """Something was written: the next question looks again."""
        self._looked = 0.0

    def with_text(self, text: str) -> set[str]:
        """The ids of runs in which a text stands."""
        key = (text, self._mark)
        with self._lock:
            known = self._searches.get(key)
        if known is not None:
            return known
        found = runs_with(self.store, text)
        with self._lock:
            self._searches[key] = found
            while len(self._searches) > _SEARCHES:
                self._searches.popitem(last=False)
        return found

    def trajectory(self, id: str) -> Trajectory:
        """A run whole."""
        return self.kept(id, "trajectory", lambda: self.store.trajectory(id))

    def beginning(self, summary: TrajectorySummary) -> Trajectory | None:
        """What a run began with, under what its summary says of the whole; None where that is not to be had at once:
        its spans stand under another id, or the store's owner is of an earlier version."""
        try:
            begun = self.kept(summary.id, "beginning", lambda: self.store.beginning(summary.id, spans=BEGINNING))
        except StoreError:
            return None
        names = ("revision", "start_ns", "end_ns", "error", "incomplete", "unread")
        return msgspec.structs.replace(begun, **{name: getattr(summary, name) for name in names})

    def spans(self, id: str) -> list[SpanRow]:
        """The spans of a run without what they hold: each call of a long one has its whole prompt in it."""
        return self.kept(
            id,
            "spans",
            lambda: [
                msgspec.structs.replace(span, attributes={}, events=[], resource={})
                for part in spans_in_parts(self.store, traces_of_run(self.store, id))
                for span in part
                if not is_mark(span)
            ],
        )

    def versions(self, id: str, span_id: str) -> list[SpanRow]:
        """Every stored version of a span of a run, as it came."""
        return [
            span
            for trace, start_ns in dict.fromkeys(
                (one.trace_id, one.start_ns) for one in self.spans(id) if one.span_id == span_id
            )
            for span in self.store.spans_of_traces([trace], first_ns=start_ns, last_ns=start_ns)
            if span.span_id == span_id and not is_mark(span)
        ]

    def kept(self, id: str, name: str, make: Callable[[], T]) -> T:
        """What `make` gives for a run, made again when the run has changed."""
        state = (self.run(id), self._mark.rewards)  # a summary has no notes
        with self._lock:
            kept = self._kept.get((id, name))
            if kept is not None and kept[0] == state:
                self._kept.move_to_end((id, name))
                found: T = kept[1]
                return found
            making = self._making.setdefault((id, name), threading.Lock())
        with making:  # whoever asks for the same meanwhile waits for it
            with self._lock:
                kept = self._kept.get((id, name))
            made: T = kept[1] if kept is not None and kept[0] == state else make()
        with self._lock:
            self._kept[(id, name)] = (state, made)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made

    def holds(self, id: str, name: str) -> bool:
        """Whether `kept` has made this, of the run as it is or as it was before."""
        with self._lock:
            return (id, name) in self._kept

    def base_models(self) -> list[tuple[str, str]]:
        """Each policy with the base model that it adapts."""
        return [(policy, model) for policy, model in self.sql("SELECT DISTINCT policy, base_model FROM policy_steps")]

    def newest_steps(self) -> dict[str, int]:
        """The newest step of each policy."""
        return dict(self.sql("SELECT policy, max(step) FROM policy_steps GROUP BY policy"))

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.store.sql(query)[1]

    def _next_unread(self) -> list[str]:
        """Of the newest runs that were never read those that are read next: no more than take a moment."""
        found, spans = [], 0
        for id, own in self.sql(NEWEST_UNREAD.format(FIRST)):
            if spans + own <= FIRST_SPANS:
                found.append(id)
                spans += own
        return found

    def _read_all(self) -> None:
        """Make all summaries, of the newest and the small ones first; the store keeps them. What cannot be read now is
        read, and its error raised, when it is asked for."""
        tried: set[str] = set()
        try:
            while ids := self._next_unread() or [id for id, _ in self.sql(NEWEST_UNREAD.format(1))]:
                if tried.issuperset(ids):  # the disk keeps nothing
                    break
                tried.update(ids)
                made = self.store.summaries(ids=ids)
                [(unread,)] = self.sql(UNREAD)
                with self._lock:
                    self._newest_first = _sorted({one.id: one for one in (*self._newest_first, *made)}.values())
                    self._unread = max(unread, 1)
        except StoreError:
            pass
        finally:
            self._unread = 0
            self._reading = None

    def _look(self) -> None:
        self.store.ingest_spool()
        [row] = self.sql(_MARK)
        mark = _Mark(*row)
        if mark == self._mark:
            return
        began_ns = self._began_ns(mark)
        changed = self.store.summaries(since_ns=began_ns)
        if began_ns is None:
            self._runs = {}
        else:
            self._runs = {id: one for id, one in self._runs.items() if one.start_ns < began_ns}
        self._runs.update((one.id, one) for one in changed)
        self._newest_first = _sorted(list(self._runs.values()))
        self._mark = mark

    def _began_ns(self, mark: _Mark) -> int | None:
        """Since when runs may have changed; None where any may have."""
        only_more_spans = mark.spans > self._mark.spans >= 0 and mark[2:] == self._mark[2:]
        if not only_more_spans:
            return None
        [(fresh, began_ns)] = self.sql(_BEGAN.format(self._mark.arrived_ns))
        all_known = fresh == mark.spans - self._mark.spans  # else spans went as well, or the clock was set back
        return int(began_ns) if all_known and began_ns is not None else None


def _sorted(runs: Iterable[TrajectorySummary]) -> tuple[TrajectorySummary, ...]:
    return tuple(sorted(runs, key=lambda one: (one.start_ns, one.id), reverse=True))
