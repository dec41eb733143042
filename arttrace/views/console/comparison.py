"""Two runs beside each other: what they begin alike with, and what each did from where they part."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import msgspec
from rich.box import MINIMAL
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from arttrace.records.trajectory import Trajectory
from arttrace.rewards.combine import trajectory_reward
from arttrace.views.labels import entry_name, one_line, printable
from arttrace.views.web.models.transcript import TranscriptEntry, alike, transcript

LEAST_WIDTH = 80
"""Below so many columns the second run stands below the first."""

_COMMON = 2
_STYLES = {"agent": "blue", "tool": "yellow", "answer": "green", "request": "blue"}


class Step(msgspec.Struct, frozen=True):
    """One thing that a run did. `kind` is agent, message, answer, tool or request, `level` how deep its agent stands;
    `title` is the role, the tool, the agent or the request, `text` what was said or passed, `result` what came back,
    `ended` how an answer ended otherwise than by itself. `id` is that of its span; "" for what no span recorded."""

    kind: str
    level: int
    title: str
    text: str
    result: str | None
    error: str
    ended: str
    id: str


class Side(msgspec.Struct, frozen=True):
    """One of the runs: its `steps` from where they part, and how many `more` it has beyond these."""

    id: str
    entry: str
    reward: float | None
    error: str | None
    incomplete: str
    steps: tuple[Step, ...]
    more: int


class Comparison(msgspec.Struct, frozen=True):
    """Two runs. The first `shared` steps are alike, the last of them are `common`; `rows` are numbers of the steps of
    either that stand beside each other, None where one has nothing alike."""

    shared: int
    common: tuple[Step, ...]
    sides: tuple[Side, Side]
    rows: tuple[tuple[int | None, int | None], ...]


def compare(first: Trajectory, second: Trajectory, most: int) -> Comparison:
    """Compares two runs by what was said and done: times, ids, models and token counts do not count.

    Args:
        first: A run.
        second: Another.
        most: How many steps of each are kept from where they part.
    """
    whole = transcript(first), transcript(second)
    shared = alike(whole)
    rest = [entries[shared : shared + most] for entries in whole]
    sides = [
        Side(
            id=run.id,
            entry=run.entry_name or run.entry or run.agents[0].name,
            reward=trajectory_reward(run),
            error=run.error,
            incomplete=run.incomplete,
            steps=tuple(map(_step, kept)),
            more=len(entries) - shared - len(kept),
        )
        for run, entries, kept in zip((first, second), whole, rest, strict=True)
    ]
    common = tuple(map(_step, whole[0][max(0, shared - _COMMON) : shared]))
    return Comparison(shared, common, (sides[0], sides[1]), _rows(rest[0], rest[1]))


def _step(entry: TranscriptEntry) -> Step:
    return Step(
        kind=entry.kind,
        level=entry.level,
        title=entry.title,
        text="\n".join(
            f"{part.name}({part.text})"
            if part.kind == "call" and entry.kind != "tool"
            else part.text or f"[{part.kind}]"
            for part in entry.parts
        ),
        result=None if entry.result is None else entry.result.text,
        error=entry.error,
        ended=entry.ended,
        id=entry.span_id,
    )


def _rows(
    first: Sequence[TranscriptEntry], second: Sequence[TranscriptEntry]
) -> tuple[tuple[int | None, int | None], ...]:
    """Steps of the same content stand beside each other, and between them what differs, one by one."""
    matcher = SequenceMatcher(a=[one.content for one in first], b=[one.content for one in second], autojunk=False)
    rows: list[tuple[int | None, int | None]] = []
    for _, a, a_end, b, b_end in matcher.get_opcodes():
        rows += zip_longest(range(a, a_end), range(b, b_end))
    return tuple(rows)


def document(found: Comparison) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "shared": found.shared,
        "common": list(found.common),
        "runs": list(found.sides),
        "rows": [list(row) for row in found.rows],
    }


def side_by_side(found: Comparison, page: Console, names: Sequence[str]) -> RenderableType:
    """The comparison for a terminal: two columns, or one run below the other where it is narrow."""
    heads = [_head(name, side) for name, side in zip(names, found.sides, strict=True)]
    lines: list[RenderableType] = []
    noun = "step" if found.shared == 1 else "steps"
    if not any(side.steps for side in found.sides):
        return Group(*heads, Text(f"The runs are alike: {found.shared} {noun}.", style="bold"))
    if found.shared:
        lines.append(
            Text(f"{found.shared} {noun} alike" + (", the last of them:" if found.common else ""), style="dim")
        )
        lines += [_cell(step, style="dim") for step in found.common]
        lines.append(Text("From here they part:", style="bold"))
    else:
        lines.append(Text("They part from the beginning:", style="bold"))
    if page.width < LEAST_WIDTH:
        for head, side in zip(heads, found.sides, strict=True):
            lines += [Text(), head, *map(_cell, side.steps), *_more(side)]
        return Group(*lines)
    table = Table(box=MINIMAL, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1), expand=True)
    for _ in found.sides:
        table.add_column(ratio=1, overflow="fold")
    table.add_row(*heads)
    for a, b in found.rows:
        left = Text() if a is None else _cell(found.sides[0].steps[a])
        right = Text() if b is None else _cell(found.sides[1].steps[b])
        table.add_row(left, right, style="dim" if left == right else "")
    if any(side.more for side in found.sides):
        table.add_row(*(Text().join(_more(side)) for side in found.sides))
    return Group(*lines, table)


def _head(name: str, side: Side) -> Text:
    reward = "no reward" if side.reward is None else f"reward {side.reward:.3f}"
    text = Text.assemble((printable(name), "bold"), f"  {one_line(entry_name(side.entry))}, {reward}")
    for trouble in filter(None, (side.error, side.incomplete and f"incomplete: {side.incomplete}")):
        text.append(f", {one_line(trouble, 200)}", style="red")
    return text


def _more(side: Side) -> list[Text]:
    return [Text(f"{side.more} more (--limit)", style="dim")] if side.more else []


def _cell(step: Step, style: str = "") -> Text:
    text = Text.assemble("  " * step.level, (one_line(step.title), _STYLES.get(step.kind, "cyan")), style=style)
    if step.ended:
        text.append(f" [{one_line(step.ended)}]", style="dim")
    if step.text:
        text.append(f"({one_line(step.text)})" if step.kind == "tool" else f": {one_line(step.text)}")
    if step.result is not None:
        text.append(f" -> {one_line(step.result)}")
    if step.error:
        text.append(f" failed: {one_line(step.error)}", style="red")
    return text
