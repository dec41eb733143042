"""Pure: for how long the scenarios of groups whose rewards were all equal are skipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from trainer.daemon.state import Pause
from trainer.grpo.metrics import GroupReward

MOST = 1000
"""How many scenarios are remembered."""
_LONGEST_DOUBLING = 8


def pause_ns(first_s: float, times: int) -> int:
    """A pause that begins with `first_s` and doubles, up to 128 times as long."""
    return int(first_s * 2 ** (min(times, _LONGEST_DOUBLING) - 1) * 1e9)


def paused(
    known: Iterable[Pause], rewards: Iterable[GroupReward], first_s: float, now_ns: int
) -> tuple[tuple[Pause, ...], list[Pause]]:
    """The pauses after a round with these rewards, and the new ones: of groups whose rewards are all equal, their
    agents' own too. A scenario that differs is paused no more; without `first_s` none is."""
    before = {one.key: one for one in known}
    new: list[Pause] = []
    for group in rewards:
        last = before.pop(group.key, None)
        if group.spread == 0 and not group.agents_differ and first_s:
            times = min(last.times + 1 if last else 1, _LONGEST_DOUBLING)
            before[group.key] = Pause(group.key, times, now_ns + pause_ns(first_s, times))
            new.append(before[group.key])
    return tuple(sorted(before.values(), key=lambda one: one.until_ns)[-MOST:]), new


def bounded(known: Sequence[Pause], first_s: float, now_ns: int) -> tuple[Pause, ...]:
    """None is longer than the settings say, with whatever settings or clock it began."""
    return tuple(
        msgspec.structs.replace(one, until_ns=min(one.until_ns, now_ns + pause_ns(first_s, one.times))) for one in known
    )
