"""What an offline method would train on, of the groups in a store: the examples, and what is left out and why. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from arttrace.records.group import Group
from arttrace.records.policy import Consumed
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Trajectory
from arttrace.rewards.selection import equal_groups, good_runs, never_trained_on, preferences
from arttrace.system.errors import TrainingError
from arttrace.trajectories.conversations import Conversation, conversations, main_conversation, why_no_main, why_silent
from trainer.offline.render import TrainingExample, Unprovable, render, shared_context

Method = Literal["sft", "dpo"]

Rendered = Callable[[int], None]
"""Called with the number of runs rendered so far."""

Tell = Callable[[int, str], None]
"""Called with how many optimizer steps are done, with a note on the last."""


@dataclass(frozen=True, slots=True)
class GivenStep:
    """One optimizer step as it was ordered: on how many examples, and its learning rate."""

    examples: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """The examples of one run of training.

    `sft` holds one example per conversation, `dpo` pairs (chosen, rejected) that begin alike. With `steps` the examples
    are gone through once, in their order: each step takes the next of them. Without, the learner shares them out.
    `consumed` names the
    trajectories behind them; `groups` counts all that were looked at, `groups_equal` those whose rewards are all equal.
    `trajectories_left_out` and `conversations_left_out` count what is not trained on, by reason.
    """

    method: Method
    sft: tuple[TrainingExample, ...] = ()
    dpo: tuple[tuple[TrainingExample, TrainingExample], ...] = ()
    steps: tuple[GivenStep, ...] = ()
    consumed: tuple[Consumed, ...] = ()
    groups: int = 0
    groups_equal: int = 0
    trajectories_left_out: dict[NotTrained, int] = field(default_factory=dict)
    conversations_left_out: dict[str, int] = field(default_factory=dict)

    @property
    def left_out(self) -> dict[str, int]:
        """All that is not trained on, by reason."""
        reasons = [*self.trajectories_left_out.items(), *self.conversations_left_out.items()]
        if self.reasoning_dropped:
            reasons.append((NotTrained.REASONING_DROPPED, self.reasoning_dropped))
        return {str(reason): count for reason, count in reasons}

    @property
    def reasoning_dropped(self) -> int:
        """Answers that are learned without their reasoning, each once: the chat template does not print it."""
        return sum(one.reasoning_dropped for one in {id(one): one for one in self._examples()}.values())

    @property
    def learned_tokens(self) -> int:
        """Tokens that enter the loss."""
        return sum(sum(example.learned) for example in self._examples())

    def _examples(self) -> Iterator[TrainingExample]:
        yield from self.sft
        yield from (example for pair in self.dpo for example in pair)


def plan_sft(
    groups: Sequence[Group],
    tokenizer: Any,
    *,
    min_reward: float | None = None,
    used: Collection[str] = frozenset(),
    max_length: int | None = None,
    max_positions: int | None = None,
    progress: Callable[[int], Rendered] | None = None,
) -> OfflinePlan:
    """Every answer of the good runs that are not `used`, once; see `good_runs`.

    Conversations of more tokens than `max_length`, or than the model's `max_positions`, are left out. `progress` is
    asked once, with the number of runs to render.
    """
    fits = _Fits(max_length, max_positions)
    chosen = good_runs(groups, min_reward=min_reward, used=used)
    dropped: Counter[str] = Counter()
    examples: list[TrainingExample] = []
    consumed: list[Trajectory] = []
    tell = progress(len(chosen.runs)) if progress else None
    for number, run in enumerate(chosen.runs, 1):
        found = _answers(run, tokenizer, fits, dropped)
        examples += found
        consumed += [run] if found else []
        if tell is not None:
            tell(number)
    return OfflinePlan(
        "sft",
        sft=tuple(examples),
        consumed=_consumed(consumed),
        groups=len(groups),
        groups_equal=equal_groups(groups),
        trajectories_left_out=chosen.left_out,
        conversations_left_out=dict(+dropped),
    )


def plan_batches(
    batches: Sequence[tuple[Sequence[Trajectory], float]],
    tokenizer: Any,
    *,
    max_length: int | None = None,
    max_positions: int | None = None,
    progress: Callable[[int], Rendered] | None = None,
) -> OfflinePlan:
    """An optimizer step for each of these batches, (runs, learning rate), whatever the runs' rewards: on every answer
    of its runs. A run may be in several of them. A batch of which all is left out makes no step; see `plan_sft` for
    lengths."""
    fits = _Fits(max_length, max_positions)
    runs = {run.id: run for batch, _ in batches for run in batch}
    left_out: Counter[NotTrained] = Counter()
    dropped: Counter[str] = Counter()
    answers: dict[str, list[TrainingExample]] = {}
    tell = progress(len(runs)) if progress else None
    for number, run in enumerate(runs.values(), 1):
        reason = never_trained_on(run)
        if reason is not None:
            left_out[reason] += 1
        elif found := _answers(run, tokenizer, fits, dropped):
            answers[run.id] = found
        if tell is not None:
            tell(number)
    shares = [([one for run in batch for one in answers.get(run.id, ())], rate) for batch, rate in batches]
    return OfflinePlan(
        "sft",
        sft=tuple(example for share, _ in shares for example in share),
        steps=tuple(GivenStep(len(share), rate) for share, rate in shares if share),
        consumed=_consumed(runs[id] for id in answers),
        trajectories_left_out=dict(left_out),
        conversations_left_out=dict(+dropped),
    )


def plan_dpo(
    groups: Sequence[Group],
    tokenizer: Any,
    *,
    min_gap: float = 0.1,
    max_length: int | None = None,
    max_positions: int | None = None,
    progress: Callable[[int], Rendered] | None = None,
) -> OfflinePlan:
    """Pairs of runs of one group, by the root agent's last branch; see `preferences`, and `plan_sft` for lengths.

    The two may read different things once they differ (a tool's answer, a user's words): those are context, and only
    what the model said is compared: where the template renders earlier answers differently once more follow, the last
    one alone, and the others are counted.
    """
    fits = _Fits(max_length, max_positions)
    chosen = preferences(groups, min_gap=min_gap)
    dropped: Counter[str] = Counter()
    pairs: list[tuple[TrainingExample, TrainingExample]] = []
    consumed: list[Trajectory] = []
    tell = progress(2 * len(chosen.pairs)) if progress else None
    for number, (better, worse) in enumerate(chosen.pairs, 1):
        if tell is not None:
            tell(2 * number)
        sides: list[TrainingExample] = []
        earlier = 0
        for run in (better, worse):
            if (said := main_conversation(run)) is None:
                dropped[why_no_main(run)] += 1
            else:
                answers = _rendered(said, tokenizer, fits, dropped)
                sides += answers[-1:]
                earlier += len(answers[:-1])
        if len(sides) < 2:
            dropped[NotTrained.OTHER_OF_PAIR] += len(sides)
            continue
        if not shared_context(*sides):
            dropped[NotTrained.CONTEXTS_DIFFER] += 2
            continue
        dropped[NotTrained.EARLIER_ANSWERS] += earlier
        pairs.append((sides[0], sides[1]))
        consumed += [better, worse]
    return OfflinePlan(
        "dpo",
        dpo=tuple(pairs),
        consumed=_consumed(consumed),
        groups=len(groups),
        groups_equal=equal_groups(groups),
        trajectories_left_out=chosen.left_out,
        conversations_left_out=dict(+dropped),
    )


def require_examples(plan: OfflinePlan, hint: str | None = None) -> None:
    """Raise TrainingError with the cause, and the hint or what can be done about the choice of runs, when there is
    nothing to learn from."""
    if plan.sft or plan.dpo:
        return
    left_out = {why: n for why, n in plan.conversations_left_out.items() if why != NotTrained.OTHER_OF_PAIR}
    if left_out and all(why.startswith(_LONGER) for why in left_out):
        [why, *_] = left_out
        are = f"all {sum(left_out.values())} conversations are"
        if left_out != plan.conversations_left_out:
            are = "of every pair one conversation at least is"
        raise TrainingError(
            f"There is nothing to train on by {plan.method.upper()}: {are} {why}.",
            "Use a model with a longer context, raise --max-length where that is the bound, or record shorter runs.",
        )
    reasons = sorted([*plan.trajectories_left_out.items(), *plan.conversations_left_out.items()])
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons) or "no trajectory"
    said = [hint for why, hint in _SILENT.items() if why in plan.conversations_left_out]
    raise TrainingError(
        f"There is nothing to train on by {plan.method.upper()}. Left out: {counts}.",
        hint or " ".join([*said, _MORE_RUNS]),
    )


_MORE_RUNS = """Reward the runs in code or by `arttrace score`; --min-reward takes runs of groups with equal rewards \
too (sft), --again runs that the method was given before."""
_SILENT = {
    NotTrained.NO_ANSWER: "Of a run without an answer no model call was recorded: see `arttrace doctor`.",
    NotTrained.ROOT_CALLED_NONE: "Pairs are made of what root agents said: --method sft imitates sub-agents too.",
}
"""What to do about runs that say nothing to learn from."""


_LONGER = "longer than "


@dataclass(frozen=True, slots=True)
class _Fits:
    """The bounds on a conversation's tokens."""

    max_length: int | None
    max_positions: int | None

    def why_not(self, tokens: int) -> str:
        if self.max_positions is not None and tokens > self.max_positions:
            return f"{_LONGER}the model's {self.max_positions} positions"
        if self.max_length is not None and tokens > self.max_length:
            return f"{_LONGER}{self.max_length} tokens"
        return ""


def _answers(run: Trajectory, tokenizer: Any, fits: _Fits, dropped: Counter[str]) -> list[TrainingExample]:
    said = conversations(run)
    if not said:
        dropped[why_silent(run)] += 1
    return [example for one in said for example in _rendered(one, tokenizer, fits, dropped)]


def _rendered(conversation: Conversation, tokenizer: Any, fits: _Fits, dropped: Counter[str]) -> list[TrainingExample]:
    try:
        examples = render(conversation, tokenizer)
    except Unprovable as reason:
        dropped[str(reason)] += 1
        return []
    if why := fits.why_not(max((len(example.token_ids) for example in examples), default=0)):
        dropped[why] += 1
        return []
    return examples


def _consumed(runs: Iterable[Trajectory]) -> tuple[Consumed, ...]:
    return tuple(Consumed(run.id, run.revision) for run in runs)
