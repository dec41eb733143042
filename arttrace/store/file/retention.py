"""Retention without a request: how long captured programs want runs to be kept, and whether any are to be removed.

`arttrace.init(retain="30d")` leaves its wish in the data directory. Whoever opens the store there keeps to it, once
a day.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.units import age_ns, size_bytes
from arttrace.store.file.prune import Pruned, counts_text, left_out_for_good
from arttrace.system.errors import ArttraceError, StoreError
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
    """Take out what the limits say; None when nothing is to go, which leaves the file alone if it is not too large.

    Raises StoreError when it cannot be written anew, or when not even the newest run would stay within the size: then
    nothing goes, whatever its age.
    """
    before_ns = None if limits.age_ns is None else time.time_ns() - limits.age_ns
    _, [(left_out, share)] = store.sql(left_out_for_good())  # spans, and their part of all bytes
    is_worth_it = share >= _WORTH_IT
    if limits == Limits():
        return store.prune() if is_worth_it else None
    foreseen = store.prune(before_ns=before_ns, max_bytes=limits.max_bytes, dry_run=True)
    fits = limits.max_bytes is None or foreseen.bytes_before <= limits.max_bytes
    if foreseen.spans <= left_out and not foreseen.rewards and not is_worth_it and fits:
        return None
    is_by_size = limits.max_bytes is not None and not foreseen.kept_trajectories
    if is_by_size and store.prune(before_ns=before_ns, dry_run=True).kept_trajectories:
        raise StoreError(
            f"no run would stay within {limits.max_bytes:,} bytes: the newest alone, with what is linked to it, needs "
            "more; nothing was removed",
            "Set a larger size, or look at what `arttrace prune --max-size SIZE --dry-run` says.",
        )
    done = store.prune(before_ns=before_ns, max_bytes=limits.max_bytes)
    return done if done.spans or done.rewards else None


def wished(data: DataDir) -> Limits:
    """What the captured programs left in the data directory, of their code or environment. Not the environment of who
    opens it: that is another directory's at times. A word that is no limit is logged and is none."""
    try:
        kept = msgspec.json.decode(data.retention.read_bytes(), type=dict[str, str])
    except (OSError, *UNREADABLE):
        kept = {}
    age, size = kept.get("retain"), kept.get("retain_size")
    try:
        return Limits(age_ns(age) if age else None, size_bytes(size) if size else None)
    except ValueError as error:
        _log.warning("arttrace: nothing is removed from the store: %s", error)
        return Limits()


def keep_to_wish(store: Prunable, data: DataDir) -> None:
    """Once a day, where a wish is known: take out what is beyond it, and log what went, or why it could not."""
    limits = wished(data)
    if limits == Limits() or not _is_due(data):
        return
    try:
        done = apply(store, limits)
    except ArttraceError as error:
        _log.warning("arttrace: retention: %s. %s Tried again in a day.", error.message, error.hint)
        return
    if done is not None:
        _log.warning("arttrace: %s", described(done))


def described(done: Pruned) -> str:
    """One line: what went."""
    return f"retention: {counts_text(done)} gone, {done.kept_trajectories} kept"


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
