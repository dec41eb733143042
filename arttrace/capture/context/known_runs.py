"""The ids of the runs that this process took part in, so that a reward which names another one is reported."""

from __future__ import annotations

from arttrace.capture.base.guard import logger

_KEPT = 100_000

_seen: dict[str, None] = {}
_warned = False


def note(trajectory_id: str) -> None:
    """This process takes part in a run."""
    if len(_seen) <= _KEPT:
        _seen[trajectory_id] = None


def tell_unknown(trajectory_id: str) -> None:
    """Says, once, that no run of this id is known here. It may be another process's, or still come."""
    global _warned
    if not _warned and trajectory_id not in _seen and len(_seen) <= _KEPT:
        _warned = True
        logger.warning(
            "arttrace: no run %.100r is known in this process: its reward is kept until the run comes, and "
            "`arttrace ls` tells of rewards whose run is missing; one that `sample` left out never comes (said once)",
            trajectory_id,
        )
