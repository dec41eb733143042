"""Later scores of stored runs, from a judge or a function, which are also sent to Langfuse if that is switched on.

They take the way of what is recorded live: into the outbox of the receiver, which delivers on a thread of its own and
keeps what waits while Langfuse is away. So scoring never waits for it, and what this process does not deliver the next
one does, or `arttrace ship`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from arttrace.capture.base.settings import langfuse_receivers
from arttrace.capture.export.shipping.forwarding import ReceiverOutboxes
from arttrace.capture.export.shipping.shipper import drain
from arttrace.records.record import Record, encode_record
from arttrace.records.reward import Reward
from arttrace.store import AnyStore
from arttrace.store.access.run_spans import is_whole_trace, root_of, spans_of_runs
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir

_AT_THE_END_S = 5.0


def addressed(store: AnyStore, records: Sequence[Record]) -> list[Record]:
    """The records; the rewards among them know where a receiver finds their runs, as far as the store has it."""
    ids = sorted({one.trajectory_id for one in records if isinstance(one, Reward) and not one.given_to})
    try:
        spans = spans_of_runs(store, ids)
    except StoreError:
        return list(records)
    places = {}
    for id, members in spans.items():
        root = root_of(members)
        places[id] = root.trace_id if is_whole_trace(id, root) else f"{root.trace_id}/{root.span_id}"
    return [
        replace(one, given_to=places[one.trajectory_id])
        if isinstance(one, Reward) and not one.given_to and one.trajectory_id in places
        else one
        for one in records
    ]


class LangfuseScores:
    """Stores scores, and sends them to the Langfuse project of the environment with ARTTRACE_LANGFUSE=1. Use it as a
    context manager, or close it."""

    def __init__(self, data: DataDir) -> None:
        receivers = langfuse_receivers()
        self._outboxes = ReceiverOutboxes(data, receivers) if receivers else None

    def __enter__(self) -> LangfuseScores:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, store: AnyStore, records: Sequence[Record]) -> None:
        """Store the records, then put the rewards among them into the outbox. One that is taken back stays a score
        there. Raises StoreError, as `store.append`."""
        if self._outboxes is None:
            store.append(records)
            return
        known = addressed(store, records)
        store.append(known)
        rewards = [one for one in known if isinstance(one, Reward) and one.counts]
        self._outboxes.write([encode_record(one) for one in rewards if one.given_to])
        self._outboxes.sync()

    def close(self) -> None:
        """Let Langfuse have what waits, for a few seconds at most and not where it takes nothing: the rest stays in
        the outbox."""
        if self._outboxes is not None:
            self._outboxes.seal()
            shippers = self._outboxes.shippers
            drain(shippers, _AT_THE_END_S, patient=False)
            for shipper in shippers:
                shipper.stop()
