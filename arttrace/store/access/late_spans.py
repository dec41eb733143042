"""Runs that got spans after a policy took them: was trained on them, or set them aside. It takes a run once: these
spans are not trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from arttrace.store.access.any_store import AnyStore
from arttrace.store.sql_text import listed, quoted

_AT_ONCE = 500


class HasRevision(Protocol):
    """A run: its id, and the revision of its spans now."""

    @property
    def id(self) -> str: ...
    @property
    def revision(self) -> str: ...


def late(store: AnyStore, runs: Iterable[HasRevision], policy: str | None = None) -> dict[str, tuple[str, ...]]:
    """Of these runs, by id, those whose spans are others now than when versions of policies (of `policy` alone, where
    it is given) took them; with these versions, in order. Raises StoreError."""
    revisions = {run.id: run.revision for run in runs}
    found: dict[str, tuple[str, ...]] = {}
    ids = list(revisions)
    for start in range(0, len(ids), _AT_ONCE):
        found.update(_late(store, {id: revisions[id] for id in ids[start : start + _AT_ONCE]}, policy))
    return found


def _late(store: AnyStore, revisions: Mapping[str, str], policy: str | None) -> dict[str, tuple[str, ...]]:
    where = f"trajectory_id IN ({listed(revisions)})"
    if policy is not None:
        where += f" AND policy = {quoted(policy)}"
    query = f"SELECT trajectory_id, policy, step, revision FROM consumption WHERE {where}"  # noqa: S608
    _, rows = store.sql(f"{query} ORDER BY policy, step")
    trained: dict[str, dict[str, bool]] = {}
    for id, name, step, revision in rows:
        trained.setdefault(id, {})[f"{name}@{step}"] = revision == revisions[id]
    return {
        id: tuple(version for version, same in versions.items() if not same)
        for id, versions in trained.items()
        if not all(versions.values())
    }
