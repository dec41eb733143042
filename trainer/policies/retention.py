"""Pure: which versions of a policy keep their weights, and which their optimizer state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

KEPT_STATES = 3
"""How many of the newest versions keep their optimizer state."""


class Keep(BaseModel):
    """Which versions keep their weights: those of the highest reward, the newest, and every so manieth; all 0: all.
    `states` is about what is needed to train on exactly, and about no weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    best: int = Field(0, ge=0, description="This many with the highest reward.")
    latest: int = Field(0, ge=0, description="This many of the newest.")
    every: int = Field(0, ge=0, description="Those whose number is a multiple of this.")
    states: int = Field(
        KEPT_STATES,
        ge=0,
        description="This many of the newest keep their optimizer state, two thirds of a version's size; 0: all.",
    )

    @property
    def everything(self) -> bool:
        """Whether no version is ever pruned."""
        return not (self.best or self.latest or self.every)


def to_prune(steps: Sequence[int], rewards: Mapping[int, float], keep: Keep, served: Collection[int] = ()) -> list[int]:
    """Of the versions `steps`, those to prune. `rewards` are by version, of those that have one; a tie goes to the
    newer. The two newest stay whatever is asked, since the engine may still read the one before the last, and so do
    those that are `served`."""
    if keep.everything:
        return []
    ordered = sorted(steps)
    stay = {*ordered[-max(keep.latest, 2) :], *served}
    if keep.best:
        ranked = sorted((step for step in ordered if step in rewards), key=lambda step: (rewards[step], step))
        stay.update(ranked[-keep.best :])
    if keep.every:
        stay.update(step for step in ordered if step % keep.every == 0)
    return [step for step in ordered if step not in stay]


def states_to_drop(steps: Sequence[int], states: int, stay: Collection[int] = ()) -> list[int]:
    """Of the versions `steps`, those that lose their optimizer state: all but the `states` newest (0: none loses it),
    and those in `stay`."""
    if not states:
        return []
    return [step for step in sorted(steps)[: -max(states, 2)] if step not in stay]
