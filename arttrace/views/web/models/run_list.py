"""The list of runs: the filters that its address holds, and a page of rows of those that match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import urlencode

import msgspec

from arttrace.formats.imported_run import is_undated
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import TrajectorySummary
from arttrace.views.labels import entry_name, group_name, one_line, shown_id, version_order
from arttrace.views.run_filter import STATUSES, RunFilter, moment, policy_or_version, status
from arttrace.views.terminal import unread_lines

PAGE = 100
_LONGEST_ID = 40
SINCE = ("15m", "1h", "24h", "7d")
_NAMES = ("q", "entry", "group", "tag", "policy", "status", "reward", "since")
_LABELS = {"q": "text"}

Params = Sequence[tuple[str, str]]


class RunQuery(msgspec.Struct, frozen=True):
    """What an address asks for. `given` are its filters as they stand in it; `errors` the ones that say nothing."""

    wanted: RunFilter
    text: str
    given: tuple[tuple[str, str], ...]
    errors: dict[str, str]

    def address(self, *, without: tuple[str, str] | None = None, **more: str) -> str:
        """The same list, without one of its filters or with more of them."""
        pairs = [pair for pair in self.given if pair != without]
        return urlencode([*pairs, *more.items()])

    def without(self, name: str) -> str:
        """The same list without any filter of that name."""
        return urlencode([pair for pair in self.given if pair[0] != name])

    def only(self, name: str, value: str) -> str:
        """The same list with one filter of that name."""
        return urlencode([*(pair for pair in self.given if pair[0] != name), (name, value)])

    def value(self, name: str) -> str:
        """A filter's text, the last one where it is given several times, "" where it is not given."""
        return next((value for key, value in reversed(self.given) if key == name), "")

    def values(self, name: str) -> list[str]:
        """All texts of a filter that may be given several times."""
        return [value for key, value in self.given if key == name]


class Chip(msgspec.Struct, frozen=True):
    """A filter in use, and the address without it."""

    label: str
    value: str
    without: str


class RunRow(msgspec.Struct, frozen=True):
    """One run in the list. `cursor` marks its place; `why` says in words what is wrong with it."""

    id: str
    short: str
    entry: str
    source: str
    group: str
    group_key: str
    status: str
    live: bool
    why: str
    start_ns: int
    duration_ns: int
    undated: bool
    agents: int
    calls: int
    tools: int
    trained: int
    captured: int
    asked: int | None
    answered: int | None
    policies: tuple[str, ...]
    reward: float | None
    tags: tuple[str, ...]
    cursor: str


class RunList(msgspec.Struct, frozen=True):
    """A page of the list. `counts` are runs by status among those that match all other filters; `following` is the
    cursor of the next page, "" at the end; `ended` whether none comes behind these rows; `unread` how many runs are
    being read, and in none of these numbers."""

    rows: tuple[RunRow, ...]
    total: int
    matching: int
    live: int
    counts: dict[str, int]
    chips: tuple[Chip, ...]
    following: str
    ended: bool
    unread: int = 0


def parse_query(params: Params) -> RunQuery:
    """The filters of an address. What cannot be understood is named, and does not filter."""
    given = tuple((name, value.strip()) for name, value in params if name in _NAMES and value.strip())
    values: dict[str, list[str]] = {}
    for name, value in given:
        values.setdefault(name, []).append(value)
    errors: dict[str, str] = {}

    def one(name: str) -> str | None:
        return values[name][-1] if name in values else None

    def checked(name: str, check: Callable[[str], object]) -> str | None:
        value = one(name)
        if value is not None:
            try:
                check(value)
            except ValueError as error:
                errors[name] = str(error)
                return None
        return value

    reward = checked("reward", lambda text: RunFilter(reward=text))
    since = checked("since", moment)
    policy = checked("policy", policy_or_version)
    statuses = tuple(value for value in values.get("status", ()) if value in STATUSES)
    if unknown := [value for value in values.get("status", ()) if value not in STATUSES]:
        errors["status"] = f"{unknown[0]!r} is none of {', '.join(STATUSES)}"
    return RunQuery(
        wanted=RunFilter(
            entry=one("entry"),
            group=one("group"),
            tags=tuple(values.get("tag", ())),
            policy=policy,
            status=statuses,
            reward=reward,
            since_ns=None if since is None else moment(since),
        ),
        text=one("q") or "",
        given=given,
        errors=errors,
    )


