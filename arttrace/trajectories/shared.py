"""What a call's input shares with earlier inputs of its run is read once, so that a growing history costs its growth.

A history that grows by a turn per call comes as ever longer texts, each beginning with the one before it. That is
recognised by comparing texts; only the rest is parsed, unpacked or hashed.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Any, Generic, TypeVar

import msgspec

from arttrace.records.message import MessageTexts
from arttrace.records.tokens import TokenIds, token_array

_T = TypeVar("_T")
_KEPT = 16

_raw_list: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


class Recent(Generic[_T]):
    """The last few texts, each with what was made of it."""

    def __init__(self) -> None:
        self._held: list[tuple[str, _T]] = []

    def longest(self, text: str) -> tuple[str, _T] | None:
        """The longest of them that `text` begins with."""
        found = None
        for held in reversed(self._held):
            if (found is None or len(held[0]) > len(found[0])) and text.startswith(held[0]):
                found = held
        return found

    def keep(self, text: str, made: _T, instead_of: tuple[str, _T] | None) -> None:
        """Keeps a text, in the place of the one that it extends."""
        if instead_of is not None:
            self._held.remove(instead_of)
        self._held.append((text, made))
        del self._held[:-_KEPT]


class Prefixes(Generic[_T]):
    """Tuples of objects that are one and the same where they are equal, each with what was made of it."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], tuple[tuple[Any, ...], _T]] = {}  # by length and identity of the last item

    def longest(self, items: tuple[Any, ...]) -> tuple[int, _T | None]:
        """The length of the longest held tuple that `items` begins with, and what was made of it; (0, None)."""
        for length in range(len(items), 0, -1):
            held = self._held.get((length, id(items[length - 1])))
            if held is not None and items[:length] == held[0]:
                return length, held[1]
        return 0, None

    def keep(self, items: tuple[Any, ...], made: _T) -> None:
        """Holds a tuple that is not empty."""
        self._held[len(items), id(items[-1])] = (items, made)


class _Digests(dict[str, bytes]):
    def __missing__(self, text: str) -> bytes:
        self[text] = digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return digest


class SharedTexts:
    """Message lists of one trace as MessageTexts, equal messages as one str object, and the hash of each list."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._recent: Recent[MessageTexts] = Recent()
        self._digests = _Digests()
        self._hashed: Prefixes[tuple[Any, int]] = Prefixes()

    def messages(self, value: Any, *, grows: bool = True) -> MessageTexts | None:
        """The messages of an attribute: JSON text, values, or MessageTexts. None when it is no list. `grows` says that
        it may begin with what came before."""
        if isinstance(value, MessageTexts):
            return value
        try:
            if isinstance(value, str):
                return self._of_json(value) if grows else MessageTexts(self._parsed(value))
            if isinstance(value, (list, tuple)):
                return MessageTexts(self._one(msgspec.json.encode(item).decode()) for item in value)
        except (msgspec.DecodeError, UnicodeError):
            pass
        return None

    def digest(self, texts: MessageTexts) -> tuple[bytes, int]:
        """A hash over the texts of a list (16 bytes), and their length together."""
        length, known = self._hashed.longest(texts)
        state, size = (known[0].copy(), known[1]) if known else (hashlib.blake2b(digest_size=16), 0)
        if length < len(texts):
            state.update(b"".join(map(self._digests.__getitem__, texts[length:])))
            size += sum(map(len, texts[length:]))
            self._hashed.keep(texts, (state.copy(), size))
        digest: bytes = state.digest()
        return digest, size

    def _of_json(self, text: str) -> MessageTexts:
        whole = text.rstrip()
        body = whole[:-1]  # without the closing bracket: what a longer list begins with
        held = self._recent.longest(body) if whole.endswith("]") else None
        rest = body[len(held[0]) :].lstrip() if held else ""
        if held and not rest:
            return held[1]
        if held and rest.startswith(","):
            texts = MessageTexts((*held[1], *self._parsed(f"[{rest[1:]}]")))
        else:
            held, texts = None, MessageTexts(self._parsed(text))
        if texts:
            self._recent.keep(body, texts, held)
        return texts

    def _parsed(self, text: str) -> list[str]:
        return [self._one(bytes(raw).decode()) for raw in _raw_list.decode(text)]

    def _one(self, text: str) -> str:
        return self._texts.setdefault(text, text)


_IDS_AT_ONCE = 16  # characters of base64 that hold three whole ids
_PREFIX = len("i4:")


class SharedTokens:
    """Token ids of one trace's prompts: those that extend earlier ones lie in one array with them."""

    def __init__(self) -> None:
        self._recent: Recent[tuple[Any, array[int]]] = Recent()  # a hash over the text; its ids come first in the array

    def read(self, text: str) -> tuple[bytes, TokenIds | None]:
        """The hash of an encoded prompt (16 bytes), and its ids, None when it is not readable."""
        held = self._recent.longest(text)
        read, (state, ids) = (len(held[0]), held[1]) if held else (0, (hashlib.blake2b(digest_size=16), array("i")))
        state = state.copy()
        known = max(0, read - _PREFIX) // _IDS_AT_ONCE * 3
        try:
            tail = token_array(text[:_PREFIX] + text[max(read, _PREFIX) :])
        except ValueError:
            state.update(text[read:].encode())
            return state.digest(), None
        further = ids[known : known + len(tail)]
        if further == tail[: len(further)]:
            ids.extend(tail[len(further) :])
        else:
            ids = ids[:known] + tail
        whole = _whole_ids(text)
        if whole > read:
            state.update(text[read:whole].encode())
            self._recent.keep(text[:whole], (state.copy(), ids), held)
            read = whole
        state.update(text[read:].encode())
        return state.digest(), TokenIds(ids, known + len(tail))


def _whole_ids(text: str) -> int:
    """How many characters of an encoded prompt a longer one is sure to begin with."""
    return max(0, len(text) - _PREFIX - 4) // _IDS_AT_ONCE * _IDS_AT_ONCE + _PREFIX
