"""The errors that users see: each says what is wrong and what to do about it."""

from __future__ import annotations


class ArttraceError(Exception):
    """A failure with a cause and a hint, shown by the commands without a traceback.

    `message` says what is wrong in one sentence; `hint`, when there is one, says what to do about it.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
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


class ServingError(ArttraceError):
    """The serving engine or the gateway did not start, died, or did not do what was asked."""


class JudgeError(ArttraceError):
    """The judge could not be reached or its answer could not be used."""


class TrainingError(ArttraceError):
    """There is nothing to train on, or the step went wrong."""


class RolloutError(ArttraceError):
    """The user's entry point could not be loaded, or the process that runs it died."""
