"""Ids of runs and calls: of those that a system gave none, and of those whose own id is not one of a trace."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from arttrace.formats.files.known_ids import KnownIds
from arttrace.formats.imported_run import hashed
from arttrace.records.message import canonical_json


class ContentIds:
    """Ids from the content, for all files that are imported at once. What is there again, word for word, is another
    run; the same files again give the same ids. `stored` gives the ids of all traces in the store; it is asked once,
    when the first run comes that has an id of its own."""

    def __init__(self, stored: Callable[[], Iterable[str]] = tuple) -> None:
        self._seen = KnownIds()
        self._ask_stored = stored
        self._stored: KnownIds | None = None

    def next(self, source: str, content: Any, *, numbers_the_first: bool = False) -> str:
        """32 hex digits for a content of a source, others each time. Ids that are in stores stay the same: those of
        request and response pairs have had a number from the first on."""
        digest = hashlib.blake2b(canonical_json([source, content]), digest_size=16)
        again = int(self._seen.get(id := digest.digest()) or 0) + 1
        self._seen.keep(id, again)
        if again > 1 or numbers_the_first:
            digest.update(str(again).encode())
        return digest.hexdigest()

    def of_own(self, system: str, source: str, id: Any) -> str:
        """32 hex digits for a run that its system gave an id: the same in whichever file. A run that is in the store
        from when the name of its file was a part of that keeps what it has."""
        if self._stored is None:
            self._stored = KnownIds()
            self._stored.add(one.encode() for one in self._ask_stored())
        former = hashed(32, source, id)
        return former if former.encode() in self._stored else id_of_own(system, id)


class ItemOrigin(NamedTuple):
    """The file that an item is of, its place there, and the ids of all files that are imported with it."""

    source: str
    """Names runs that do not name themselves: the file's name, mostly."""
    place: str
    """Where the item stands: `line 3`."""
    ids: ContentIds

    def id_of(self, content: Any) -> str:
        """32 hex digits for a run or a call of this content; `ContentIds.next` says when they are others."""
        return self.ids.next(self.source, content)

    def id_of_own(self, system: str, id: Any) -> str:
        """32 hex digits for a run that its system gave an id; see `ContentIds.of_own`."""
        return self.ids.of_own(system, self.source, id)


def id_of_own(system: str, id: Any) -> str:
    """32 hex digits from the id that a system gave a run."""
    return hashed(32, system, id)
