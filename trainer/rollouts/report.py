"""The outcome of replayed runs: counted from the store, and shown."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from arttrace.records.rollout import RolloutResult
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.rewards.combine import trajectory_reward
from arttrace.rewards.selection import is_held_out
from arttrace.store.rows.summary import summarise
from arttrace.system.errors import ArttraceError, RolloutError
from arttrace.system.paths import DataDir, can_name_a_policy
from arttrace.views.labels import short_id
from trainer.rollouts.replay import RecordedInput

ENDED_ITSELF = "the program ended its run itself, so that it is in no group: it rewards it by POST /r/ID/reward"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. "complete", "failed" (the entry point raised: a run like any other) or "lost" (no word about the
    policy: neither scored nor trained on); `reason` says why. Token counts as in TokenReport."""

    trajectory_id: str
    group: str
    replay_of: str | None
    kind: Literal["complete", "failed", "lost"]
    reason: str
    seconds: float
    policy_versions: tuple[str, ...] = ()
    captured_tokens: int = 0
    trained_tokens: int = 0
    reward: float | None = None
    held_out: bool = False

    @classmethod
    def of(cls, scenario: RecordedInput, result: RolloutResult, kept: Trajectory | None) -> Outcome:
        """From what the worker said, and what the store holds."""
        if kept is None:
            reason = result.error or "nothing of it was captured"
            return cls(result.trajectory_id, scenario.group or "", scenario.replay_of, "lost", reason, result.seconds)
        one = summarise(kept)
        kind: Literal["complete", "failed", "lost"] = "failed" if result.error else "complete"
        reason = result.error or ""
        if result.lost or one.incomplete:
            kind, reason = "lost", result.error if result.lost and result.error else one.incomplete
        elif scenario.command is not None and one.group != scenario.group:
            kind, reason = "lost", ENDED_ITSELF
        return cls(
            trajectory_id=one.id,
            group=one.group,
            replay_of=scenario.replay_of,
            kind=kind,
            reason=reason,
            seconds=result.seconds,
            policy_versions=one.policy_versions,
            captured_tokens=one.captured_tokens,
            trained_tokens=one.trained_tokens,
            reward=trajectory_reward(kept),
            held_out=is_held_out(kept),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """All runs of one command: `wanted` is how many there should have been, `stopped` what ended them early."""

    outcomes: tuple[Outcome, ...]
    wanted: int
    seconds: float
    interrupted: bool
    stopped: ArttraceError | None

    def text(self) -> str:
        """A few lines for a person."""
        counts = Counter(one.kind for one in self.outcomes)
        groups = len({one.group for one in self.outcomes})
        ended = ", ".join(f"{counts[kind]} {kind}" for kind in ("complete", "failed", "lost") if counts[kind])
        made = f"{quantity(len(self.outcomes), 'run')} in {quantity(groups, 'group')}"
        lines = [f"{made}: {ended or 'none'}; {self.seconds:.1f} s."]
        if len(self.outcomes) < self.wanted:
            missing = self.wanted - len(self.outcomes)
            lines.append(
                f"  stopped: {missing} of {quantity(self.wanted, 'run')} not made; runs made later join these groups"
            )
        for kind in ("failed", "lost"):
            reasons = Counter(one.reason.partition("\n")[0] for one in self.outcomes if one.kind == kind)
            lines += [f"  {kind}: {count} x {reason}" for reason, count in reasons.most_common(5)]
        versions = sorted({version for one in self.outcomes for version in one.policy_versions})
        captured = sum(one.captured_tokens for one in self.outcomes)
        trained = sum(one.trained_tokens for one in self.outcomes)
        if versions:
            use = f": {trained} of {captured} sampled tokens can be trained on" if self._feeds_training else ""
            lines.append(f"  {', '.join(versions)} answered{use}")
        lines += [f"  {line}" for line in self._evaluation_lines()]
        if counts["complete"] + counts["failed"] > 1 and self._feeds_training and self._reached_a_policy:
            rewarded = all(one.reward is not None for one in self.outcomes if one.kind != "lost" and not one.held_out)
            lines.append(f"Next: {'' if rewarded else 'arttrace score --judge MODEL, and '}arttrace train.")
        return "\n".join(lines)

    def evaluations(self) -> Iterator[tuple[str, int, dict[str, float]]]:
        """Of each version, as its policy's name and its step, the mean `reward` of the held-out runs that it answered
        alone, and how many `runs` these are."""
        rewards: defaultdict[str, list[float]] = defaultdict(list)
        for one in self._held_out:
            if one.reward is not None and (version := _only_version(one)):
                rewards[version].append(one.reward)
        for version, found in sorted(rewards.items()):
            policy, _, step = version.rpartition("@")
            yield policy, int(step), {"runs": float(len(found)), "reward": fmean(found)}

    def _evaluation_lines(self) -> Iterator[str]:
        for policy, step, numbers in self.evaluations():
            runs = quantity(int(numbers["runs"]), "run")
            yield f"held out: mean reward {numbers['reward']:.3f} of {runs} of {policy}@{step}, recorded"
        if unrewarded := sum(one.reward is None for one in self._held_out):
            yield f"held out: {quantity(unrewarded, 'run')} without a reward, in no mean"
        rewarded = [one for one in self._held_out if one.reward is not None]
        for what, count in (
            ("answered by several versions", sum(len(one.policy_versions) > 1 for one in rewarded)),
            ("not answered by a version of a policy", sum(not one.policy_versions for one in rewarded)),
        ):
            if count:
                yield f"held out: {quantity(count, 'run')} {what}, in no mean"

    @property
    def _held_out(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.held_out and one.kind != "lost"]

    def document(self, entry: str, refused: dict[str, int]) -> dict[str, Any]:
        """The same for programs."""
        return {
            "entry": entry,
            "wanted": self.wanted,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "refused": refused,
            "held_out": [{"policy": policy, "step": step, **numbers} for policy, step, numbers in self.evaluations()],
            "runs": [
                {
                    "trajectory": one.trajectory_id,
                    "group": one.group,
                    "replay_of": one.replay_of,
                    "outcome": one.kind,
                    "reason": one.reason,
                    "seconds": one.seconds,
                    "policy_versions": one.policy_versions,
                    "captured_tokens": one.captured_tokens,
                    "trained_tokens": one.trained_tokens,
                    "reward": one.reward,
                }
                for one in self.outcomes
            ],
        }

    def check(self, data: DataDir) -> None:
        """Raises RolloutError when runs were lost, or no policy that gives token ids answered the others."""
        log = f"The runs' output is in {data.root / 'logs' / 'rollouts.log'}."
        if self.stopped is not None:
            raise self.stopped
        lost = [one for one in self.outcomes if one.kind == "lost"]
        if lost:
            raise RolloutError(f"{len(lost)} of {quantity(len(self.outcomes), 'run')} lost: {lost[0].reason}", log)
        if self._feeds_training and not self._reached_a_policy:
            raise RolloutError(
                "no sampled token can be trained on by GRPO: these runs have none with its token id",
                "Their model calls did not reach a policy that gives token ids: see --policy and --route, and"
                f" `arttrace show {short_id(self.outcomes[0].trajectory_id)}`. {log}",
            )

    @property
    def _feeds_training(self) -> bool:
        return not all(one.held_out for one in self.outcomes)

    @property
    def _reached_a_policy(self) -> bool:
        return any(one.policy_versions or one.trained_tokens for one in self.outcomes)


def _only_version(one: Outcome) -> str | None:
    """The version that answered alone, NAME@STEP."""
    if len(one.policy_versions) != 1:
        return None
    name, _, step = one.policy_versions[0].rpartition("@")
    return one.policy_versions[0] if can_name_a_policy(name) and step.isdecimal() else None


def report_of(
    outcomes: Sequence[Outcome], wanted: int, seconds: float, interrupted: bool, stopped: ArttraceError | None
) -> Report:
    """The report of these runs, by group."""
    return Report(tuple(sorted(outcomes, key=lambda one: one.group)), wanted, seconds, interrupted, stopped)
