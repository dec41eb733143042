"""The ids of runs as a list shows them: as short as can be, and long enough that `arttrace show` finds the run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from arttrace.store import AnyStore
from arttrace.store.sql_text import listed
from arttrace.views.labels import printable

_LEAST = 8
_AT_ONCE = 5_000
_NEIGHBOURS = f"""WITH asked AS (SELECT unnest([{{ids}}]::VARCHAR[]) AS id),
    near AS (SELECT DISTINCT trajectory_id AS id FROM span_records
        WHERE left(trajectory_id, {_LEAST}) IN (SELECT left(id, {_LEAST}) FROM asked)),
    in_order AS (SELECT id, lag(id) OVER (ORDER BY id) AS previous, lead(id) OVER (ORDER BY id) AS next FROM near)
    SELECT id, previous, next FROM in_order WHERE id IN (SELECT id FROM asked)"""  # noqa: S608


def shown_ids(store: AnyStore, ids: Sequence[str]) -> dict[str, str]:
    """For each id the shortest beginning, of at least 8 characters, with which no other id of the store begins; the
    whole id where there is none, or where spans carry it in part only, as those of a conversation do."""
    shown = {id: printable(id) for id in ids}
    for first in range(0, len(ids), _AT_ONCE):
        some = listed(ids[first : first + _AT_ONCE])
        for id, *neighbours in store.sql(_NEIGHBOURS.format(ids=some))[1]:
            common = max(_in_common(id, other or "") for other in neighbours)
            shown[id] = printable(id[: max(_LEAST, common + 1)])
    return shown


def _in_common(one: str, other: str) -> int:
    """With how many equal characters both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
