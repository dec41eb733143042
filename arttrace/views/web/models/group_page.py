"""Groups: the rewards of runs that are compared, what a step can learn from them, and where runs part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from arttrace.formats.imported_run import is_undated
from arttrace.records.reward import JUDGE, Reward
from arttrace.records.sequence import NotTrained
from arttrace.records.values.equal_rewards import are_equal, exact_mean
from arttrace.records.values.units import quantity
from arttrace.rewards.combine import MOST_REWARD, Compared, rewards_on_one_scale, trajectory_reward
from arttrace.rewards.selection import never_trained_on
from arttrace.store import TrajectorySummary
from arttrace.views.labels import group_name, key_name, one_line, version_order
from arttrace.views.web.models.run_list import RunRow, run_row
from arttrace.views.web.models.tokens.token_page import advantages
from arttrace.views.web.models.transcript import TranscriptEntry, alike

BINS = 12
_LONGEST_NAME = 120


class Bin(msgspec.Struct, frozen=True):
    """A bar of the histogram: from `low` to `high` lie `count` rewards; `height` is 0 to 100."""

    low: float
    high: float
    count: int
    height: float


class GroupRow(msgspec.Struct, frozen=True):
    """A group in the list: how many of its runs have a reward, and in `mean`, `spread` and `bins` those that training
    compares; where it may take none of the runs, as of held-out ones, those of all complete ones. `verdict` says in
    words what a step learns from it; `teaches` whether it does."""

    key: str
    name: str
    runs: int
    rewarded: int
    mean: float | None
    spread: float | None
    bins: tuple[Bin, ...]
    verdict: str
    teaches: bool
    latest_ns: int
    undated: bool
    policies: tuple[str, ...]


class Member(msgspec.Struct, frozen=True):
    """A run of a group: its advantage, who gave it which reward with which words, how many versions old it is
    (`staleness`, None where that is not known), and the steps that trained on it."""

    row: RunRow
    advantage: float | None
    rewards: tuple[Reward, ...]
    staleness: int | None
    steps: tuple[str, ...]


class RunColumn(msgspec.Struct, frozen=True):
    """One run beside others: what the judge said of it, and its entries from where the runs part."""

    member: Member
    entries: tuple[TranscriptEntry, ...]
    more: int


class GroupComparison(msgspec.Struct, frozen=True):
    """Runs side by side. The first `shared` entries are alike in all."""

    shared: int
    alike: tuple[TranscriptEntry, ...]
    columns: tuple[RunColumn, ...]


def group_rows(runs: Iterable[TrajectorySummary]) -> tuple[GroupRow, ...]:
    """Every group of more than one run, and every key that was given, the newest first."""
    members: dict[str, list[TrajectorySummary]] = {}
    for run in runs:
        if run.group != run.id:
            members.setdefault(run.group, []).append(run)
    rows = [group_row(key, found) for key, found in members.items()]
    often = Counter(row.name for row in rows)
    rows = [msgspec.structs.replace(row, name=_whole_name(row.key)) if often[row.name] > 1 else row for row in rows]
    return tuple(sorted(rows, key=lambda row: (row.latest_ns, row.key), reverse=True))


def group_row(key: str, runs: Sequence[TrajectorySummary]) -> GroupRow:
    """What the list shows of a group."""
    trainable = [run for run in runs if never_trained_on(run) is None]
    summed_up, _ = rewards_on_one_scale(trainable or [run for run in runs if not run.incomplete])
    rewards = [reward for part in summed_up for _, reward in part]
    verdict, teaches = what_it_teaches(runs)
    latest_ns = max(run.start_ns for run in runs)
    return GroupRow(
        key=key,
        name=one_line(group_name(key, runs[0].entry), _LONGEST_NAME) or _whole_name(key),
        runs=len(runs),
        rewarded=sum(trajectory_reward(run) is not None for run in runs),
        mean=exact_mean(rewards) if rewards else None,
        spread=max(rewards) - min(rewards) if rewards else None,
        bins=histogram(rewards),
        verdict=verdict,
        teaches=teaches,
        latest_ns=latest_ns,
        undated=is_undated(latest_ns),
        policies=tuple(sorted({version for run in runs for version in run.policy_versions}, key=version_order)),
    )


def _whole_name(key: str) -> str:
    return one_line(key_name(key), _LONGEST_NAME)


def what_it_teaches(runs: Sequence[TrajectorySummary]) -> tuple[str, bool]:
    """What a GRPO step learns from a group, in words, and whether it learns anything."""
    trainable = [run for run in runs if never_trained_on(run) is None]
    compared, otherwise = _compared(runs)
    parts = [[reward for _, reward in part] for part in compared]
    rewards = [reward for part in parts for reward in part]
    left = _left_out(runs, otherwise)
    if not trainable:
        return f"Nothing: no run of it may be trained on.{left}", False
    if len(rewards) < 2:
        why = (
            f"only {len(rewards)} of {quantity(len(runs), 'run')} is complete and has a reward"
            if rewards
            else "no run has a reward"
        )
        return f"Nothing: {why}, and there is nothing to compare.{left}", False
    if not any(run.trained_tokens for run in trainable):
        reasons = Counter[str]()
        for run in trainable:
            reasons.update(run.quarantined)
        said = ", ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3)) or "no tokens were captured"
        return f"Nothing: no token of it can be trained on ({said}).", False
    if all(map(are_equal, parts)):
        values = " and ".join(f"{part[0]:.3f}" for part in parts)
        return (
            f"Nothing: all {len(rewards)} rewards are {values}. Each run's advantage is its reward less the "
            f"group's mean, which is 0 for every one of them.{left}"
        ), False
    apart = max(max(part) - min(part) for part in parts)
    judged = f" within each of the {len(parts)} judgements that they are from" if len(parts) > 1 else ""
    return (
        f"{len(rewards)} runs are compared, whose rewards are up to {apart:.3f} apart{judged}.{left}",
        True,
    )


def _left_out(runs: Sequence[TrajectorySummary], otherwise: int) -> str:
    never = Counter(map(never_trained_on, runs))
    unrewarded = sum(never_trained_on(run) is None and trajectory_reward(run) is None for run in runs)
    counts = {
        NotTrained.INCOMPLETE: never[NotTrained.INCOMPLETE],
        NotTrained.HELD_OUT: never[NotTrained.HELD_OUT],
        NotTrained.NOT_TRAINABLE: never[NotTrained.NOT_TRAINABLE],
        "without a reward": unrewarded,
        NotTrained.REWARDED_OTHERWISE: otherwise,
    }
    said = [f"{count} {reason}" for reason, count in counts.items() if count]
    return f" Left out: {', '.join(said)}." if said else ""


def histogram(rewards: Sequence[float]) -> tuple[Bin, ...]:
    """Bars over the range of the rewards, over 0 to 1 where they lie within; empty for none."""
    finite = [value for value in rewards if abs(value) <= MOST_REWARD]
    if not finite:
        return ()
    low, high = min(0.0, *finite), max(1.0, *finite)
    width = (high - low) / BINS
    counts = Counter(min(int((value - low) / width), BINS - 1) for value in finite)
    most = max(counts.values())
    return tuple(
        Bin(low + number * width, low + (number + 1) * width, counts[number], 100 * counts[number] / most)
        for number in range(BINS)
    )


def members(
    runs: Sequence[TrajectorySummary], newest: Mapping[str, int], steps: Mapping[str, Sequence[str]]
) -> tuple[Member, ...]:
    """The runs of a group, the best first. `newest` is each policy's newest step, `steps` what trained on each run."""
    of_runs = advantages({run.id: reward for run, reward in part} for part in _compared(runs)[0])
    found = []
    for run in runs:
        own = of_runs.get(run.id)
        given = tuple(sorted(run.rewards, key=lambda one: (one.source != JUDGE, -one.time_ns)))
        trained_in = tuple(steps.get(run.id, ()))
        age = _staleness(run, newest)
        found.append(Member(run_row(run), None if own is None else own.value, given, age, trained_in))
    return tuple(sorted(found, key=lambda one: (one.row.reward is None, -(one.row.reward or 0.0), one.row.start_ns)))


def _staleness(run: TrajectorySummary, newest: Mapping[str, int]) -> int | None:
    ages = []
    for version in run.policy_versions:
        policy, _, step = version.rpartition("@")
        if policy in newest and step.isdecimal():
            ages.append(max(0, newest[policy] - int(step)))
    return max(ages, default=None)


def compare(chosen: Sequence[tuple[Member, Sequence[TranscriptEntry]]], most: int = 40) -> GroupComparison:
    """Runs side by side: what they begin alike with, then each from where they part, at most `most` entries of it."""
    shared = alike([entries for _, entries in chosen]) if len(chosen) > 1 else 0
    return GroupComparison(
        shared=shared,
        alike=tuple(chosen[0][1][max(0, shared - 8) : shared]) if chosen else (),
        columns=tuple(
            RunColumn(member, tuple(entries[shared : shared + most]), max(0, len(entries) - shared - most))
            for member, entries in chosen
        ),
    )


def _compared(runs: Sequence[TrajectorySummary]) -> tuple[list[Compared[TrajectorySummary]], int]:
    return rewards_on_one_scale(run for run in runs if never_trained_on(run) is None)
