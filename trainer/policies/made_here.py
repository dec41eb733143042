"""Which versions of a policy were made in its directory. A name says nothing of weights: in another directory another
`policy@9` was made, and this one may never come to it, or will give the name to other weights.

A run of such a version cannot be said to be so many steps old, nor can its log-probabilities be compared with those of
the version that is named.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.policies.checkpoints import Checkpoints


@dataclass(frozen=True, slots=True)
class MadeHere:
    """The numbers of a policy's versions that were given out: 0, which is the base model, and those from `first` to
    `last`. One between them may lack a version: a step that was not completed had handed its adapter to an engine."""

    policy: str
    first: int = 1
    last: int = 0

    def __contains__(self, version: str) -> bool:
        """Whether it was made here, or is no version of the policy."""
        policy, _, number = version.rpartition("@")
        if policy != self.policy:
            return True
        return number.isdecimal() and (int(number) == 0 or self.first <= int(number) <= self.last)


def made_here(checkpoints: Checkpoints) -> MadeHere:
    """Those of the policy: whole ones, pruned ones, and what an engine was given before it was whole. A fork begins
    with the number that it was forked from. Raises TrainingError when the first one's manifest is damaged."""
    policy = checkpoints.policy
    names = (folder.name.rpartition("@")[2] for folder in checkpoints.directory.glob(f"{policy}@*"))
    last = max((int(number) for number in names if number.isdecimal()), default=0)
    first = min(checkpoints.all_steps(), default=1)
    forked = first > 1 and checkpoints.manifest(first).forked_from
    return MadeHere(policy, first if forked else 1, last)
