"""The errors that users see: each says what is wrong and what to do about it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Final

_LONGEST: Final = 10_000
_STEERING: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Text that another program may have written, as a terminal may show it: of bounded length, its lines as they are,
    and without control characters, which would steer the terminal, or turn the writing round."""
    shown = _STEERING.sub("·", text[:_LONGEST].replace("\r\n", "\n"))
    return shown if len(text) <= _LONGEST else f"{shown} ... ({len(text)} characters)"


class ArttraceError(Exception):
    """A failure with a cause and a hint, shown by the commands without a traceback.

    `message` says what is wrong in one sentence; `hint`, when there is one, says what to do about it. What a server
    said may be in both: they are `harmless`.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        message = harmless(str(message))
        hint = None if hint is None else harmless(str(hint))
        super().__init__(message if hint is None else f"{message}\n{hint}")
        self.message = message
        self.hint = hint

    @property
    def mend(self) -> str | None:
        """The name of `hint` in 0.1."""
        return self.hint


class MayPass:
    """Marks an error whose cause may pass by itself or be fixed meanwhile: a caller with time waits and tries again."""


class StoreError(ArttraceError):
    """The store is missing, locked by another process, damaged, or of a schema this version does not know."""


class StoreInUse(StoreError, MayPass):
    """Another process has the store's file open."""


class StoreFull(StoreError, MayPass):
    """The disk takes no more; what was acknowledged is safe."""


class StoreBarred(StoreError, MayPass):
    """What waits for the store is another user's."""


class ServingError(ArttraceError):
    """The serving engine or the gateway did not start, died, or did not do what was asked."""


class JudgeError(ArttraceError):
    """The judge could not be reached or its answer could not be used.

    `input_tokens`, `output_tokens` and `cost` (US dollars, None where a price is not known) are what its answers about
    a group have cost all the same.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0


class TrainingError(ArttraceError):
    """There is nothing to train on, or the step went wrong."""


class RolloutError(ArttraceError):
    """The user's entry point could not be loaded, or the process that runs it died."""


def no_such_name(module: str, name: str, here: Mapping[str, str], library: str) -> AttributeError | ImportError:
    """What the `__getattr__` of a module raises for a name that it lacks.

    Args:
        module: The module's name.
        name: The name that was asked for.
        here: What names of the other library are here.
        library: The other library's name.

    Returns:
        An AttributeError. For `from module import name` an ImportError, where something is said of the name: of an
        AttributeError Python would say there that the name cannot be imported, and nothing else.
    """
    error = f"module {module!r} has no attribute {name!r}"
    if name not in here:
        return AttributeError(error)
    said = f"{library}'s {name} is here {here[name]}"
    if _is_import(2):
        return ImportError(f"cannot import name {name!r} from {module!r}; {said}", name=name)
    return AttributeError(f"{error}; {said}")


def _is_import(above: int) -> bool:
    """Whether the function so many calls above this one's caller is called by a statement that imports a name."""
    from opcode import opmap

    frame = sys._getframe(above + 1)
    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]
