"""Whether two records describe the same model call, by their contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from arttrace.records import semconv


class Facts(NamedTuple):
    """What distinguishes one call from another; empty where it is not known."""

    response_id: str = ""
    models: frozenset[str] = frozenset()
    """The names that it was asked for by, without what stands before a slash."""
    usage: frozenset[tuple[int, int]] = frozenset()
    """Its counts of tokens: also those without the tokens of the cache, as some libraries count a prompt's."""
    answer: str = ""
    """The text of the first answer."""
    asked: str = ""
    """The text of the last message of its input."""

    def contradictions(self, other: Facts) -> int:
        """In how many ways the two differ; 0 where they have one response id."""
        if self.response_id and self.response_id == other.response_id:
            return 0
        return (
            bool(self.response_id and other.response_id)
            + bool(self.models and other.models and not self.models & other.models)
            + bool(self.usage and other.usage and not self.usage & other.usage)
            + bool(self.answer and other.answer and self.answer != other.answer)
        )

    def is_renamed(self, other: Facts) -> bool:
        """Whether the answers are the same and nothing else contradicts it, but for their ids."""
        is_said = bool(self.answer) and self.answer == other.answer and bool(self.response_id and other.response_id)
        return is_said and self.contradictions(other) == 1

    def is_asked_alike(self, other: Facts) -> bool:
        """Whether nothing says that they were asked different things, or they have one response id. Calls at once with
        one answer, as votes, differ in nothing else."""
        if self.response_id and self.response_id == other.response_id:
            return True
        return not (self.asked and other.asked and self.asked != other.asked)

    def agreements(self, other: Facts) -> int:
        """In how many ways they are the same; a response id outweighs the rest."""
        return (
            4 * bool(self.response_id and self.response_id == other.response_id)
            + bool(self.usage & other.usage)
            + bool(self.answer and self.answer == other.answer)
        )


def facts_of(attributes: Mapping[str, Any]) -> Facts:
    """What a span's attributes say of its call."""
    named = (attributes.get(each) for each in (semconv.REQUEST_MODEL, semconv.ROUTED_FROM))
    return Facts(
        str(attributes.get(semconv.RESPONSE_ID) or ""),
        frozenset(str(name).rpartition("/")[2] for name in named if name),
        _usage(attributes),
        _text(attributes.get(semconv.OUTPUT_MESSAGES), 0),
        _text(attributes.get(semconv.INPUT_MESSAGES), -1),
    )


def _usage(attributes: Mapping[str, Any]) -> frozenset[tuple[int, int]]:
    asked, said, *cached = (attributes.get(name) for name in _COUNTS)
    if not (isinstance(asked, int) and isinstance(said, int) and asked and said):
        return frozenset()
    beside = sum(count for count in cached if isinstance(count, int))
    return frozenset(((asked, said), (asked - beside, said)))


_COUNTS = (
    semconv.USAGE_INPUT_TOKENS,
    semconv.USAGE_OUTPUT_TOKENS,
    semconv.USAGE_CACHE_READ_INPUT_TOKENS,
    semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
)


def _text(messages: Any, place: int) -> str:
    """Of the message at this place of a list, or of its JSON, or of the JSON of each."""
    try:
        found = msgspec.json.decode(messages) if isinstance(messages, str) else list(messages or ())
        message = found[place] if found else {}
        said: Mapping[str, Any] = msgspec.json.decode(message) if isinstance(message, str) else message
        parts: Sequence[Mapping[str, Any]] = said.get("parts") or ()
        return "".join(str(part.get("content") or "") for part in parts if part.get("type") == "text").strip()
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return ""  # in another shape
