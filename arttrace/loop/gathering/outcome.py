"""What a gather brought, in words, and an error with the cause and the remedy where it brought nothing."""

from __future__ import annotations

from collections.abc import Sequence

from arttrace.system.errors import ArttraceError

_SHOWN = 16


def in_words(key: str, to_gather: int, rewards: Sequence[float | None], raised: int) -> str:
    """A group as it is printed. `rewards` are those of its trajectories, None for one without."""
    named = f"TrajectoryGroup {key!r}"
    if to_gather:
        return f"<{named}: {to_gather} rollout{'s' * (to_gather > 1)} to gather>"
    told = ", ".join(str(round(one, 4) if isinstance(one, float) else one) for one in rewards[:_SHOWN])
    more = ", ..." * (len(rewards) > _SHOWN)
    count = f"{len(rewards)} trajector{'y' if len(rewards) == 1 else 'ies'}"
    return f"<{named}: {count}{f', rewards {told}{more}' * bool(rewards)}{f', {raised} raised' * bool(raised)}>"


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
