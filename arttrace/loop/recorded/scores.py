"""Scores of gathered runs: stored, and sent to Langfuse if this program has it as a receiver."""

from __future__ import annotations

from collections.abc import Sequence

from arttrace.capture.export.lifecycle import recorder
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.rewards.langfuse_scores import addressed
from arttrace.store import AnyStore


def append_scores(store: AnyStore, records: Sequence[Record]) -> None:
    """Store the records. If Langfuse is a receiver, rewards are recorded as well: they reach it by its outbox, and are
    stored once. Raises StoreError, as `store.append`."""
    if not recorder().settings.scores_live:
        store.append(records)
        return
    known = addressed(store, records)
    store.append(known)
    for one in known:
        if isinstance(one, Reward):
            recorder().record(one)
