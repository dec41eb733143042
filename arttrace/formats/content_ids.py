"""Ids of runs and calls that a system gave none."""

from __future__ import annotations

import hashlib
from typing import Any

from arttrace.formats.files.known_ids import KnownIds
from arttrace.records.message import canonical_json


class ContentIds:
    """Ids from the content, for all files that are imported at once. What is there again, word for word, is another
    run; the same files again give the same ids."""

    def __init__(self) -> None:
        self._seen = KnownIds()

    def next(self, source: str, content: Any, *, numbers_the_first: bool = False) -> str:
        """32 hex digits for a content of a source, others each time. Ids that are in stores stay the same: those of
        request and response pairs have had a number from the first on."""
        digest = hashlib.blake2b(canonical_json([source, content]), digest_size=16)
        again = int(self._seen.get(id := digest.digest()) or 0) + 1
        self._seen.keep(id, again)
        if again > 1 or numbers_the_first:
            digest.update(str(again).encode())
        return digest.hexdigest()
