"""Parts of messages as they are shown: text cut where it is long, images that lie in the trace itself, the rest as
JSON."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from arttrace.records.message import (
    Message,
    OtherPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    message_hash,
)
from arttrace.views.labels import readable_json

HEAD = 700
"""Characters that are shown before the rest is unfolded."""
MOST = 40_000
"""Characters of one part that a page holds; the span as JSON has all of them."""
MOST_PARTS = 100
"""Parts of one message that a page holds."""
MAX_IMAGE = 3 << 20

_image_url = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+").fullmatch
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class ContentPart(msgspec.Struct, frozen=True):
    """One part: `kind` is text, reasoning, call, result, image or other; `rest` what is unfolded, `beyond` how many
    characters only the span has, and `digest` a hash of what the page does not hold, by which parts are compared."""

    kind: str
    name: str = ""
    head: str = ""
    rest: str = ""
    beyond: int = 0
    source: str = ""
    digest: str = ""

    @property
    def text(self) -> str:
        """What the page holds of it."""
        return self.head + self.rest

    @property
    def missing(self) -> str:
        """How much of it the page does not hold, in words; "" for nothing."""
        return f"{self.beyond} further characters are in the span." if self.beyond else ""


def shown(kind: str, text: str, name: str = "", *, most: int = MOST) -> ContentPart:
    """A part of this text, cut where it is long, at the end of a line or a word where there is one; what is beyond
    `most` characters is left out."""
    if len(text) <= HEAD + HEAD // 2:
        return ContentPart(kind, name, text)
    at = max(text.rfind("\n", HEAD // 2, HEAD), text.rfind(" ", HEAD - 80, HEAD)) + 1 or HEAD
    if len(text) <= most:
        return ContentPart(kind, name, text[:at], text[at:])
    return ContentPart(kind, name, text[:at], text[at:most], len(text) - most, digest=_digest(text[most:].encode()))


def parts_of(message: Message) -> tuple[ContentPart, ...]:
    """The parts of a message, without empty ones."""
    made = tuple(part for part in map(_part, message.parts[:MOST_PARTS]) if part.head or part.source)
    further = message.parts[MOST_PARTS:]
    if not further:
        return made
    digest = _digest(message_hash(Message(message.role, further)).encode())
    return (*made, ContentPart("text", head=f"({len(further)} further parts are in the span.)", digest=digest))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def one_text(parts: Iterable[ContentPart]) -> str:
    """What parts say, for searching."""
    return "\n".join(f"{part.name} {part.text}" for part in parts)


def value_text(value: Any) -> str:
    """A JSON value as a person reads it: text as it is, the rest indented while it is short."""
    if isinstance(value, str):
        return json_text(value)
    try:
        raw = msgspec.json.encode(value)
        return (msgspec.json.format(raw, indent=2) if len(raw) < 20_000 else raw).decode()
    except (RecursionError, TypeError):
        return "(nested too deep to be shown)"


def json_text(text: str) -> str:
    """JSON text indented, with letters in the place of their escapes; any other text as it is."""
    if text[:1] in ("{", "[") and len(text) < 20_000:
        try:
            return readable_json(msgspec.json.format(text, indent=2))
        except (msgspec.DecodeError, RecursionError):
            return text
    return text


def _part(part: Part) -> ContentPart:
    match part:
        case TextPart(content):
            return shown("text", content)
        case ReasoningPart(content):
            return shown("reasoning", content)
        case ToolCallPart(name, arguments):
            return shown("call", json_text(arguments) or "{}", name)
        case ToolResultPart(response):
            return shown("result", value_text(response))
        case OtherPart(value):
            source = image_source(value)
            if source is not None:
                return ContentPart("image", source=source)
            return shown("other", value_text(value), str(value.get("type", "other")))


def image_source(value: Mapping[str, Any]) -> str | None:
    """The data: URL of an image that a part holds; None for anything else, for one that lies elsewhere, and for one
    beyond MAX_IMAGE."""
    inner = value.get("value")
    if isinstance(inner, dict):
        return image_source(inner)
    url = value.get("image_url")
    if isinstance(url, dict):
        url = url.get("url")
    if isinstance(url, str):
        return url if len(url) <= MAX_IMAGE and _image_url(url) else None
    given = value.get("source")
    source = given if isinstance(given, dict) else value
    media = source.get("mime_type") or source.get("media_type")
    data = source.get("content") or source.get("data")
    if media in _IMAGE_TYPES and isinstance(data, str) and len(data) <= MAX_IMAGE:
        made = f"data:{media};base64,{data}"
        return made if _image_url(made) else None
    return None
