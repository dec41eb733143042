"""What a call's input shares with earlier inputs of its run is read once, so that a growing history costs its growth.

What an input begins with is recognised by its text (recent_texts.py); only the rest is parsed, unpacked or hashed.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from arttrace.records.message import MessageTexts
from arttrace.records.values.lenient_json import read_lenient
from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.tokens import TOKEN_IDS, TokenIds, TokenText, token_array
from arttrace.trajectories.decoding.recent_texts import RecentTexts

_T = TypeVar("_T")

_raw_list: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


def message_texts(value: Any) -> list[str] | None:
    """The JSON text of each message of an attribute (JSON text or values), None when it is neither. Raises ValueError
    for text that is no list, RecursionError for one too deep."""
    if isinstance(value, str):
        try:
            return [bytes(raw).decode() for raw in _raw_list.decode(value)]
        except ValueError:
            value = read_lenient(value)
            if not isinstance(value, list):
                raise
    if isinstance(value, (list, tuple)):
        return [msgspec.json.encode(item).decode() for item in value]
    return None


class Prefixes(Generic[_T]):
    """Tuples of objects that are one and the same where they are equal, each with what was made of it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[tuple[Any, ...], _T]] = {}  # by length and identity of the last item

    def longest(self, items: tuple[Any, ...]) -> tuple[int, _T | None]:
        """The length of the longest earlier tuple that `items` begins with, and what was made of it; (0, None)."""
        for length in range(len(items), 0, -1):
            earlier = self._kept.get((length, id(items[length - 1])))
            if earlier is not None and items[:length] == earlier[0]:
                return length, earlier[1]
        return 0, None

    def keep(self, items: tuple[Any, ...], made: _T) -> None:
        """Keeps a tuple that is not empty."""
        self._kept[len(items), id(items[-1])] = (items, made)


class MessageList:
    """The messages of an attribute, as the list that it goes on from and the JSON texts that it adds; equal texts are
    one object. `size` is the characters of all of them, `digest` a hash over them all (16 bytes)."""

    __slots__ = ("_state", "added", "before", "size")

    def __init__(self, before: MessageList | None, added: Sequence[str], digests: _Digests) -> None:
        self.before, self.added = before, added
        self._state: Any = hashlib.blake2b(digest_size=16) if before is None else before._state.copy()
        self._state.update(b"".join([digests[text] for text in added]))
        self.size: int = sum(map(len, added), before.size if before else 0)

    @property
    def digest(self) -> bytes:
        digest: bytes = self._state.digest()
        return digest


class _Digests(dict[str, bytes]):
    def __missing__(self, text: str) -> bytes:
        self[text] = digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return digest


