"""Scores of gathered runs: into the store, and to Langfuse where this program sends what it records there."""

from __future__ import annotations

from collections.abc import Sequence

from arttrace.capture.export.lifecycle import recorder
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.rewards.langfuse_scores import addressed
from arttrace.store import AnyStore


def append_scores(store: AnyStore, records: Sequence[Record]) -> None:
    """Store the records. Rewards are recorded as well where the program has Langfuse as a receiver: they go there by
    its outbox, and are in the store once. Raises StoreError, as `store.append`."""
    if not recorder().settings.scores_live:
        store.append(records)
        return
    known = addressed(store, records)
    store.append(known)
    for one in known:
        if isinstance(one, Reward):
            recorder().record(one)
