"""The payloads that later ones of the same segment lean on: which of them the writer holds, and the reader.

A base is stored whole, so that no payload hangs on more than one other; and at most `MAX_LEANING` lean on it, so that
damage to it costs no more than those.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from arttrace.system.journal.frames import encode_frame
from arttrace.system.journal.sharing import common_parts, encode_leaning, own_bytes

MAX_LEANING: Final = 64

_HELD: Final = 32  # as many conversations that go on side by side
_HELD_BYTES: Final = 16 << 20
_LEAST_BYTES: Final = 16 << 10  # of a smaller payload there is little to save, and looking takes as long
_SEARCHES: Final = 4
_FIRST_LOOK: Final = 512
_LOOK_BYTES: Final = 64
_IDS_BYTES: Final = 512  # what every call has of its own


class _Base(NamedTuple):
    offset: int
    payload: bytes
    leaning: int = 0
    """How many payloads lean on it."""
    going_on: int = 0
    """The bytes stored of those among them that have all of it, as the next call of its conversation has."""
    others: int = 0
    """The bytes stored of the others, since the last of them that was stored whole."""


class WriterBases:
    """Encodes payloads for one segment. What `frames` makes counts once `written` says that it stands there."""

    def __init__(self) -> None:
        self._bases: list[_Base] = []  # the last used is the last
        self._next: list[_Base] = []

    def frames(self, payloads: Sequence[bytes], offset: int) -> bytes:
        """The frames of payloads that will stand at `offset`. Raises ValueError for a payload over 1 GiB."""
        self._next = self._bases.copy()
        frames: list[bytes] = []
        for payload in payloads:
            frames.append(self._frame(payload, offset))
            offset += len(frames[-1])
        return b"".join(frames)

    def written(self) -> None:
        """The frames made last are in the segment."""
        self._bases = self._next

    def forget(self) -> None:
        """What comes now stands in another segment."""
        self._bases, self._next = [], []

    def _frame(self, payload: bytes, offset: int) -> bytes:
        if len(payload) < _LEAST_BYTES:
            return encode_frame(payload)
        base = self._nearest(payload)
        parts = [] if base is None else common_parts(payload, base.payload, searches=_SEARCHES)
        stored = own_bytes(payload, parts)
        if base is not None and stored <= len(payload) // 2:
            self._next.remove(base)
            leaning = self._leaning(base, len(payload), stored, sum(part.length for part in parts))
            if leaning is not None:
                self._next.append(leaning)
                if leaning.leaning > base.leaning:
                    return encode_frame(encode_leaning(payload, base.offset, parts), leans=True)
        self._hold(_Base(offset, payload))
        return encode_frame(payload)

    @staticmethod
    def _leaning(base: _Base, length: int, stored: int, common: int) -> _Base | None:
        """The base when a payload of that length leans on it, `stored` bytes of which are its own; the base as if none
        had, where storing the payload whole is worth more by now than it costs; None where no other needs the base."""
        if base.leaning >= MAX_LEANING:
            return None
        if len(base.payload) - common <= len(base.payload) // 16 + _IDS_BYTES:
            if base.going_on >= len(base.payload):
                return None
            return base._replace(leaning=base.leaning + 1, going_on=base.going_on + stored)
        if base.others + stored >= length:
            return base._replace(others=0)
        return base._replace(leaning=base.leaning + 1, others=base.others + stored)

    def _nearest(self, payload: bytes) -> _Base | None:
        """The base that has the longest beginning in common with a payload, as far as that is seen at a glance; of
        several the one used last."""
        alike = [base for base in self._next if len(payload) <= 2 * len(base.payload)]
        at = _FIRST_LOOK
        while len(alike) > 1:
            piece = payload[at : at + _LOOK_BYTES]
            longer = [base for base in alike if base.payload.startswith(piece, at)] if piece else []
            if not longer:
                break
            alike, at = longer, at + at // 2
        return alike[-1] if alike else None

    def _hold(self, base: _Base) -> None:
        if len(base.payload) > _HELD_BYTES:
            return
        self._next.append(base)
        while len(self._next) > _HELD or sum(len(each.payload) for each in self._next) > _HELD_BYTES:
            del self._next[0]


class ReaderBases:
    """The bases that were read last, by their offsets."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, bytes] = OrderedDict()

    def get(self, offset: int) -> bytes | None:
        """The base at an offset, where it is held."""
        if offset in self._held:
            self._held.move_to_end(offset)
        return self._held.get(offset)

    def hold(self, offset: int, payload: bytes) -> None:
        """Hold it in place of those that were asked for longest ago."""
        self._held[offset] = payload
        while len(self._held) > _HELD or (len(self._held) > 1 and sum(map(len, self._held.values())) > _HELD_BYTES):
            self._held.popitem(last=False)
