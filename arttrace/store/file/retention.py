"""Retention without a request: how long runs are kept, as the captured programs or the environment say, and whether
anything is to go.

`arttrace.init(retain="30d")` leaves its wish in the data directory. Whoever opens the store there keeps to it, once
a day.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from arttrace.records.values.units import age_ns, size_bytes
from arttrace.store.file.prune import Pruned, left_out_for_good
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

_log = logging.getLogger("arttrace")

_DAY_S = 86_400.0
_WORTH_IT = 0.2  # of the bytes: the file is written anew, so what was left out goes when it is a good part of it
_STAMP = "retained"


class Limits(msgspec.Struct, frozen=True):
    """What is kept: runs no older than `age_ns`, and a file of at most `max_bytes`; None for no limit."""

    age_ns: int | None = None
    max_bytes: int | None = None


class Prunable(Protocol):
    """A store, this process's or another's."""

    def sql(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Columns and rows."""

    def prune(self, *, before_ns: int | None = None, max_bytes: int | None = None, dry_run: bool = False) -> Pruned:
        """As AnyStore.prune."""


def apply(store: Prunable, limits: Limits) -> Pruned | None:
    """Take out what the limits say; None when nothing is to go, which leaves the file alone. Raises StoreError."""
    before_ns = None if limits.age_ns is None else time.time_ns() - limits.age_ns
    _, [(left_out, share)] = store.sql(left_out_for_good())
    if share < _WORTH_IT and (
        limits == Limits()
        or store.prune(before_ns=before_ns, max_bytes=limits.max_bytes, dry_run=True).trajectories <= left_out
    ):
        return None
    return store.prune(before_ns=before_ns, max_bytes=limits.max_bytes)


def wished(data: DataDir, environment: Mapping[str, str] = os.environ) -> Limits:
    """What ARTTRACE_RETAIN and ARTTRACE_RETAIN_SIZE say, else what the captured programs left in the data directory.
    A word that is no limit is logged and is none."""
    try:
        kept = msgspec.json.decode(data.retention.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        kept = {}
    said = {name: environment.get(f"ARTTRACE_{name.upper()}") or kept.get(name) for name in ("retain", "retain_size")}
    age, size = (None if said[name] in (None, "", "none") else said[name] for name in ("retain", "retain_size"))
    try:
        return Limits(age_ns(age) if age else None, size_bytes(size) if size else None)
    except ValueError as error:
        _log.warning("arttrace: nothing is taken out of the store: %s", error)
        return Limits()


def keep_to_wish(store: Prunable, data: DataDir) -> None:
    """Once a day, where a wish is known: take out what is beyond it, and log what went, or why it could not."""
    limits = wished(data)
    if limits == Limits() or not _is_due(data):
        return
    try:
        done = apply(store, limits)
    except ArttraceError as error:
        _log.warning("arttrace: retention: %s; tried again in a day", error.message)
        return
    if done is not None:
        _log.warning("arttrace: %s", told(done))


def told(done: Pruned) -> str:
    """One line: what went."""
    gone = f"{done.trajectories} trajectories ({done.spans} spans) gone"
    return f"retention: {gone}, {done.kept_trajectories} kept"


def _is_due(data: DataDir) -> bool:
    """Whether a day went by since the last time that this was so."""
    stamp = data.root / _STAMP
    try:
        if 0 <= time.time() - stamp.stat().st_mtime < _DAY_S:
            return False
    except OSError:
        pass
    try:
        stamp.touch(0o600)
    except OSError:  # a directory that cannot be written, such as a full disk's: no store is written anew there
        return False
    return True
