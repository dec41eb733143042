"""The tools of `arttrace mcp`: their arguments, which are their schemas too, and what they answer from a store."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, get_args

import msgspec
from msgspec import Meta
from rich.console import Console

from arttrace.formats.imported_run import is_undated
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import AnyStore, TrajectorySummary
from arttrace.store.access.sql import encode_values, named_rows
from arttrace.store.rows.view_parts.definition import as_markdown
from arttrace.store.rows.views import DESCRIBED
from arttrace.trajectories import sequences
from arttrace.views import run_filter, terminal
from arttrace.views.console.comparison import compare, document
from arttrace.views.run_filter import RunFilter, moment, newest
from arttrace.views.statistics import By, statistics

MAX_CHARACTERS = 100_000
_MAX_ROWS = 1000
_MAX_NAMES = 50
_LEAST_TEXT = 10
_WIDTH = 200

Limit = Annotated[int, Meta(ge=1, le=_MAX_ROWS)]


class StoreTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a tool; its fields are the arguments, and its docstring is what a client's model reads."""

    name: ClassVar[str]
    is_query: ClassVar[bool] = False
    """Whether it is stopped when it takes as long as no query of a collector may."""

    def answer(self, store: AnyStore) -> str:
        """At most about MAX_CHARACTERS of text. Raises ArttraceError and ValueError."""
        raise NotImplementedError

    @classmethod
    def description(cls) -> str:
        """What the tool does."""
        return " ".join((cls.__doc__ or "").split())

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The arguments, as JSON Schema."""
        found: dict[str, Any] = msgspec.json.schema(cls)["$defs"][cls.__name__]
        return {key: value for key, value in found.items() if key not in ("title", "description")}


class ListRuns(StoreTool, frozen=True):
    """Runs as JSON, the newest first. `status` is complete, unread, incomplete or failed; `reward` a comparison such as
    "<0.5", or "none"; `since` an age such as "2h" or a date; the others as list_runs shows them. The last item says
    whether there are more than `limit`."""

    name: ClassVar[str] = "list_runs"
    entry: str | None = None
    group: str | None = None
    tag: str | None = None
    policy: str | None = None
    status: str | None = None
    reward: str | None = None
    since: str | None = None
    limit: Limit = 20

    def answer(self, store: AnyStore) -> str:
        """As StoreTool.answer."""
        wanted = RunFilter(
            entry=self.entry,
            group=self.group,
            tags=() if self.tag is None else (self.tag,),
            policy=self.policy,
            status=() if self.status is None else (self.status,),
            reward=self.reward,
            since_ns=None if self.since is None else moment(self.since),
        )
        return _listed(store, wanted, self.limit)


class SearchRuns(StoreTool, frozen=True):
    """Runs in whose messages, arguments or results the text stands, as JSON, the newest first."""

    name: ClassVar[str] = "search_runs"
    is_query: ClassVar[bool] = True
    text: str
    limit: Limit = 20

    def answer(self, store: AnyStore) -> str:
        """As StoreTool.answer."""
        return _listed(store, RunFilter(search=self.text), self.limit)


class ShowRun(StoreTool, frozen=True):
    """One run as text: what is known of it, then its agents as a tree with messages, tool calls and HTTP requests, each
    in short; the views `messages` and `tool_calls` of sql have them whole. `id` may be the beginning of one."""

    name: ClassVar[str] = "show_run"
    id: str

    def answer(self, store: AnyStore) -> str:
        """As StoreTool.answer."""
        run = store.trajectory(self.id)
        tokens, report = sequences(run)
        page = Console(file=io.StringIO(), width=_WIDTH, highlight=False)
        page.print(terminal.trajectory_view(run, tokens, report, trajectory_reward(run)))
        return _cut(page.file.getvalue(), MAX_CHARACTERS)  # type: ignore[attr-defined]


class DiffRuns(StoreTool, frozen=True):
    """Where two runs part, as JSON: the last steps that they have in common, then what each did from there, at most
    `limit` steps. The ids may be beginnings."""

    name: ClassVar[str] = "diff"
    first: str
    second: str
    limit: Limit = 20

    def answer(self, store: AnyStore) -> str:
        """As StoreTool.answer."""
        return _json(document(compare(store.trajectory(self.first), store.trajectory(self.second), self.limit)))


class SumUp(StoreTool, frozen=True):
    """Runs, calls, tokens, errors, seconds and mean reward as JSON: by entry, agent, model and tool, as `arttrace stats
    --json` has them, the most frequent of each. `since` is an age such as "2h" or a date."""

    name: ClassVar[str] = "stats"
    since: str | None = None

    def answer(self, store: AnyStore) -> str:
        """As StoreTool.answer."""
        since_ns = 0 if self.since is None else moment(self.since)
        return _json({kind: statistics(store, kind, since_ns=since_ns)[:_MAX_NAMES] for kind in get_args(By)})


class QueryViews(StoreTool, frozen=True):
    """Run one SQL query of DuckDB's dialect that reads these views, as JSON:"""

    name: ClassVar[str] = "sql"
    is_query: ClassVar[bool] = True
    query: str

    def answer(self, store: AnyStore) -> str:
        """As StoreTool.answer."""
        columns, rows = store.sql(self.query)
        kept, left_out = _first(named_rows(columns, rows[:_MAX_ROWS]))
        left_out += max(0, len(rows) - _MAX_ROWS)
        return _array(kept, {"left_out": left_out} if left_out else None)

    @classmethod
    def description(cls) -> str:
        """With the views and their columns."""
        return f"{super().description()}\n\n{as_markdown(DESCRIBED)}"