class SharedTexts:
    """Message lists of one trace as MessageLists."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._digests = _Digests()
        self._recent: RecentTexts[MessageList] = RecentTexts()
        self._whole: Prefixes[MessageList] = Prefixes()
        self._linked: dict[int, tuple[MessageTexts, MessageList]] = {}  # by identity

    def messages(self, value: Any) -> MessageList | None:
        """The messages of an attribute: JSON text, values, or MessageTexts. None when it is no list."""
        try:
            if isinstance(value, str):
                return self._of_json(value)
            if isinstance(value, MessageTexts):
                return self._of_linked(value)
            texts = self._read(value)
            return None if texts is None else self._of_texts(texts)
        except UNREADABLE:
            return None

    def _of_linked(self, texts: MessageTexts) -> MessageList:
        """What it extends was recognised when it was stored, and is not looked for again."""
        missing: list[MessageTexts] = []
        at: MessageTexts | None = texts
        while at is not None and id(at) not in self._linked:
            missing.append(at)
            at = at.before
        found = None if at is None else self._linked[id(at)][1]
        for one in reversed(missing):
            found = self._of_texts(one.added) if found is None else MessageList(found, one.added, self._digests)
            self._linked[id(one)] = one, found
        assert found is not None
        return found

    def _of_texts(self, texts: tuple[str, ...]) -> MessageList:
        length, known = self._whole.longest(texts)
        if known is not None and length == len(texts):
            return known
        found = MessageList(known, texts[length:], self._digests)
        if texts:
            self._whole.keep(texts, found)
        return found

    def _of_json(self, text: str) -> MessageList:
        end = len(text.rstrip()) - 1  # of what a longer list begins with: all but the closing bracket
        earlier = self._recent.longest(text, end) if text[end : end + 1] == "]" else None
        if earlier is not None:
            rest = text[earlier.length : end].lstrip()
            if not rest:
                return earlier.made
            if rest.startswith(",") and (added := self._read(f"[{rest[1:]}]")):
                found = MessageList(earlier.made, added, self._digests)
                self._recent.keep(text[earlier.length : end], found, earlier)
                return found
        found = self._of_texts(self._read(text) or ())
        if found.size:
            self._recent.keep(text[:end], found, None)
        return found

    def _read(self, value: Any) -> tuple[str, ...] | None:
        texts = message_texts(value)
        return None if texts is None else tuple([self._texts.setdefault(text, text) for text in texts])


_IDS_AT_ONCE = 16  # characters of base64 that hold three whole ids
_PREFIX = len(TOKEN_IDS)


class _Begun(NamedTuple):
    """What was made of the first `length` characters of an encoded prompt: a hash over them, and an array that their
    ids come first in."""

    state: Any
    length: int
    ids: array[int]


class _Read(NamedTuple):
    """What was made of an encoded prompt: its hash and its ids, None when it is not readable; what of it a longer one
    goes on from, and the characters behind that."""

    digest: bytes
    ids: TokenIds | None
    begun: _Begun | None = None
    rest: str = ""


class SharedTokens:
    """Token ids of one trace's prompts: those that extend earlier ones lie in one array with them."""

    def __init__(self) -> None:
        self._recent: RecentTexts[_Begun] = RecentTexts()
        self._linked: dict[int, tuple[TokenText, _Read]] = {}  # by identity

    def read(self, text: str | TokenText) -> tuple[bytes, TokenIds | None]:
        """The hash of an encoded prompt (16 bytes), and its ids, None when it is not readable."""
        if isinstance(text, TokenText):
            found = self._of_linked(text)
            return found.digest, found.ids
        earlier = self._recent.longest(text, len(text))
        begun = earlier.made if earlier else _nothing()
        found = _read_on(begun, text[begun.length :])
        if found.begun is not None and found.begun.length > begun.length:
            self._recent.keep(text[begun.length : found.begun.length], found.begun, earlier)
        return found.digest, found.ids

    def _of_linked(self, text: TokenText) -> _Read:
        """What it goes on from was recognised when it was stored, and is not looked for again."""
        missing: list[TokenText] = []
        at: TokenText | None = text
        while at is not None and id(at) not in self._linked:
            missing.append(at)
            at = at.before
        for one in reversed(missing):
            self._linked[id(one)] = one, self._read_linked(one)
        return self._linked[id(text)][1]

    def _read_linked(self, text: TokenText) -> _Read:
        if text.before is not None:
            before = self._linked[id(text.before)][1]
            kept = text.keep - before.begun.length if before.begun is not None else -1
            if before.begun is not None and 0 <= kept <= len(before.rest):
                return _read_on(before.begun, before.rest[:kept] + text.tail)
        return _read_on(_nothing(), str(text))


def _nothing() -> _Begun:
    return _Begun(hashlib.blake2b(digest_size=16), 0, array("i"))


def _read_on(begun: _Begun, further: str) -> _Read:
    """An encoded prompt of which the beginning was read, and what follows it."""
    state = begun.state.copy()
    known = max(0, begun.length - _PREFIX) // _IDS_AT_ONCE * 3
    try:
        tail = token_array(TOKEN_IDS + further if begun.length else further)
    except ValueError:
        state.update(further.encode())
        return _Read(state.digest(), None)
    ids = begun.ids
    there = ids[known : known + len(tail)]
    if there == tail[: len(there)]:
        ids.extend(tail[len(there) :])
    else:
        ids = ids[:known] + tail
    whole = max(0, _whole_ids(begun.length + len(further)) - begun.length)
    state.update(further[:whole].encode())
    longer = _Begun(state.copy(), begun.length + whole, ids)
    state.update(further[whole:].encode())
    return _Read(state.digest(), TokenIds(ids, known + len(tail)), longer, further[whole:])


def _whole_ids(length: int) -> int:
    """With how many of its characters an encoded prompt of this length is sure to begin a longer one."""
    return max(0, length - _PREFIX - 4) // _IDS_AT_ONCE * _IDS_AT_ONCE + _PREFIX
