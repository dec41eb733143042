"""The outcome of replayed runs: counted from the store, and shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from arttrace.records.rollout import RolloutResult
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.store.rows.summary import summarise
from arttrace.system.errors import ArttraceError, RolloutError
from arttrace.system.paths import DataDir
from arttrace.views.labels import short_id
from trainer.rollouts.replay import RecordedInput


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
            lines.append(f"  {', '.join(versions)} answered: {trained} of {captured} sampled tokens can be trained on")
        if counts["complete"] + counts["failed"] > 1 and self._reached_a_policy:
            lines.append("Next: arttrace score --judge MODEL, and arttrace train.")
        return "\n".join(lines)

    def document(self, entry: str, refused: dict[str, int]) -> dict[str, Any]:
        """The same for programs."""
        return {
            "entry": entry,
            "wanted": self.wanted,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "refused": refused,
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
        if not self._reached_a_policy:
            raise RolloutError(
                "no sampled token can be trained on by GRPO: these runs have none with its token id",
                "Their model calls did not reach a policy that gives token ids: see --policy and --route, and"
                f" `arttrace show {short_id(self.outcomes[0].trajectory_id)}`. {log}",
            )

    @property
    def _reached_a_policy(self) -> bool:
        return any(one.policy_versions or one.trained_tokens for one in self.outcomes)


def report_of(
    outcomes: Sequence[Outcome], wanted: int, seconds: float, interrupted: bool, stopped: ArttraceError | None
) -> Report:
    """The report of these runs, by group."""
    return Report(tuple(sorted(outcomes, key=lambda one: one.group)), wanted, seconds, interrupted, stopped)
