"""The values that masks and the search for secrets removed from a run, so that its errors do not show them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from arttrace.wire.content.secrets import SECRET, may_be_a_word

_MIN_LENGTH = 3
_MIN_LENGTH_INSIDE_WORDS = 8
_MAX_LENGTH = 4000  # no error is longer
_MAX_VALUES = 1000
_OF_STRUCTURE = ("role", "type", "finish_reason")
_WORD = re.compile(r"\w+")
_MISSING = object()


class Hidden:
    """Bounded, and used by one thread. Values shorter than 3 characters are not looked for, those shorter than 8 only
    where they stand alone."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, bool] = {}

    def learn(self, before: str, after: str | None, *, secret: bool = False, words: bool = True) -> None:
        """Note what the JSON text `after` has no more of `before`; None is nothing. A `secret` is none of the mask's:
        it does not come back in later results either, which a mask has seen itself. Without `words` only what can be
        none is noted."""
        try:
            old, new = msgspec.json.decode(before), _MISSING if after is None else msgspec.json.decode(after)
        except msgspec.DecodeError:
            old, new = before, after
        for value in _gone(old, new):
            if len(self._values) >= _MAX_VALUES:
                return
            if _MIN_LENGTH <= len(value) <= _MAX_LENGTH and value != SECRET and (words or not may_be_a_word(value)):
                self._values[value] = secret or self._values.get(value, False)

    def has_secret_in(self, text: str) -> bool:
        """Whether one of the secrets may be in a text."""
        return any(secret and value in text for value, secret in self._values.items())

    def without(self, text: str, *, secrets_only: bool = False) -> str:
        """`text` without the values."""
        for value in sorted(self._values, key=len, reverse=True):
            if value in text and (self._values[value] or not secrets_only):
                if len(value) >= _MIN_LENGTH_INSIDE_WORDS:
                    text = text.replace(value, SECRET)
                else:
                    text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", SECRET, text)
        return text

    def without_secrets(self, value: Any) -> Any:
        """A JSON value without the secrets in its texts."""
        if isinstance(value, str):
            return self.without(value, secrets_only=True)
        if isinstance(value, dict):
            return {key: self.without_secrets(item) for key, item in value.items()}
        return [self.without_secrets(item) for item in value] if isinstance(value, list) else value


def _gone(old: Any, new: Any) -> Iterator[str]:
    """The texts and numbers of `old` that `new` has changed or lost."""
    if old == new:
        return
    if isinstance(old, dict):
        for key, value in old.items():
            if key not in _OF_STRUCTURE:
                yield from _gone(value, new.get(key, _MISSING) if isinstance(new, dict) else _MISSING)
    elif isinstance(old, list):
        others = new if isinstance(new, list) and len(new) == len(old) else [_MISSING] * len(old)
        for value, other in zip(old, others, strict=True):
            yield from _gone(value, other)
    elif isinstance(old, str):
        yield from _changed(old, new) if isinstance(new, str) else (old,)
    elif isinstance(old, (int, float)) and not isinstance(old, bool):
        yield str(old)


def _changed(old: str, new: str) -> Iterator[str]:
    """The part of `old` between what both texts begin and end with, and the words in it that `new` has no more."""
    shorter = min(len(old), len(new))
    start = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    end = next((at for at in range(shorter - start) if old[-1 - at] != new[-1 - at]), shorter - start)
    part = old[start : len(old) - end]
    yield part if len(part) >= _MIN_LENGTH else old
    if len(old) <= _MAX_LENGTH:
        kept = set(_WORD.findall(new))
        yield from (word for word in _WORD.findall(part) if word not in kept)