def run_list(
    runs: Sequence[TrajectorySummary],
    query: RunQuery,
    ids: set[str] | None,
    *,
    after: str = "",
    upto: str = "",
    limit: int = PAGE,
    unread: int = 0,
) -> RunList:
    """A page of the runs that match, the newest first: at most `limit` of those after a cursor, or all up to one. `ids`
    are those with the text that was searched for."""
    others = msgspec.structs.replace(query.wanted, status=())
    fitting = [run for run in runs if (ids is None or _has_text(run, ids)) and others.matches(run)]
    counts = Counter(map(status, fitting))
    matching = [run for run in fitting if query.wanted.matches(run)] if query.wanted.status else fitting
    place, last = _place(after), _place(upto)
    following = matching if place is None else [run for run in matching if (run.start_ns, run.id) < place]
    shown = following[:limit] if last is None else [run for run in following if (run.start_ns, run.id) >= last]
    more = bool(shown) and shown[-1] is not matching[-1]
    rows = tuple(map(run_row, shown))
    return RunList(
        rows=rows,
        total=len(runs),
        matching=len(matching),
        live=sum(map(in_progress, matching)),
        counts={name: counts[name] for name in STATUSES},
        chips=tuple(
            Chip(_LABELS.get(name, name), value, query.address(without=(name, value))) for name, value in query.given
        ),
        following=rows[-1].cursor if more else "",
        ended=len(shown) == len(following),
        unread=unread,
    )


def run_row(run: TrajectorySummary) -> RunRow:
    """What the list shows of a run."""
    return RunRow(
        id=run.id,
        short=shown_id(run.id, _LONGEST_ID),
        entry=entry_name(run.entry),
        source=run.entry,
        group="" if run.group == run.id else one_line(group_name(run.group, run.entry), 80),
        group_key=run.group,
        status=status(run),
        live=in_progress(run),
        why=one_line(why(run), 240),
        start_ns=run.start_ns,
        duration_ns=max(0, run.end_ns - run.start_ns),
        undated=is_undated(run.start_ns),
        agents=run.agents,
        calls=run.calls,
        tools=run.tool_calls,
        trained=run.trained_tokens,
        captured=run.captured_tokens,
        asked=run.input_tokens,
        answered=run.output_tokens,
        policies=tuple(sorted(run.policy_versions, key=version_order)),
        reward=trajectory_reward(run),
        tags=_shown(run.tags),
        cursor=f"{run.start_ns}.{run.id}",
    )


def in_progress(run: TrajectorySummary) -> bool:
    """Whether a span of it was begun whose end is not known."""
    return "in progress" in run.incomplete


def why(run: TrajectorySummary) -> str:
    """What is wrong with a run, "" when nothing is: errors first."""
    return "; ".join(filter(None, (run.error, run.incomplete, *unread_lines(run.unread))))


def facets(runs: Iterable[TrajectorySummary]) -> Mapping[str, list[str]]:
    """The entries, tags and policies that runs can be chosen by, the most frequent first."""
    entries: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    policies: Counter[str] = Counter()
    for run in runs:
        entries[entry_name(run.entry)] += 1
        tags.update(_shown(run.tags))
        policies.update({version.rpartition("@")[0] for version in run.policy_versions})
        policies.update(run.policy_versions)
    most = 60
    return {
        "entry": [name for name, _ in entries.most_common(most)],
        "tag": [name for name, _ in tags.most_common(most)],
        "policy": sorted((name for name, _ in policies.most_common(most) if name), key=version_order),
    }


def _shown(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Those that a page can show: in a menu a blank one would stand for having chosen one."""
    return tuple(tag for tag in tags if tag.strip())


def _has_text(run: TrajectorySummary, ids: set[str]) -> bool:
    return run.id in ids or run.id.partition(":")[0] in ids


def _place(cursor: str) -> tuple[int, str] | None:
    start, dot, id = cursor.partition(".")
    return (int(start), id) if dot and start.isdecimal() and len(start) < 20 else None
