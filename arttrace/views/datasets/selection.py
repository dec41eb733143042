"""Which stored runs become rows of training data, group by group, and what is left out by reason."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from arttrace.formats.datasets import art, atif, chat, verl
from arttrace.formats.datasets.forms import Form, Row, Unsuitable
from arttrace.records.group import Group
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.rewards.combine import rewards_on_one_scale, trajectory_reward
from arttrace.rewards.selection import good_runs, preferences, trainable
from arttrace.store import AnyStore
from arttrace.store.bounded_parts import spans_at_once
from arttrace.trajectories.conversations import (
    Conversation,
    conversations,
    main_conversation,
    why_no_main,
    why_silent,
    with_ends,
)
from arttrace.trajectories.groups import task_key
from arttrace.views.run_filter import RunFilter
from arttrace.views.run_index import RunIndex

BESIDE_ANSWERS = (
    "messages behind the prompt of a pair that are no answer of its model, as results of tools, which TRL's DPO would "
    "learn as its words (arttrace train --method dpo does not)"
)
NOT_IN_THE_MEAN = "rewards that are in no mean_reward: the run is rewarded otherwise than its group"


class DatasetSelection(msgspec.Struct, frozen=True, kw_only=True):
    """What is written: the form, which runs `wanted` lets through, and of those the best of each group (`best`), or
    the ones rewarded with at least `min_reward` (trl-unpaired: these are the good ones). Rewards of pairs are at least
    `min_gap` apart. `held_out` is the share of tasks whose groups are kept apart.

    Raises ValueError where that contradicts itself, or is no share or gap.
    """

    form: Form
    best: bool = False
    min_reward: float | None = None
    min_gap: float = 0.1
    held_out: float = 0.0
    wanted: RunFilter = RunFilter()

    def __post_init__(self) -> None:
        if self.best and self.min_reward is not None:
            raise ValueError("--best chooses by the group's rewards, --min-reward by one bound: give one of them")
        if self.form.is_of_pairs and (self.best or self.min_reward is not None):
            raise ValueError(f"{self.form} compares runs by --min-gap: leave --best and --min-reward out")
        if self.form is Form.TRL_UNPAIRED and self.min_reward is None:
            raise ValueError("trl-unpaired needs --min-reward: runs rewarded with at least that are the good ones")
        if self.min_reward is not None and math.isnan(self.min_reward):
            raise ValueError("min_reward is nan, which no reward reaches")
        if not 0 <= self.held_out <= 1:
            raise ValueError(f"held_out is {self.held_out}, outside 0..1")
        if not self.min_gap >= 0:
            raise ValueError(f"min_gap is {self.min_gap}, below 0")

    @property
    def compares(self) -> bool:
        """Whether the runs of a group are compared, or written together: it has to be in memory whole then."""
        return self.best or self.form.is_of_pairs or self.form in (Form.VERL_RL, Form.ART)

    def holds_out(self, task: str) -> bool:
        """Whether what attempted a task is held out: its key alone decides, so a larger share holds out more of the
        same."""
        return int.from_bytes(hashlib.blake2b(task.encode(), digest_size=8).digest()) / 2**64 < self.held_out


class Written(msgspec.Struct):
    """What was written (`runs` are those of which there is a row), and what was left out by reason: groups and runs by
    their state, reward or form, conversations by the form. `lost` counts what is there without a part of it."""

    runs: int = 0
    rows: int = 0
    held_out_rows: int = 0
    groups_left_out: dict[str, int] = {}
    runs_left_out: dict[str, int] = {}
    conversations_left_out: dict[str, int] = {}
    lost: dict[str, int] = {}

    def leave_out(self, reason: str) -> None:
        """Counts a conversation whose row, the last that `selected_rows` gave, the file cannot hold."""
        _count(self.conversations_left_out, {reason: 1})

    @property
    def refused(self) -> int:
        """How many conversations are left out so far."""
        return sum(self.conversations_left_out.values())

    def said(self) -> Iterator[str]:
        """A line for each reason, the most frequent first."""
        for noun, what, counts in (
            ("group", " left out", self.groups_left_out),
            ("run", " left out", self.runs_left_out),
            ("conversation", " left out", self.conversations_left_out),
            ("other", "", self.lost),
        ):
            for reason, number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
                yield f"{quantity(number, noun)}{what}: {reason}"


def selected_rows(
    store: AnyStore, selection: DatasetSelection, written: Written, progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[Row, bool]]:
    """The rows, and whether each is held out, in the order in which the groups began. `written` counts what becomes
    rows and what is left out (the rows themselves are counted by whoever takes them); `progress` gets how many runs of
    how many are done."""
    with RunIndex(store, selection.wanted) as runs:
        done = 0
        if progress is not None:
            progress(done, runs.count)
        begun, is_held_out = "", False
        for part in runs.groups(spans_at_once(runs.spans), whole=selection.compares):
            ids = [id for _, members in part for id in members]
            built = {run.id: run for run in store.trajectories(ids=ids)}
            for key, members in part:
                group = Group(key, tuple(built.pop(id) for id in members if id in built))
                if key != begun and group.trajectories:  # and no later part of one that was begun
                    begun, is_held_out = key, selection.holds_out(task_key(group.trajectories[0]))
                for row in _rows(selection, group, written):
                    yield row, is_held_out
            done += len(ids)
            if progress is not None:
                progress(done, runs.count)


def _rows(selection: DatasetSelection, group: Group, written: Written) -> Iterator[Row]:
    form = selection.form
    if form.is_of_pairs:
        yield from _pairs(selection, group, written)
        return
    runs = _chosen(selection, group, written)
    if form is Form.VERL_RL:
        kept = [run for run, _ in runs]
        if kept:
            parts, others = rewards_on_one_scale(kept)
            with _Counting(written.groups_left_out):
                yield verl.rl_row(group.key, kept, [reward for part in parts for _, reward in part])
                written.runs += len(kept)
                _count(written.lost, {NOT_IN_THE_MEAN: others})
    elif form is Form.ART:
        lost: Counter[str] = Counter()
        parts, others = rewards_on_one_scale(run for run, _ in runs)
        _count(written.runs_left_out, {NotTrained.REWARDED_OTHERWISE: others})
        for number, part in enumerate(parts or [[]]):
            rewards = {run.id: reward for run, reward in part}
            members = []
            for run, _ in runs:
                if run.id in rewards or (number == 0 and trajectory_reward(run) is None):
                    with _Counting(written.runs_left_out):
                        members.append(art.trajectory(run, rewards.get(run.id), lost))
            if members:
                yield art.group(group.key, members)
                written.runs += len(members)
        _count(written.lost, lost)
    elif form is Form.ATIF:
        for run, _ in runs:
            with _Counting(written.runs_left_out):
                yield atif.document(run)
                written.runs += 1
    else:
        for run, good in runs:
            yield from _conversations(form, run, good, written)


def _conversations(form: Form, run: Trajectory, good: bool, written: Written) -> Iterator[Row]:
    found = [part for one in conversations(run) for part in with_ends(one)]
    if not found:
        _count(written.conversations_left_out, {why_silent(run): 1})
    made = 0
    for conversation in found:
        with _Counting(written.conversations_left_out):
            rows: Iterable[Row] = (
                [verl.sft_row(conversation, trajectory_reward(run))]
                if form is Form.VERL_SFT
                else chat.rows(form, conversation, good=good)
            )
            for row in rows:
                refused = written.refused
                yield row
                made += written.refused == refused
    written.runs += bool(made)


def _pairs(selection: DatasetSelection, group: Group, written: Written) -> Iterator[Row]:
    found = preferences([group], min_gap=selection.min_gap)
    _count(written.runs_left_out, found.left_out)
    for pair in found.pairs:
        better, worse = (main_conversation(run) for run in pair)
        if better is None or worse is None:
            for run, said in zip(pair, (better, worse), strict=True):
                _count(written.conversations_left_out, {NotTrained.OTHER_OF_PAIR if said else why_no_main(run): 1})
            continue
        with _Counting(written.conversations_left_out):
            row = chat.pair_row(selection.form, better, worse)
            yield row
            written.runs += 2
            if selection.form is Form.TRL_PREFERENCE:
                _count(written.lost, {BESIDE_ANSWERS: sum(_beside(one, len(row["prompt"])) for one in (better, worse))})


def _beside(conversation: Conversation, shared: int) -> int:
    """How many messages behind the first `shared` are none of its targets."""
    return sum(at not in conversation.targets for at in range(shared, len(conversation.messages)))


def _chosen(selection: DatasetSelection, group: Group, written: Written) -> list[tuple[Trajectory, bool]]:
    """The runs, and whether each is a good one."""
    is_unpaired = selection.form is Form.TRL_UNPAIRED
    if not is_unpaired and (selection.best or selection.min_reward is not None):
        found = good_runs([group], min_reward=selection.min_reward)
        _count(written.runs_left_out, found.left_out)
        return [(run, True) for run in found.runs]
    runs, left_out = trainable(group.trajectories)
    _count(written.runs_left_out, left_out)
    if not is_unpaired or selection.min_reward is None:
        return [(run, True) for run in runs]
    rewarded = [(run, reward >= selection.min_reward) for run in runs if (reward := trajectory_reward(run)) is not None]
    _count(written.runs_left_out, {NotTrained.NO_REWARD: len(runs) - len(rewarded)})
    return rewarded


class _Counting:
    """Counts what cannot be written. No generator: from Python 3.12 on one that ends an exception leaves a cycle, which
    holds the run."""

    def __init__(self, left_out: dict[str, int]) -> None:
        self._left_out = left_out

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: object, _traceback: object) -> bool:
        if not isinstance(error, Unsuitable):
            return False
        _count(self._left_out, {str(error): 1})
        return True


def _count(into: dict[str, int], counts: Mapping[NotTrained, int] | Mapping[str, int]) -> None:
    for reason, number in counts.items():
        if number:
            into[str(reason)] = into.get(str(reason), 0) + number
