"""Which runs are shown: by entry, group, tag, policy, status, reward, time and text."""

from __future__ import annotations

import heapq
import json
import operator
import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from arttrace.records.trajectory import Trajectory
from arttrace.records.values.integers import INT64
from arttrace.records.values.units import SECONDS_OF_UNIT
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import AnyStore, TrajectorySummary
from arttrace.store.access.summary_pages import summary_pages
from arttrace.store.sql_text import quoted
from arttrace.views.labels import entry_name, group_name

STATUSES = ("failed", "incomplete", "unread", "complete")
_ALL = 1 << 62  # more than there ever are: DuckDB's numbers end at 63 bits
_COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions for a run to be shown; all that are set must match.

    `entry` is the entry point's name, whole or as `ls` shows it; `group` a group's key or what `ls` shows of it;
    `policy` a policy or one version of it (`policy@3`); `search` a text that stands in the run, whatever its case, for
    which the store is asked (`ids_with_text`); `status` some of STATUSES; `reward` a number, a comparison such as
    `<0.5`, or `none` for runs without one; `since_ns` nanoseconds since 1970. Raises ValueError for a policy, status or
    reward that is none of these.
    """

    entry: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    policy: str | None = None
    status: tuple[str, ...] = ()
    reward: str | None = None
    since_ns: int | None = None
    search: str | None = None

    def __post_init__(self) -> None:
        if self.reward is not None:
            comparison(self.reward)
        if self.policy is not None:
            policy_or_version(self.policy)
        for one in self.status:
            if one not in STATUSES:
                raise ValueError(f"{one!r} is none of {', '.join(STATUSES)}")

    def __bool__(self) -> bool:
        return any(getattr(self, name) not in (None, ()) for name in self.__struct_fields__)

    def matches(self, run: TrajectorySummary) -> bool:
        """Whether a run is shown, as far as its summary says."""
        return (
            (self.entry is None or self.entry in (run.entry, entry_name(run.entry)))
            and (self.group is None or is_group(self.group, run))
            and set(self.tags) <= set(run.tags)
            and (self.policy is None or any(self.policy in (v, v.rpartition("@")[0]) for v in run.policy_versions))
            and (not self.status or status(run) in self.status)
            and (self.since_ns is None or run.start_ns >= self.since_ns)
            and (self.reward is None or _holds(self.reward, trajectory_reward(run)))
        )


def status(run: TrajectorySummary | Trajectory) -> str:
    """A run's status: one of STATUSES."""
    if run.incomplete:
        return "incomplete"
    return "failed" if run.error else "unread" if run.unread else "complete"


def without_call(run: TrajectorySummary | Trajectory) -> bool:
    """Whether nothing is wrong with a run but that no answer of a model was captured in it, as hardly anybody means."""
    return not run.calls and status(run) == "complete"


def is_group(text: str, run: TrajectorySummary) -> bool:
    """Whether `text` is the key of a run's group, or what is shown of it, cut as it may be."""
    shown = group_name(run.group, run.entry)
    return text in (run.group, shown) or (
        len(text) > 1 and text.endswith("…") and any(name.startswith(text[:-1]) for name in (run.group, shown))
    )


def group_keys(store: AnyStore, text: str) -> list[str]:
    """The keys of the groups that `text` names, by their key or by what `ls` shows of it; `text` itself where there is
    none."""
    keys = {run.group for page in summary_pages(store) for run in page if is_group(text, run)}
    return [text] if text in keys else sorted(keys) or [text]


def ids_with_text(store: AnyStore, wanted: RunFilter) -> set[str] | None:
    """The ids of the runs with the text that is wanted; None where none is."""
    return runs_with(store, wanted.search) if wanted.search else None


def matching_pages(store: AnyStore, wanted: RunFilter) -> Iterator[list[TrajectorySummary]]:
    """The summaries of the runs that match, some at a time. A run may come twice."""
    ids = ids_with_text(store, wanted)
    if wanted.group is None:
        pages = summary_pages(store, since_ns=wanted.since_ns)
    else:
        pages = (store.summaries(group=key) for key in group_keys(store, wanted.group))
    for page in pages:
        yield chosen(page, wanted, ids)


