"""Which groups of the store wait for a policy, shared out over the steps that are asked for, and read whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from arttrace.records.group import Group
from arttrace.records.sequence import NotTrained
from arttrace.records.values.units import quantity
from arttrace.store import AnyStore
from arttrace.trajectories.groups import group_trajectories
from trainer.grpo.selection import Chosen, Selection, choose, has_tokens_of
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.made_here import made_here


def choose_groups(
    store: AnyStore, checkpoints: Checkpoints, max_staleness: int | None, refused: Collection[str]
) -> Selection:
    """The groups of the store that the policy's next step can compare, without the runs whose ids are `refused`. Those
    without a token of the policy are left out, unless there are no others: then the step says what their calls lack."""
    policy = checkpoints.policy
    consumed = checkpoints.consumed_ids("grpo")  # a dry run has recorded nothing
    found = store.summaries(unconsumed_by=policy, method="grpo")
    fresh = {one.id: one for one in found if one.id not in consumed and one.id not in refused}
    step, made = checkpoints.latest() or 0, made_here(checkpoints)
    choice = choose(fresh.values(), policy=policy, step=step, max_staleness=max_staleness, made=made)
    if others := sum(one.id in refused and one.id not in consumed for one in found):
        choice.left_out[NotTrained.OTHER_WEIGHTS] = others
    own = tuple(one for one in choice.groups if any(has_tokens_of(fresh[id], policy) for id in one.counted))
    if len(own) in (0, len(choice.groups)):
        return choice
    foreign = sum(len(one.counted) for one in choice.groups) - sum(len(one.counted) for one in own)
    return Selection(own, choice.left_out | {NotTrained.NO_TOKENS_OF_POLICY: foreign})


def share_out(groups: Sequence[Chosen], steps: int, max_staleness: int | None) -> tuple[list[Sequence[Chosen]], str]:
    """The groups in even shares for `steps` steps at most, and why there are fewer, "" when that needs no word.

    A step makes the runs of all shares after its own older by one: the stalest groups go first, and there are as many
    shares as keep every group within `max_staleness` until its turn.
    """
    asked = min(steps, len(groups))
    count = asked if max_staleness is None else min(asked, max_staleness + 1)
    shares = _oldest_first(groups, count)
    while max_staleness is not None and any(share[0].staleness + n > max_staleness for n, share in enumerate(shares)):
        count -= 1
        shares = _oldest_first(groups, count)
    if count == asked:
        return shares, ""
    why = f"{quantity(count, 'step')} instead of {asked}: with more, runs would be too stale"
    return shares, f"{why} by their turn (--max-staleness {max_staleness})"


def _oldest_first(groups: Sequence[Chosen], count: int) -> list[Sequence[Chosen]]:
    """`count` even shares by falling staleness; groups of one staleness whose keys are neighbours are dealt apart."""
    dealt = [groups[n::count] for n in range(count)]
    ordered = iter(sorted((group for share in dealt for group in share), key=lambda one: one.staleness, reverse=True))
    return [list(islice(ordered, len(share))) for share in dealt]


def build(store: AnyStore, chosen: Sequence[Chosen]) -> list[Group]:
    """The runs of the chosen groups."""
    ids = [id for group in chosen for id in group.ids]
    return group_trajectories(store.trajectories(ids=ids)) if ids else []
