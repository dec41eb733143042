"""The errors that users see: each says what is wrong and what to do about it."""

from __future__ import annotations

import re
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
    """The judge could not be reached or its answer could not be used."""


class TrainingError(ArttraceError):
    """There is nothing to train on, or the step went wrong."""


class RolloutError(ArttraceError):
    """The user's entry point could not be loaded, or the process that runs it died."""
