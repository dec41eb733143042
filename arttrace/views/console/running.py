"""What runs now: runs that were begun and have not ended, with what they did last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from arttrace.records.trajectory import Trajectory
from arttrace.store import AnyStore, TrajectorySummary
from arttrace.store.rows.columns import LAST_READING
from arttrace.store.rows.left_out import IS_MARK
from arttrace.store.rows.view_parts.definition import BELONGS_TO
from arttrace.store.sql_text import listed
from arttrace.views.agent_tree import cropped
from arttrace.views.labels import age, entry_name, one_line
from arttrace.views.terminal import widest

_COLUMNS = ("id", "entry", "age", "last", "agents", "calls", "tools", "tokens", "policy", "does")
_SPANS = f"""SELECT {BELONGS_TO}, max(arrived_ns), coalesce(sum(input_tokens), 0)::BIGINT,
        coalesce(sum(output_tokens), 0)::BIGINT, arg_max(name, (end_ns = 0, start_ns))
    FROM (SELECT * FROM span_records WHERE (trajectory_id IN ({{ids}}) OR trace_id IN ({{traces}}))
        AND NOT ({IS_MARK})
        QUALIFY row_number() OVER (PARTITION BY trace_id, span_id ORDER BY {LAST_READING}) = 1) s
    LEFT JOIN placed_spans p ON p.trace_id = s.trace_id AND p.span_id = s.span_id GROUP BY 1"""  # noqa: S608


class Running(msgspec.Struct, frozen=True):
    """A run that has not ended. `last_ns` is when something of it came in last, `does` the name of the span that began
    last and has not ended, else of the one that began last. Tokens are those of the calls that ended."""

    id: str
    entry: str
    group: str
    start_ns: int
    last_ns: int
    agents: int
    calls: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    policy_versions: tuple[str, ...]
    does: str


def has_not_ended(run: TrajectorySummary | Trajectory) -> bool:
    """Whether a run was begun, and of its end nothing is known."""
    return "in progress" in run.incomplete or "root missing" in run.incomplete


def running(store: AnyStore, runs: Iterable[TrajectorySummary]) -> list[Running]:
    """Those of `runs` that have not ended, the last that did something first. Raises StoreError."""
    open = list({run.id: run for run in runs if has_not_ended(run)}.values())
    if not open:
        return []
    ids = listed(run.id for run in open)
    traces = listed(run.id.partition(":")[0] for run in open)
    _, rows = store.sql(_SPANS.format(ids=ids, traces=traces))
    known = {id: rest for id, *rest in rows}
    found = []
    for run in open:
        last_ns, asked, answered, does = known.get(run.id, (run.start_ns, 0, 0, ""))
        found.append(
            Running(
                id=run.id,
                entry=run.entry,
                group=run.group,
                start_ns=run.start_ns,
                last_ns=last_ns or run.start_ns,
                agents=run.agents,
                calls=run.calls,
                tool_calls=run.tool_calls,
                input_tokens=asked,
                output_tokens=answered,
                policy_versions=run.policy_versions,
                does=does or "",
            )
        )
    return sorted(found, key=lambda one: (-one.last_ns, one.id))


def running_table(found: Sequence[Running], ids_shown: Mapping[str, str], hidden: int, idle: str) -> RenderableType:
    """The runs as a table, their ids as `ids_shown`; `hidden` are those that did nothing for longer than `idle`."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in _COLUMNS:
        left = name in ("id", "entry", "policy", "does")
        least = widest(ids_shown.values()) if name == "id" else None
        table.add_column(
            name, justify="left" if left else "right", no_wrap=name not in ("entry", "does"), min_width=least
        )
    for one in found:
        cells = (
            entry_name(one.entry),
            age(one.start_ns),
            age(one.last_ns),
            str(one.agents),
            str(one.calls),
            str(one.tool_calls),
            f"{one.input_tokens}/{one.output_tokens}",
            ", ".join(one.policy_versions) or "-",
            one.does,
        )
        table.add_row(cropped(Text(ids_shown[one.id])), *(cropped(Text(one_line(cell))) for cell in cells))
    noun = "run has" if hidden == 1 else "runs have"
    notes = (
        [Text(f"{hidden} more {noun} not ended, and did nothing for {idle} (--idle)", style="dim")] if hidden else []
    )
    return Group(*([table] if found else [Text("nothing runs now")]), *notes)
