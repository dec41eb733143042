"""The fenced blocks of the documentation, and how each is tested.

A `console` or `sh` block stands under an HTML comment, which no rendered page shows:

- `<!-- run: SITE -->`: the commands run in the directory that the function `SITE` of doc_sites.py prepares, and print
  what the block shows. Blocks of one page with the same site run in one directory, from the top.
- `<!-- tested: PATH -->` or `<!-- tested: PATH::TEST -->`: that file, or test, runs it (models are too heavy for here).
- `<!-- excerpt: WHY -->`: nothing runs it, for this reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob(".github/**/*.md")]
)
_FENCE = re.compile(r"^ *```(?P<language>[\w-]*).*$")
_MARK = re.compile(r"^ *<!-- (?P<kind>run|tested|excerpt): (?P<value>.+) -->$")


@dataclass(frozen=True)
class Block:
    """One fenced block; `kind` and `value` are those of its comment, empty without one."""

    page: Path
    line: int
    language: str
    text: str
    kind: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Step:
    """One command of a block, and the lines that it shows."""

    command: str
    shown: tuple[str, ...]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, from the top."""
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None:
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
        above = next((line for line in reversed(lines[:at]) if line.strip()), "")
        mark = _MARK.match(above)
        yield Block(
            page,
            at + 1,
            opened["language"],
            "\n".join(lines[at + 1 : end]),
            *((mark["kind"], mark["value"]) if mark else ()),
        )
        at = end + 1


def steps(block: Block) -> list[Step]:
    """The commands of a console block, each with what it shows; a command goes on after a backslash."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        else:
            found[-1][1].append(line)
    return [Step(command, tuple(shown)) for command, shown in found]


_VARIES = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*", "TIME"),
    (r"\b[0-9a-f]{8,32}\b", "ID"),
    (r"\b\d+(\.\d+)? ?(kB|MB|GB|TB|KiB|MiB|GiB)\b", "SIZE"),
    (r"\b\d+(\.\d+)? ?(ms|s|m|min|h|d)\b", "DURATION"),
    (r"\b\d+(\.\d+)? per second", "N per second"),
    (r"\b\d+\.\d+\.\d+\w*\b", "VERSION"),
    (r"(process|pid) \d+", r"\1 N"),
    (r"(bytes|_seconds) [\d.]+", r"\1 N"),
    (r"\w*…", "…"),
    (r"─+", "─"),
    (r"\s+", " "),
)


def same_every_time(line: str) -> str:
    """The line without what differs from one run to the next: ids, times, sizes, versions, the width of columns."""
    for pattern, name in _VARIES:
        line = re.sub(pattern, name, line)
    return line.strip()


def difference(shown: tuple[str, ...], printed: list[str]) -> str:
    """What is shown and was not printed, or was printed and is not shown; "" when they agree.

    A line `...` stands for any number of lines.
    """
    wanted = [same_every_time(line) for line in shown]
    got = [same_every_time(line) for line in printed]
    reached = {0}
    for number, line in enumerate(wanted):
        if line == "...":
            reached = set(range(min(reached), len(got) + 1))
        else:
            before, reached = reached, {at + 1 for at in reached if at < len(got) and got[at] == line}
            if not reached:
                where = ", ".join(repr(got[at]) if at < len(got) else "the end" for at in sorted(before)[:3])
                return f"shown, not printed: {shown[number]!r}\nprinted there: {where}"
    return "" if len(got) in reached else f"printed, not shown: {printed[max(reached)]!r}"
