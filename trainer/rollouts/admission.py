"""Admission: whether a rollout that starts now can still be trained on within the daemon's `--max-staleness`.

What is ready is trained on in turn. A group that is begun while as many are before it as the daemon takes in
`max_staleness` + 1 steps would be older than allowed when its turn comes: it is sampled later, by a newer version.
Groups that wait for more runs or for a reward do not count: nothing says that their turn will ever come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from arttrace.records.rollout import RolloutJob
from arttrace.records.values.units import quantity
from trainer.daemon.state import FAILED, STOPPED, DaemonState, read_state


def room(state: DaemonState, under_way: int) -> bool:
    """Whether another group may be begun while runs of `under_way` others are not done."""
    if state.max_staleness is None or state.state in (STOPPED, FAILED):
        return True
    before = state.queue.ready + (len(state.plan.groups) if state.plan else 0) + under_way
    return before < (state.max_staleness + 1) * state.min_groups


class Admission:
    """Of the jobs of one command. `directory` is the policy's, `writer` says which process trains it now.

    A run of a group that was begun is always admitted: what is begun shall become whole. Where no daemon trains, or
    it has no bound, so is every other.
    """

    def __init__(self, directory: Path, writer: Callable[[], int | None], say: Callable[[str], None]) -> None:
        self._directory = directory
        self._writer = writer
        self._say = say
        self._begun: set[str] = set()
        self._held = False

    def __call__(self, job: RolloutJob, under_way: Sequence[RolloutJob]) -> bool:
        """Whether `job` may begin beside those that run."""
        group = _group(job)
        if group in self._begun:
            return True
        state = read_state(self._directory)
        if state is not None and state.pid == self._writer() and not room(state, len({*map(_group, under_way)})):
            if not self._held:
                self._say(
                    f"waiting: {quantity(state.queue.ready, 'group')} ready for {state.policy}, which takes "
                    f"{state.min_groups} a step; runs begun now would be older than --max-staleness "
                    f"{state.max_staleness} at their turn"
                )
            self._held = True
            return False
        if self._held:
            self._say("going on")
        self._held = False
        self._begun.add(group)
        return True


def _group(job: RolloutJob) -> str:
    """What names the group of a run, whose input is the key where no other is known."""
    return job.group or job.scenario or str(sorted(job.arguments.items()))
