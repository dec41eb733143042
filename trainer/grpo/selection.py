"""Pure: which runs of which groups a step compares. The same decision on trajectories and on their summaries, so that
only what is taken needs to be built."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from arttrace.records.policy import answered
from arttrace.records.reward import Reward
from arttrace.records.sequence import NotTrained
from arttrace.rewards.combine import Compared, is_too_large, rewards_on_one_scale
from arttrace.rewards.selection import never_trained_on
from arttrace.store.rows.summary import TrajectorySummary
from trainer.policies.made_here import MadeHere


class AnsweredRun(Protocol):
    """What is asked of a run for its age."""

    @property
    def policy_versions(self) -> tuple[str, ...]: ...


class ComparableRun(AnsweredRun, Protocol):
    """What is asked of a run: a Trajectory or a TrajectorySummary."""

    @property
    def id(self) -> str: ...
    @property
    def incomplete(self) -> str: ...
    @property
    def tags(self) -> tuple[str, ...]: ...
    @property
    def rewards(self) -> tuple[Reward, ...]: ...


AnyRun = TypeVar("AnyRun", bound=ComparableRun)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A group that is compared: its key, the ids of all its runs, and of those that count the ids, the rewards and the
    largest staleness."""

    key: str
    ids: tuple[str, ...]
    counted: tuple[str, ...]
    rewards: tuple[float, ...]
    staleness: int


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups that are compared, in order of key, and by reason how many of all runs are left out."""

    groups: tuple[Chosen, ...]
    left_out: dict[NotTrained, int]


def choose(
    summaries: Iterable[TrajectorySummary],
    *,
    policy: str | None,
    step: int,
    max_staleness: int | None = None,
    made: MadeHere | None = None,
) -> Selection:
    """The groups that a step after version `step` can compare; see `compared`."""
    members: defaultdict[str, list[TrajectorySummary]] = defaultdict(list)
    for one in summaries:
        members[one.group].append(one)
    left_out: Counter[NotTrained] = Counter()
    groups: list[Chosen] = []
    for key, runs in sorted(members.items()):
        runs.sort(key=lambda one: (one.start_ns, one.id))
        found, reasons = compared(runs, policy=policy, step=step, max_staleness=max_staleness, made=made)
        left_out.update(reasons)
        if found:
            counted, rewards = zip(*((one.id, reward) for part in found for one, reward in part), strict=True)
            oldest = max(staleness(one, step, policy) for part in found for one, _ in part)
            groups.append(Chosen(key, tuple(one.id for one in runs), counted, rewards, oldest))
    return Selection(tuple(groups), dict(left_out))


def compared(
    runs: Sequence[AnyRun],
    *,
    policy: str | None,
    step: int,
    max_staleness: int | None = None,
    made: MadeHere | None = None,
) -> tuple[list[Compared[AnyRun]], Counter[NotTrained]]:
    """Of one group, the complete runs with rewards, in parts of one scale, each of at least two, and how many are left
    out by reason. A run that is alone in its group needs company before a reward."""
    left_out: Counter[NotTrained] = Counter()
    whole: list[AnyRun] = []
    for run in runs:
        if reason := why_not(run, policy=policy, step=step, max_staleness=max_staleness, made=made):
            left_out[reason] += 1
        else:
            whole.append(run)
    parts, others = rewards_on_one_scale(whole)
    scored = sum(map(len, parts))
    unrewarded = len(whole) - scored - others
    if others:
        left_out[NotTrained.REWARDED_OTHERWISE] += others
    if len(whole) > 1 and unrewarded:
        left_out[NotTrained.NO_REWARD] += unrewarded
    if scored > 1:
        return parts, left_out
    if alone := scored if len(whole) > 1 else len(whole):
        left_out[NotTrained.ALONE] += alone
    return [], left_out


def why_not(
    run: ComparableRun, *, policy: str | None, step: int, max_staleness: int | None = None, made: MadeHere | None = None
) -> NotTrained | None:
    """Why a run does not count whatever its reward, None when it does. `made` are the versions of the policy that there
    are (None: any)."""
    if reason := never_trained_on(run):
        return reason
    if is_too_large(run):
        return NotTrained.REWARD_TOO_LARGE
    if made is not None and any(version not in made for version in run.policy_versions):
        return NotTrained.NOT_MADE_HERE
    if max_staleness is not None and staleness(run, step, policy) > max_staleness:
        return NotTrained.TOO_STALE
    return None


def has_tokens_of(summary: TrajectorySummary, policy: str) -> bool:
    """Whether the run has tokens to train on, and `policy` answered in it."""
    return summary.trained_tokens > 0 and answered(summary.policy_versions, policy)


def staleness(run: AnsweredRun, step: int, policy: str | None = None) -> int:
    """How many steps before `step` the oldest version of `policy` (None: of any) that answered in it was made; 0 when
    none did."""
    names = (version.rpartition("@") for version in run.policy_versions)
    steps = [int(number) for name, _, number in names if number.isdecimal() and policy in (None, name)]
    return max(step - min(steps), 0) if steps else 0
