"""What a gather brought, in words: warnings, and an error with the cause and the remedy where it brought nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from arttrace.records.values.users_text import error_line, safe_text
from arttrace.system.errors import ArttraceError

_SHOWN = 16
_log = logging.getLogger("arttrace.loop")
_warned_of_two_rewards = False


def in_words(key: str, to_gather: int, rewards: Sequence[float | None], raised: int) -> str:
    """A group as it is printed. `rewards` are those of its trajectories, None for one without."""
    named = f"TrajectoryGroup {key!r}"
    if to_gather:
        return f"<{named}: {to_gather} rollout{'s' * (to_gather > 1)} to gather>"
    shown = ", ".join(str(round(one, 4) if isinstance(one, float) else one) for one in rewards[:_SHOWN])
    more = ", ..." * (len(rewards) > _SHOWN)
    count = f"{len(rewards)} trajector{'y' if len(rewards) == 1 else 'ies'}"
    return f"<{named}: {count}{f', rewards {shown}{more}' * bool(rewards)}{f', {raised} raised' * bool(raised)}>"


def require_outcome(rollouts: int, exceptions: Sequence[Exception], *, captured: bool, sent_to: str = "") -> None:
    """Raise ArttraceError where there was no rollout, all of them raised (the first exception is its cause), or nothing
    was captured. `sent_to` is the collector to which runs go first, without a login."""
    if not rollouts:
        raise ArttraceError("There was nothing to run: no rollout in any group.", "Give each TrajectoryGroup rollouts.")
    if len(exceptions) == rollouts:
        raise ArttraceError(
            f"All {rollouts} rollouts raised; the first: {error_line(exceptions[0])}",
            "Run the rollout once by itself and fix it.",
        ) from exceptions[0]
    if not captured:
        on_their_way = (
            f"Runs go to {sent_to} first, which may not have taken them: start it, or leave ARTTRACE_ENDPOINT out. "
            if sent_to
            else ""
        )
        raise ArttraceError(
            f"{rollouts} rollouts ran, and none was captured.",
            f"{on_their_way}They made no call by a client that arttrace captures: call model.openai_client(), set"
            " ARTTRACE_CAPTURE_HTTP=1 for httpx and its like, or decorate the coroutine function with"
            " @arttrace.trajectory; and see that ARTTRACE_DISABLED is not set.",
        )


def warn_of_what_is_missing(
    rollouts: int, incomplete: Sequence[str], uncaptured: int, raised: Sequence[Exception]
) -> None:
    """Log how many of the rollouts are not trained on, and why, and how many raised."""
    missing = Counter(f"incomplete ({why})" for why in incomplete)
    if uncaptured:
        missing["not captured"] = uncaptured
    if missing:
        reasons = ", ".join(f"{count} {why}" for why, count in missing.items())
        _log.warning("%d of %d rollouts are neither judged nor trained on: %s", missing.total(), rollouts, reasons)
    if raised:
        _log.warning("%d of %d rollouts raised; the first: %s", len(raised), rollouts, safe_text(raised[0], repr))


def tell_of_two_rewards(rewarded: int, trajectories: int) -> None:
    """Log, once in this process, that a judge's score does not replace the rewards that trajectories had."""
    global _warned_of_two_rewards
    if not rewarded or _warned_of_two_rewards:
        return
    _warned_of_two_rewards = True
    _log.warning(
        "%d of %d trajectories had a reward before they were judged: it and the judge's score count half each. Leave "
        "reward at None where the judge alone shall count.",
        rewarded,
        trajectories,
    )