TOOLS: dict[str, type[StoreTool]] = {
    one.name: one for one in (ListRuns, SearchRuns, ShowRun, DiffRuns, SumUp, QueryViews)
}


def _listed(store: AnyStore, wanted: RunFilter, limit: int) -> str:
    found = newest(store, wanted, limit + 1)
    kept, too_long = _first([_row(run) for run in found[:limit]])
    if too_long:
        return _array(kept, {"left_out": f"older runs that match: more than {MAX_CHARACTERS} characters"})
    return _array(kept, {"left_out": "older runs that match; raise limit"} if len(found) > limit else None)


def _row(run: TrajectorySummary) -> dict[str, Any]:
    return {
        "id": run.id,
        "entry": run.entry,
        "group": run.group,
        "started_ns": None if is_undated(run.start_ns) else run.start_ns,
        "agents": run.agents,
        "calls": run.calls,
        "tool_calls": run.tool_calls,
        "policy": list(run.policy_versions),
        "reward": trajectory_reward(run),
        "status": run_filter.status(run),
        "error": run.error,
        "incomplete": run.incomplete,
        "unread": run.unread,
        "tags": list(run.tags),
        "metadata": run.metadata,
    }


def _first(rows: Sequence[dict[str, Any]]) -> tuple[list[str], int]:
    """As many rows as an answer holds, as JSON, and how many are left out."""
    kept: list[str] = []
    left = MAX_CHARACTERS
    for row in rows:
        shown = _json(row)
        left -= len(shown)
        if kept and left < 0:
            break
        kept.append(shown)
    return kept, len(rows) - len(kept)


def _array(rows: Sequence[str], last: dict[str, Any] | None) -> str:
    return f"[{','.join([*rows, *([_json(last)] if last else [])])}]"


def _json(value: Any) -> str:
    """Its longest texts are cut where it would be too long."""
    shown, longest = encode_values(value).decode(), MAX_CHARACTERS
    while len(shown) > MAX_CHARACTERS:
        if longest <= _LEAST_TEXT:
            return encode_values({"left_out": f"{len(shown)} characters"}).decode()
        longest //= 2
        shown = encode_values(_shortened(msgspec.to_builtins(value, enc_hook=str), longest)).decode()
    return shown


def _shortened(value: Any, longest: int) -> Any:
    match value:
        case str():
            return _cut(value, longest)
        case dict():
            return {key: _shortened(item, longest) for key, item in value.items()}
        case list() | tuple():
            return [_shortened(item, longest) for item in value]
    return value


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}\n[cut at {longest} of {len(text)} characters]"
