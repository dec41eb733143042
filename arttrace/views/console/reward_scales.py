"""Which groups of a list have rewards on two scales, in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from arttrace.records.values.units import quantity
from arttrace.rewards.combine import is_judged, trajectory_reward
from arttrace.rewards.selection import never_trained_on
from arttrace.store import TrajectorySummary
from arttrace.views.labels import group_name, one_line


def two_scales_lines(runs: Sequence[TrajectorySummary]) -> Iterator[str]:
    """A line for each group in which rewards of both scales are shown, of runs that may be trained on."""
    kinds: defaultdict[tuple[str, str], Counter[bool]] = defaultdict(Counter)
    for run in runs:
        if never_trained_on(run) is None and trajectory_reward(run) is not None:
            kinds[run.group, run.entry][is_judged(run)] += 1
    for (group, entry), counts in kinds.items():
        if len(counts) == 2:
            named, judged = one_line(group_name(group, entry) or group), quantity(counts[True], "reward")
            yield (
                f"{named}: {judged} with a judge's score beside {counts[False]} from code alone: two scales, and only "
                "the larger part of the group is compared"
            )
