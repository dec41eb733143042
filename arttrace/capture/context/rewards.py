"""Rewards from this process, for a run of its own or of another process.

Which runs this process took part in last is known by their ids, up to a bound, so that a reward of an unknown one can
be warned of, as long as none is forgotten. It is kept all the same: the run may be another process's, or still come.
"""

from __future__ import annotations

import contextlib
import math
import reprlib
import time
from collections import OrderedDict

from arttrace.capture.base.guard import logger
from arttrace.capture.base.ids import random_hex
from arttrace.capture.export import sampling
from arttrace.capture.export.lifecycle import recorder
from arttrace.records.reward import Reward
from arttrace.records.values.users_text import plain_text, safe_text

_MAX_KNOWN_RUNS = 100_000

# No lock: a finalizer may begin a run on a thread that is in here.
_known_runs: OrderedDict[str, str] = OrderedDict()
_forgotten = False
_warned = False


def note_run(trajectory_id: str, given_to: str = "") -> None:
    """This process takes part in a run, `given_to` is where a receiver of its rewards finds it (records/reward.py)."""
    global _forgotten
    _known_runs.setdefault(trajectory_id, given_to)
    if len(_known_runs) > _MAX_KNOWN_RUNS:
        _forgotten = True
        with contextlib.suppress(KeyError):
            _known_runs.popitem(last=False)


def warn_unknown_run(trajectory_id: str) -> None:
    """Log, once, that no run of this id is known in this process."""
    global _warned
    if not (_warned or _forgotten) and trajectory_id not in _known_runs:
        _warned = True
        logger.warning(
            "arttrace: no run %.100r is known in this process: its reward is kept until the run comes, and "
            "`arttrace ls` counts rewards whose run is missing; one that `sample` left out never comes (logged once)",
            trajectory_id,
        )


def record_reward(trajectory_id: str, value: float, name: str) -> None:
    """Append one reward to the spool. A value that is not a finite number is logged and not recorded."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        logger.warning(
            "arttrace: the reward %.100r of run %.100r is %s, not a finite number, and was not recorded: the run "
            "counts by its other rewards, if it has any",
            name,
            trajectory_id,
            safe_text(value, reprlib.repr),
        )
        return
    if sampling.was_left_out(trajectory_id):
        sampling.warn_left_out(trajectory_id)
        return
    sampling.keep(trajectory_id)
    reward = Reward(
        id=random_hex(32),
        trajectory_id=trajectory_id,
        value=number,
        name=plain_text(name or "reward"),  # as a receiver of OTLP would read one without a name
        time_ns=time.time_ns(),
        given_to=_known_runs.get(trajectory_id, ""),
    )
    recorder().record(reward)
