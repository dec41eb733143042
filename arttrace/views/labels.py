"""Short texts for people: names of runs and groups, ages, values; no captured text steers a terminal through them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from arttrace.formats.imported_run import is_undated
from arttrace.trajectories.decoding.attribute_values import from_json

_SHORT = 400


def one_line(value: str, limit: int = _SHORT) -> str:
    """Text in one line, without control characters (a captured text must not steer the terminal), cut at `limit`."""
    line = " ".join(value[: 4 * limit].split())
    line = printable(line)
    return line if len(line) <= limit and len(value) <= 4 * limit else line[: limit - 1] + "…"


def printable(text: str) -> str:
    """Text without control characters, spaces and all else as it is."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "·" for c in text)


def age(time_ns: int, now_ns: int | None = None) -> str:
    """How long ago a time was, in the largest unit that fits: 12s, 3m, 5h, 2d; "-" of an import without times."""
    if is_undated(time_ns):
        return "-"
    seconds = ((time.time_ns() if now_ns is None else now_ns) - time_ns) / 1e9
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds / length)}{unit}"
    return f"{max(0, int(seconds))}s"


def short_id(id: str) -> str:
    """The beginning of a random id, by which commands find its run again; an id that somebody chose is whole."""
    return id[:8] if _is_random(id) else printable(id)


def shown_id(id: str, limit: int) -> str:
    """`short_id` in one line of at most so many characters: names of runs differ at their ends, which both stay."""
    line = one_line(short_id(id), max(limit, len(id)))
    return line if len(line) <= limit else f"{line[: limit // 2]}…{line[len(line) - (limit - 1) // 2 :]}"


_is_random = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def entry_name(entry: str) -> str:
    """An entry point for people: without the folders or packages around its module."""
    file = entry.rpartition("/")[2]
    module, colon, function = file.partition(":")
    if module.endswith(".py") or not all(part.isidentifier() for part in module.split(".")):
        return file
    return f"{module.rpartition('.')[2]}{colon}{function}"


_is_entry = re.compile(r"/\S*/|(\w+\.)+\w+:\w").match


def key_name(key: str) -> str:
    """A group's key for people: where it begins with an entry point, without the folders or packages around it."""
    entry, space, arguments = key.partition(" ")
    return f"{entry_name(entry)}{space}{arguments}" if _is_entry(entry) else key


_entry_before_arguments = re.compile(r"(/\S+/\S+|\S+\.py|[\w.]+):[\w.<>]+ (?=\{.*\}$|#[0-9a-f]{16}$)", re.DOTALL).match


def group_name(key: str, entry: str) -> str:
    """A group's key for people: that of an entry point, a run's own or another, with its arguments is read as those,
    `city=Oslo, days=3`, the value alone where there is one."""
    rest = key.removeprefix(entry)
    if rest[:1] not in ("", " ", "/"):  # another name that begins with the entry's
        rest = key
    if rest == key and (other := _entry_before_arguments(key)):
        rest = key[other.end() :]
    if rest != key and rest.startswith("/"):  # a task of an imported file, which is its runs' entry
        return rest[1:]
    arguments = rest.strip()
    values = from_json(arguments)
    if not isinstance(values, dict):
        return "" if values is None else arguments
    shown = {name: json_text(value) for name, value in values.items()}
    return next(iter(shown.values())) if len(shown) == 1 else ", ".join(f"{k}={v}" for k, v in shown.items())


def group_names(groups: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """What a list shows of groups, by key and entry: `group_name`, but the whole key where two groups of entries that
    are shown alike would be too."""
    names = {(key, entry): group_name(key, entry) for key, entry in groups}
    alike: dict[tuple[str, str], set[str]] = {}
    for (key, entry), name in names.items():
        alike.setdefault((entry_name(entry), name), set()).add(key)
    return {
        (key, entry): name if len(alike[entry_name(entry), name]) == 1 else key for (key, entry), name in names.items()
    }


def version_order(version: str) -> tuple[str, int]:
    """A key that orders policy versions by their numbers: `policy@9` before `policy@10`."""
    policy, _, number = version.rpartition("@")
    return (policy, int(number)) if number.isascii() and number.isdigit() else (version, -1)


def json_text(value: Any) -> str:
    """A value as JSON text; a text as it is."""
    try:
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except RecursionError:
        return "(nested too deep to be shown)"


def readable_json(text: str) -> str:
    """JSON text with the letters that are escaped in it, as Python writes all that are not ASCII. Characters that are
    not shown stay escaped."""
    return _escapes.sub(_letter, text) if "\\u" in text else text


_escapes = re.compile(r"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|u([0-9a-f]{4})|.)", re.IGNORECASE | re.DOTALL)


def _letter(found: re.Match[str]) -> str:
    high, low, alone = found.groups()
    if high:
        letter = chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    else:
        letter = chr(int(alone, 16)) if alone else ""
    return letter if letter > "\x7f" and letter.isprintable() else found[0]


def cell_text(value: Any) -> str:
    """A value of a query's row in one line."""
    match value:
        case None:
            return ""
        case float():
            return f"{value:.6g}"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S")
        case list() | tuple():
            return ", ".join(map(cell_text, value))
        case dict():
            return ", ".join(f"{cell_text(key)}={cell_text(item)}" for key, item in value.items())
    return one_line(str(value))
