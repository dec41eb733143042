"""`owner.json`: which process owns the store of a data directory, and where it answers."""

from __future__ import annotations

import contextlib
from datetime import datetime

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.files import replace_file
from arttrace.system.paths import DataDir
from arttrace.system.processes import is_alive


class StoreOwner(msgspec.Struct, frozen=True):
    """Who owns a store, as `owner.json` says: where it answers, its process and the token to ask with."""

    url: str
    pid: int
    token: str


def read_owner(data: DataDir) -> StoreOwner | None:
    """The content of `owner.json`, if its process is alive."""
    try:
        owner = msgspec.json.decode(data.owner.read_bytes(), type=StoreOwner)
    except (OSError, *UNREADABLE):
        return None
    return owner if is_alive(owner.pid) else None


def owner_line(data: DataDir) -> str | None:
    """Who owns the store, since when, and where it answers, for a log; None if no process does."""
    owner = read_owner(data)
    try:
        since = datetime.fromtimestamp(data.owner.stat().st_mtime).astimezone()
    except OSError:  # it has just ended
        return None
    if owner is None:
        return None
    when = since.isoformat(sep=" ", timespec="seconds")
    return f"the store of {data.root} is owned by process {owner.pid} at {owner.url} since {when}"


def write_owner(data: DataDir, owner: StoreOwner) -> None:
    """Write `owner.json`, readable by this user only."""
    replace_file(data.owner, msgspec.json.encode(owner))


def remove_owner(data: DataDir, owner: StoreOwner) -> None:
    """Remove `owner.json`, unless it is another process's by now."""
    with contextlib.suppress(OSError, *UNREADABLE):
        if msgspec.json.decode(data.owner.read_bytes(), type=StoreOwner) == owner:
            data.owner.unlink()
