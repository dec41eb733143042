"""Whether a gather brought anything: an error with the cause and the remedy where it did not."""

from __future__ import annotations

from collections.abc import Sequence

from arttrace.system.errors import ArttraceError


def require_outcome(rollouts: int, exceptions: Sequence[Exception], *, captured: bool) -> None:
    """Raise ArttraceError where there was no rollout, all of them raised (the first exception is its cause), or nothing
    was captured."""
    if not rollouts:
        raise ArttraceError("There was nothing to run: no rollout in any group.", "Give each TrajectoryGroup rollouts.")
    if len(exceptions) == rollouts:
        raise ArttraceError(
            f"All {rollouts} rollouts raised; the first: {type(exceptions[0]).__name__}: {exceptions[0]}",
            "Run the rollout once by itself and fix it.",
        ) from exceptions[0]
    if not captured:
        raise ArttraceError(
            f"{rollouts} rollouts ran, and none was captured.",
            "They made no call by a client that arttrace captures: call model.openai_client(), set"
            " ARTTRACE_CAPTURE_HTTP=1 for litellm, httpx and their like, or decorate the coroutine function with"
            " @arttrace.trajectory; and see that ARTTRACE_DISABLED is not set.",
        )
