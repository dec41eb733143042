"""The tokens that a run's calls used, as the models counted them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from arttrace.records.trajectory import Trajectory


class Used(NamedTuple):
    """The tokens of all prompts and all answers, None where nobody counted; `uncounted` is how many calls are in
    neither."""

    asked: int | None
    answered: int | None
    uncounted: int

    @property
    def is_counted(self) -> bool:
        """Whether anybody counted any."""
        return self.asked is not None or self.answered is not None


def used(run: Trajectory) -> Used:
    """What a run used."""
    counts = [(one.call.input_tokens, one.call.output_tokens) for one in run.calls]
    counted = [pair for pair in counts if pair != (None, None)]
    asked, answered = ([pair[side] or 0 for pair in counted if pair[side] is not None] for side in (0, 1))
    return Used(sum(asked) if asked else None, sum(answered) if answered else None, len(counts) - len(counted))
