"""Arguments and results as bounded JSON, whatever they are, without consuming or changing them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from arttrace.records.values.lenient_json import well_formed
from arttrace.records.values.users_text import FOR_THE_USER, plain, safe_text

MAX_REPR = 1000


class _Described(threading.local):
    """How many values were given by their repr in this thread so far, or in part by U+FFFD, as they are no JSON."""

    count = 0


described = _Described()


def _fallback(value: Any) -> Any:
    """What msgspec cannot encode: a text or number of a type of its own as what it is, a pydantic model as its fields,
    all else by its repr."""
    return plain(value, _fields)


def _fields(value: Any) -> Any:
    if not callable(getattr(type(value), "model_dump", None)):
        return _describe(value)
    try:  # openai's models leave open what a parsed answer is: pydantic warns of each
        return value.model_dump(mode="json", warnings=False)
    except TypeError:  # the user's own, which may not take that
        return value.model_dump(mode="json")


_encoder = msgspec.json.Encoder(enc_hook=_fallback)


def json_text(value: Any, limit: int) -> tuple[str, bool]:
    """`value` as JSON text, and whether it was cut to `limit` bytes: then it is a JSON string of the beginning."""
    encoded = _encode(value)
    if len(encoded) <= limit:
        return encoded.decode(), False
    return _encoder.encode(encoded[:limit].decode(errors="ignore")).decode(), True


def json_object(values: Mapping[str, Any], limit: int) -> tuple[str, bool]:
    """A JSON object of named values, each bounded so that one large value does not hide the others."""
    whole = _try_encode(values)
    if whole is not None and len(whole) <= limit:
        return whole.decode(), False
    fields: dict[str, msgspec.Raw] = {}
    cut = False
    for name, value in values.items():
        text, was_cut = json_text(value, limit)
        fields[name] = msgspec.Raw(text.encode())
        limit = max(limit - len(text), 0)
        cut |= was_cut
    return _encoder.encode(fields).decode(), cut


def is_json(value: Any) -> bool:
    """Whether `value` is made of JSON's own types, so that its JSON text gives it back."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_json, value))
    return value is None or isinstance(value, (str, int, float))


def _encode(value: Any) -> bytes:
    encoded = _try_encode(value)
    if encoded is not None:
        return encoded
    if isinstance(value, dict):  # one bad item does not hide the others
        return _encoder.encode(
            {_safe_repr(key) if not isinstance(key, str) else key: _item(value[key]) for key in value}
        )
    if isinstance(value, (list, tuple)):
        return _encoder.encode([_item(item) for item in value])
    return _encoder.encode(_safe_repr(value))


def _item(value: Any) -> msgspec.Raw:
    encoded = _try_encode(value)
    return msgspec.Raw(_encoder.encode(_safe_repr(value)) if encoded is None else encoded)


def _try_encode(value: Any) -> bytes | None:
    try:
        return _encoder.encode(value)
    except FOR_THE_USER:
        raise
    except UnicodeEncodeError:  # half a surrogate pair, which no JSON text holds
        try:
            encoded = _encoder.encode(well_formed(value))
        except Exception:  # noqa: BLE001  as below
            return None
        described.count += 1
        return encoded
    except BaseException:  # noqa: BLE001  the value is the user's: its repr may raise anything
        return None


def _describe(value: Any) -> str:
    described.count += 1
    return repr(value)[:MAX_REPR]


def _safe_repr(value: Any) -> str:
    return safe_text(value, _describe)


MAX_ERROR_TEXT = 4000
"""Of an error's message no more than this many characters are kept."""


def describe_error(error: BaseException) -> tuple[str, str]:
    """(type, message) of an exception, the message bounded."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name, safe_text(error)[:MAX_ERROR_TEXT]


_CANCELS = {("trio", "Cancelled"), ("gevent", "Timeout"), ("eventlet", "Timeout"), ("greenlet", "GreenletExit")}
"""What other libraries stop the code that they run with: package and class."""


def is_cancellation(error: BaseException | None) -> bool:
    """Whether `error` says that whoever runs the code has stopped it, and not that it failed: Ctrl-C, or asyncio, trio,
    gevent or eventlet; of a group, whether all of it says so."""
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        return True
    if error is None or isinstance(error, Exception):
        return False
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_cancellation, error.exceptions))
    return any((base.__module__.partition(".")[0], base.__name__) in _CANCELS for base in type(error).__mro__)


def ended_by(error: BaseException) -> tuple[tuple[str, str] | None, str | None]:
    """The failure that `error` makes of the run it ends, and how the run was interrupted; None where it was not."""
    if isinstance(error, GeneratorExit):
        return None, "closed"
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None, None
    return describe_error(error), "cancelled" if is_cancellation(error) else None


def weight_of(attributes: Mapping[str, Any]) -> int:
    """About how many bytes the texts of a span hold."""
    return sum(len(value) for value in attributes.values() if isinstance(value, str))
