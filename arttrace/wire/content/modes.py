"""How much of the content is kept, in the words that settings use, and the user's mask as a type."""

from __future__ import annotations

from typing import Any, Literal, Protocol, get_args

ContentMode = Literal["full", "redacted", "off"]
_MODES: tuple[ContentMode, ...] = get_args(ContentMode)

MAX_CONTENT_BYTES = 8 << 20
"""One attribute of content (messages, arguments, a result) is cut to this many bytes of JSON, and marked."""


class Mask(Protocol):
    """The user's mask, called in a thread of ours: gets a list of structured messages or another value, and returns it.

    `kind` is one of input_messages, output_messages, system_instructions, tool_definitions, arguments, result,
    metadata, request (fields beside these), url (of a tool's HTTP request), group (the key that
    a callable made), error. Where it raises, that value is dropped and the span stays.
    """

    def __call__(self, value: Any, /, *, kind: str) -> Any: ...


def mode_of(word: str) -> ContentMode | None:
    """The mode that a word of a user's names; None for a word that is no mode."""
    said = word.strip().lower()
    return _MODES[_MODES.index(said)] if said in _MODES else None


def stricter(one: ContentMode, other: ContentMode | None) -> ContentMode:
    """The mode that keeps less: code can narrow what the settings allow, and not widen it."""
    return one if other is None else _MODES[max(_MODES.index(one), _MODES.index(other))]