def comparison(text: str) -> tuple[str, float] | None:
    """The sign and the number of `<0.5`, `>=1` or `0.5`; None of `none`, which is to have no reward. Raises ValueError
    for any other text."""
    if text.strip().lower() == "none":
        return None
    found = re.fullmatch(r"\s*(<=|>=|<|>|==?)?\s*([-+]?\d*\.?\d+(?:e[-+]?\d+)?)\s*", text)
    if found is None:
        raise ValueError(f"{text!r} is not a comparison such as '<0.5', '>=1' or '0', and not 'none'")
    return (found[1] or "=")[:2].replace("==", "="), float(found[2])


def _holds(text: str, reward: float | None) -> bool:
    if (wanted := comparison(text)) is None:
        return reward is None
    sign, number = wanted
    return reward is not None and bool(_COMPARED[sign](reward, number))


def policy_or_version(text: str) -> str:
    """`policy` or `policy@3` as it is. Raises ValueError where what follows the `@` is no number."""
    name, at, number = text.rpartition("@")
    if at and not (name and number.isascii() and number.isdigit()):
        raise ValueError(f"{text!r} is neither a policy nor a version of one such as policy@3")
    return text


def moment(text: str, now_ns: int | None = None) -> int:
    """Nanoseconds since 1970, within what a column holds, of an age before now (`90s`, `2h`, `7d`) or of an ISO date
    and time (in the local zone unless it says otherwise). Raises ValueError for any other text."""
    try:
        if found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)([smhdw])\s*", text):
            age_ns = int(min(float(found[1]) * SECONDS_OF_UNIT[found[2]] * 1e9, INT64.stop - 1))
            return max(0, (time.time_ns() if now_ns is None else now_ns) - age_ns)
        return min(max(INT64.start, int(datetime.fromisoformat(text.strip()).timestamp() * 1e9)), INT64.stop - 1)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is neither an age such as 2h or 7d nor a date such as 2026-11-16T08:00") from None


def runs_with(store: AnyStore, text: str) -> set[str]:
    """The ids of the runs in whose messages, tool calls, arguments or results a text stands, in whatever case."""
    forms = [quoted(form.lower()) for form in sorted(_forms(text))]

    def holds(column: str) -> str:
        return " OR ".join(f"contains(lower({column}), {form})" for form in forms)

    query = " UNION ".join(
        (
            f"SELECT trajectory_id FROM messages WHERE {holds('message::VARCHAR')}",  # noqa: S608
            f"SELECT trajectory_id FROM spans WHERE {holds('document::VARCHAR')}",  # noqa: S608
        )
    )
    return {id for (id,) in store.sql(query)[1] if id is not None}


def _forms(text: str) -> set[str]:
    """How a text stands in stored JSON: as it is, as JSON, and as JSON in a string of JSON, with letters beyond ASCII
    as they are or escaped."""
    forms = {text, text.lower()}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=escaped)[1:-1] for form in forms for escaped in (False, True)}
    return forms


def chosen(
    runs: Iterable[TrajectorySummary], wanted: RunFilter, ids: set[str] | None, limit: int | None = None
) -> list[TrajectorySummary]:
    """At most `limit` of the runs that match, in their order; `ids` are those with the text that was searched for."""
    found: list[TrajectorySummary] = []
    for run in runs:
        if limit is not None and len(found) >= limit:
            break
        if (ids is None or run.id in ids or run.id.partition(":")[0] in ids) and wanted.matches(run):
            found.append(run)
    return found


def newest(store: AnyStore, wanted: RunFilter, limit: int) -> list[TrajectorySummary]:
    """At most `limit` of a store's runs that match, the newest first. Raises StoreError."""
    if limit <= 0:
        return []
    ids = ids_with_text(store, wanted)
    if not wanted:
        return store.summaries(limit=min(limit, _ALL))
    found: dict[str, TrajectorySummary] = {}
    for page in summary_pages(store, ids, since_ns=wanted.since_ns):
        found.update((run.id, run) for run in chosen(page, wanted, ids))
        found = {run.id: run for run in heapq.nlargest(limit, found.values(), key=lambda run: (run.start_ns, run.id))}
    return list(found.values())
