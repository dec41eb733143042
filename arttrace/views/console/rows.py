"""The rows of any query as text: a table, or lines of name and value where that is wider than the page. The plan of a
query is a drawing, and stays one.

A query gives as many rows as it likes, and all are printed: cells are measured once and lines put together here, which
takes a thirtieth of what rich's tables take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from arttrace.store.bounded_parts import batched
from arttrace.views.labels import cell_text, one_line, printable

_PLAN = ["explain_key", "explain_value"]
"""The columns of what EXPLAIN answers."""
_BETWEEN = "   "
_LEAST_VALUE = 10  # columns
_AT_ONCE = 500  # lines
_BOLD, _DIM = Style(bold=True), Style(dim=True)


def plan_lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of the plans that are the answer to an EXPLAIN; none of the answer to any other query."""
    if list(columns) != _PLAN or not all(isinstance(plan, str) for _, plan in rows):
        return []
    return [printable(line).rstrip() for _, plan in rows for line in plan.splitlines()]


def print_rows(out: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """All rows, each in one line; where one is wider than the page, each as lines of name and value."""
    names = [one_line(str(name)) for name in columns]
    cells = [[cell_text(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    if sum(widths) + len(_BETWEEN) * (len(widths) - 1) <= out.width:
        is_right = [all(map(_is_number_or_null, column)) for column in zip(*rows, strict=True)] or [False] * len(names)
        lines = _table(names, cells, widths, is_right, "-" if out.options.ascii_only else "─")
    else:
        lines = _records(out, names, cells)
    for part in batched(lines, _AT_ONCE):
        out.print(Segments([one for line in part for one in (*line, Segment.line())]), end="", crop=False)


def _is_number_or_null(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, Decimal))


def _table(
    names: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int], is_right: Sequence[bool], rule: str
) -> Iterator[list[Segment]]:
    def line(cells: Sequence[str]) -> str:
        padded = (
            " " * (width - cell_len(cell)) + cell if right else cell + " " * (width - cell_len(cell))
            for cell, width, right in zip(cells, widths, is_right, strict=True)
        )
        return _BETWEEN.join(padded).rstrip()

    yield [Segment(line(names), _BOLD)]
    yield [Segment(rule * (sum(widths) + len(_BETWEEN) * (len(widths) - 1)))]
    for row in rows:
        yield [Segment(line(row))]


def _records(out: Console, names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[list[Segment]]:
    widest = max(map(cell_len, names))
    room = max(_LEAST_VALUE, out.width - widest - 2)
    heads = [Segment(f"{name}{' ' * (widest - cell_len(name))}  ", _BOLD) for name in names]
    below = Segment(" " * (widest + 2))
    for number, row in enumerate(rows, start=1):
        yield [Segment(f"row {number}", _DIM)]
        for head, cell in zip(heads, row, strict=True):
            first, *more = [cell] if cell_len(cell) <= room else _folded(out, cell, room)
            yield [head, Segment(first)]
            for line in more:
                yield [below, Segment(line)]


def _folded(out: Console, text: str, width: int) -> list[str]:
    return [line.plain.rstrip() for line in Text(text).wrap(out, width, overflow="fold")]
