"""Which runs of the store a policy is distilled from, and what each of their tokens teaches by the teacher's rating."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from arttrace.records.policy import Consumed
from arttrace.records.sequence import NotTrained, TokenReport, TokenSequence
from arttrace.records.values.tokens import is_logprob
from arttrace.records.values.units import quantity
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import AnyStore
from arttrace.trajectories import sequences
from trainer.grpo.batch import TrainingBatch
from trainer.grpo.distill.teacher import TeacherModel
from trainer.grpo.selection import Chosen, Selection, has_tokens_of, staleness, why_not
from trainer.grpo.trainer import NothingToTrain
from trainer.learner.interface import Sample
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.made_here import made_here
from trainer.step.left_out import calls_in_words, in_words

METHOD = "distill"


@dataclass(frozen=True, slots=True)
class SampledRun:
    """A run with what was sampled in it: the sequences, what is not trained and why, its reward if it has one, and the
    versions that answered. `of_tokens` are, once it is rated, the advantages of the tokens of each sequence."""

    id: str
    revision: str
    policy_versions: tuple[str, ...]
    sequences: tuple[TokenSequence, ...]
    report: TokenReport
    reward: float | None = None
    of_tokens: tuple[tuple[float, ...], ...] = ()

    @property
    def tokens(self) -> int:
        """How many of its tokens are trained."""
        return sum(one.trained_tokens for one in self.sequences)


@dataclass(slots=True)
class Sampled:
    """What there is in runs that are looked at one step's at a time: how many they are, how many of them have tokens to
    train, those tokens, all sampled ones, by reason the calls whose tokens are not trained, and every token id."""

    runs: int = 0
    taught: int = 0
    tokens: int = 0
    captured_tokens: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)
    token_ids: set[int] = field(default_factory=set)

    def add(self, runs: Sequence[SampledRun]) -> None:
        """Count these too."""
        self.runs += len(runs)
        for run in runs:
            self.taught += run.tokens > 0
            self.tokens += run.tokens
            self.captured_tokens += run.report.captured_tokens
            self.quarantined.update(run.report.reasons)
            self.token_ids.update(*(one.token_ids for one in run.sequences))


def choose_runs(
    store: AnyStore, checkpoints: Checkpoints, max_staleness: int | None, refused: Collection[str]
) -> Selection:
    """The runs of the store that the policy was not distilled from yet, each as a group of its own, without those whose
    ids are `refused`. Those without a token of the policy are left out, unless there are no others: then the step says
    what their calls lack."""
    policy, step, made = checkpoints.policy, checkpoints.latest() or 0, made_here(checkpoints)
    consumed = checkpoints.consumed_ids(METHOD)  # a dry run has recorded nothing
    left_out: Counter[NotTrained] = Counter()
    own: list[Chosen] = []
    others: list[Chosen] = []
    for one in sorted(store.summaries(unconsumed_by=policy, method=METHOD), key=lambda one: (one.start_ns, one.id)):
        if one.id in consumed:
            continue
        reason = why_not(one, policy=policy, step=step, max_staleness=max_staleness, made=made)
        if reason is None and one.id in refused:
            reason = NotTrained.OTHER_WEIGHTS
        if reason is not None:
            left_out[reason] += 1
            continue
        chosen = Chosen(one.id, (one.id,), (one.id,), (), staleness(one, step, policy))
        (own if has_tokens_of(one, policy) else others).append(chosen)
    if own and others:
        left_out[NotTrained.NO_TOKENS_OF_POLICY] += len(others)
    return Selection(tuple(own or others), dict(left_out))


def sampled_runs(store: AnyStore, chosen: Sequence[Chosen], policy: str) -> list[SampledRun]:
    """The chosen runs; targets are the tokens that a version of the policy sampled."""
    found = []
    for run in store.trajectories(ids=[one.key for one in chosen]) if chosen else ():
        made, report = sequences(run, policy=policy)
        found.append(SampledRun(run.id, run.revision, tuple(run.policy_versions), made, report, trajectory_reward(run)))
    return found


def require_sampled(sampled: Sampled, left_out: Mapping[NotTrained, int]) -> None:
    """Raise NothingToTrain with the cause and the hint when nothing was sampled that a teacher could rate."""
    if sampled.tokens:
        return
    if sampled.runs:
        reasons, remedies = calls_in_words(sampled.quarantined)
        raise NothingToTrain(
            f"There is no trainable token in {quantity(sampled.runs, 'trajectory')} ({reasons}).", remedies
        )
    if left_out:
        counts, remedies = in_words(left_out)
        raise NothingToTrain(f"There is nothing to train on. Trajectories left out: {counts}.", remedies or None)
    raise NothingToTrain(
        "There is nothing new to train on: no trajectory that this policy has not been distilled from.",
        "Run the agent again, and train then.",
    )


def within_reach(runs: Sequence[SampledRun], teacher: TeacherModel) -> tuple[list[SampledRun], dict[str, int]]:
    """The runs with those targets that the teacher can rate, and by reason, how many others there are."""
    lost: Counter[str] = Counter()
    found = []
    for run in runs:
        made = []
        for one in run.sequences:
            heat = one.temperatures or (1.0,) * len(one.trained)
            known = [bool(trained) for trained in one.trained]
            for place, trained in enumerate(one.trained):
                if trained and teacher.longest is not None and place >= teacher.longest:
                    lost[f"beyond the {teacher.longest} tokens of the teacher's context"] += 1
                elif trained and heat[place] != 1.0 and not teacher.any_temperature:
                    lost["sampled at another temperature than 1"] += 1
                else:
                    continue
                known[place] = False
            made.append(_with_targets(one, known))
        found.append(dataclasses.replace(run, sequences=tuple(made)))
    return found, dict(lost)


def rate(runs: Sequence[SampledRun], teacher: TeacherModel, computed: Callable[[int], None]) -> list[SampledRun]:
    """The runs, with the advantage of every token: the teacher's log-probability less that under which it was sampled,
    in nats, which is an estimate of -KL(sampler || teacher) at that token. A token that the teacher did not rate is no
    target any more. Raises TrainingError when the teacher fails."""
    ratings = iter(teacher.rate([one for run in runs for one in run.sequences], computed))
    found = []
    for run in runs:
        made = [_rated(one, next(ratings)) for one in run.sequences]
        rated, of_tokens = tuple(one for one, _ in made), tuple(own for _, own in made)
        found.append(dataclasses.replace(run, sequences=rated, of_tokens=of_tokens))
    return found


def _rated(sequence: TokenSequence, rating: Sequence[float | None]) -> tuple[TokenSequence, tuple[float, ...]]:
    """The sequence with the targets that were rated, and their advantages, 0 for other tokens; both (T,)."""
    rated = [bool(trained) and is_logprob(value) for trained, value in zip(sequence.trained, rating, strict=True)]
    advantages = tuple(
        float(value) - float(captured) if known and value is not None and captured is not None else 0.0
        for known, value, captured in zip(rated, rating, sequence.logprobs, strict=True)
    )
    return _with_targets(sequence, rated), advantages


def _with_targets(sequence: TokenSequence, known: Sequence[bool]) -> TokenSequence:
    """The sequence with those of its targets alone."""
    if sum(known) == sequence.trained_tokens:
        return sequence
    versions = tuple(version if one else -1 for one, version in zip(known, sequence.versions, strict=True))
    return msgspec.structs.replace(sequence, trained=tuple(map(int, known)), versions=versions)


def make_batch(
    runs: Sequence[SampledRun], *, step: int, policy: str, left_out: Mapping[NotTrained, int] | None = None
) -> TrainingBatch:
    """What a step on rated runs after version `step` trains on: each token by its own advantage, whatever its run was
    rewarded with. A run of which nothing was rated stays as it was, to be rated another time."""
    taught = [run for run in runs if run.tokens]
    sampled = Sampled()
    sampled.add(runs)
    away = [
        -advantage
        for run in taught
        for one, own in zip(run.sequences, run.of_tokens, strict=False)  # none before they are rated
        for advantage, target in zip(own, one.trained, strict=True)
        if target
    ]
    return TrainingBatch(
        method=METHOD,
        step=step,
        samples=tuple(Sample(run.sequences, 0.0, token_advantages=run.of_tokens) for run in taught),
        consumed=tuple(Consumed(run.id, run.revision) for run in taught),
        policy_rewards=tuple(run.reward for run in taught if run.reward is not None),
        staleness=tuple(staleness(run, step, policy) for run in taught),
        captured_tokens=sampled.captured_tokens,
        trained_tokens=sampled.tokens,
        unrated_tokens=sum(run.report.trained_tokens for run in runs) - sampled.tokens,
        teacher_kl=statistics.fmean(away) if away else 0.0,
        left_out=dict(left_out or {}),
        quarantined=dict(sampled.quarantined),
    )
