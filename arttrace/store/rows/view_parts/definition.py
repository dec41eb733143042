"""What a view of the store is made of: its columns with their meanings, the SQL that makes it, and its description."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Final

import msgspec

from arttrace.formats.imported_run import undated_in_sql

BELONGS_TO: Final = "CASE WHEN p.span_id IS NULL THEN s.trajectory_id ELSE p.trajectory_id END"
"""The trajectory of a row `s` of `span_records`, beside which `p` is its row of `placed_spans`."""


class Column(msgspec.Struct, frozen=True):
    """A column; without an expression it is the source's column of that name."""

    name: str
    meaning: str
    expression: str = ""


class View(msgspec.Struct, frozen=True):
    """A view: what its rows are, its columns, and the SQL from FROM on; `before` stands ahead of SELECT."""

    name: str
    rows: str
    columns: tuple[Column, ...]
    source: str
    before: str = ""

    def sql(self) -> str:
        """The statement that makes it."""
        columns = ",\n    ".join(f'{one.expression or one.name} AS "{one.name}"' for one in self.columns)
        return f"CREATE VIEW {self.name} AS {self.before}\nSELECT {columns}\n{self.source};\n"


def as_time(nanoseconds: str) -> str:
    """A column of nanoseconds as a point in time."""
    return f"make_timestamptz({nanoseconds} // 1000)"


def known_time(nanoseconds: str) -> str:
    """The same; NULL where an import had no time, and one was made up."""
    return f"CASE WHEN NOT {undated_in_sql(nanoseconds)} THEN {as_time(nanoseconds)} END"


def of_document(name: str, *, operator: str = "->>", of: str = "") -> str:
    """An attribute of a span, out of its document: as the span has it, else as it was read (see rows/encode.py)."""
    there = name.replace("~", "~0").replace("/", "~1")
    return f"coalesce({of}document{operator}'/attributes/{there}', {of}document{operator}'/conventions/{there}')"


def said_of_run(column: str, order: str) -> str:
    """What a run's spans `s` say of it, whatever order they came in: its entries, where none contradicts another (a
    run's id may be used again); where there is none, the span that is first in this order."""
    of_entries = f"min(s.{column}) FILTER (s.entry IS NOT NULL)"
    first = f"min_by(s.{column}, ({order})) FILTER (s.{column} IS NOT NULL)"
    return f"""CASE WHEN count(s.entry) = 0 THEN {first}
            WHEN {of_entries} = {of_entries.replace("min(", "max(")} THEN {of_entries} END"""


def as_text(views: Iterable[View], width: int) -> str:
    """Every view with its columns and their meaning, for a terminal of this width."""
    lines: list[str] = []
    for view in views:
        lines.append(f"{view.name}: {view.rows}")
        room = max(len(column.name) for column in view.columns)
        for column in view.columns:
            lines += _wrapped(f"  {column.name.ljust(room)}  ", column.meaning, width)
        lines.append("")
    return "\n".join(lines[:-1])


def _wrapped(head: str, words: str, width: int) -> list[str]:
    return textwrap.wrap(words, max(width, len(head) + 20), initial_indent=head, subsequent_indent=" " * len(head))


def as_markdown(views: Iterable[View]) -> str:
    """The same as a table per view, in Markdown."""
    parts: list[str] = []
    for view in views:
        rows = "\n".join(f"| `{column.name}` | {column.meaning} |" for column in view.columns)
        parts.append(f"**{view.name}**: {view.rows}\n\n| column | meaning |\n|---|---|\n{rows}")
    return "\n\n".join(parts)
