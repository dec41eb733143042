"""PolicyStep: one optimisation step of one policy, what it consumed, and which version earned its rewards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from arttrace.records.values.integers import Int64

_EARLIER_NAMES = {"trained_tokens": "tokens_trained", "learned_tokens": "tokens_trained"}


class Consumed(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trajectory that a step took, at the revision it had then: it was trained on it, or, if it is `set_aside`, an
    earlier round had learned nothing from it. `method` is set if it is not the step's: in the first version of a fork,
    which lists what the versions before it took."""

    trajectory_id: str
    revision: str
    method: str = ""
    set_aside: bool = False


class PolicyStep(msgspec.Struct, frozen=True, tag="policy_step", omit_defaults=True):
    """Step `step` of policy `policy`, which made version `policy@step`.

    Unique by (policy, step). `method` is "grpo", "distill", "sft" or "dpo", and "fork" where the version was copied
    from `forked_from`; "" in steps from before it was stored, see `made_by`. `metrics` are plain numbers by name;
    seconds end in `_s`. `adapter` is the adapter's directory. `base_weights` distinguishes the weights of `base_model`
    from others that are put into the same directory; "" where it is not known.
    """

    policy: str
    step: Int64
    adapter: str
    consumed: tuple[Consumed, ...] = ()
    metrics: dict[str, float] = {}
    base_model: str = ""
    time_ns: Int64 = 0
    method: str = ""
    forked_from: str = ""
    base_weights: str = ""

    @property
    def made_by(self) -> str:
        """The method, derived from the metrics where it was not stored."""
        if self.method:
            return self.method
        if "learned_tokens" not in self.metrics:
            return "grpo"
        return "dpo" if self.metrics.get("accuracy", 0.0) > 0 else "sft"

    @property
    def own_runs(self) -> int:
        """How many trajectories it was trained on itself; none where it was copied."""
        return 0 if self.forked_from else len(self.trained)

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics by their names of today, also those of a step that was stored under earlier ones."""
        renamed = {_EARLIER_NAMES[name]: value for name, value in self.metrics.items() if name in _EARLIER_NAMES}
        return renamed | {name: value for name, value in self.metrics.items() if name not in _EARLIER_NAMES}

    @property
    def trained(self) -> tuple[Consumed, ...]:
        """What it was trained on: all that it consumed but what was set aside."""
        return tuple(one for one in self.consumed if not one.set_aside)

    @property
    def version(self) -> str:
        """The name under which this step's adapter is served: `policy@step`."""
        return f"{self.policy}@{self.step}"


def answered(versions: Iterable[str], policy: str | None) -> bool:
    """Whether one of the versions that answered in a run is of the policy; None stands for any policy."""
    return any(policy in (None, version.rpartition("@")[0]) for version in versions)


def version_rewards(steps: Sequence[PolicyStep]) -> dict[int, float]:
    """The mean reward of the runs that each version sampled, as far as a step was trained on them.

    Args:
        steps: The steps of one policy.

    Returns:
        By version: a step's runs are those of the version before it, or of one as much older as their mean staleness
        says (after a rollback, say). The newest has none yet, 0 is the base model. A fork's first version may
        have the numbers of another policy's step, which count for none.
    """
    ordered = sorted(steps, key=lambda done: done.step)
    before = [0, *(done.step for done in ordered)]
    found: dict[int, list[tuple[float, float]]] = {}
    for version, done in zip(before, ordered, strict=False):
        if "reward_mean" in done.metrics and not done.forked_from:
            sampled_by = max(0, version - round(done.metrics.get("staleness_mean", 0.0)))
            # Of what a distillation trained on, a part may have a reward.
            runs = done.metrics.get("trajectories_rewarded", max(1.0, done.metrics.get("trajectories", 1.0)))
            found.setdefault(sampled_by, []).append((done.metrics["reward_mean"], runs))
    return {
        version: sum(mean * runs for mean, runs in several) / sum(runs for _, runs in several)
        for version, several in found.items()
    }
