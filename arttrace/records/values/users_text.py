"""What is shown of a value or an error of the user's, whose own way of showing itself may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from arttrace.records.values.lenient_json import well_formed

FOR_THE_USER: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What is let through where a value of the user's is shown. All else that its repr raises stays here: a library in
another language breaks with a BaseException."""


def safe_text(value: Any, shown: Callable[[Any], str] = str) -> str:
    """What `shown` makes of a value of the user's, or its type's name where that fails."""
    try:
        return shown(value)
    except FOR_THE_USER:
        raise
    except BaseException:  # noqa: BLE001  see above
        return f"<{type(value).__qualname__}>"


_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)


def plain(value: Any, shown: Callable[[Any], Any] = safe_text) -> Any:
    """A text or number of a type of its own, such as numpy's, as what it is; of all else what `shown` makes of it."""
    for kind, as_plain in _PLAIN:
        if isinstance(value, kind):
            return as_plain(value)
    return shown(value)


def plain_text(value: Any) -> str:
    """The text that a value is or shows itself as, as no type of its own."""
    return str.__str__(value) if isinstance(value, str) else safe_text(value)


def error_line(error: BaseException) -> str:
    """The type and the text of an error that code of the user's may have raised, as text that UTF-8 can hold."""
    text: str = well_formed(safe_text(error))
    return f"{type(error).__name__}: {text}"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    text: str = well_formed(safe_text(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__
