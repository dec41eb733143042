"""PolicyStep: one optimisation step of one policy, and what it consumed."""

from __future__ import annotations

import msgspec

from arttrace.records.int64 import Int64


class Consumed(msgspec.Struct, frozen=True):
    """One trajectory that a step was trained on, at the revision it had."""

    trajectory_id: str
    revision: str


class PolicyStep(msgspec.Struct, frozen=True, tag="policy_step", omit_defaults=True):
    """Step `step` of policy `policy`, which made version `policy@step`.

    Unique by (policy, step). `metrics` are plain numbers by name; seconds end in `_s`. The adapter lies in `adapter`.
    """

    policy: str
    step: Int64
    adapter: str
    consumed: tuple[Consumed, ...] = ()
    metrics: dict[str, float] = {}
    base_model: str = ""
    time_ns: Int64 = 0

    @property
    def version(self) -> str:
        """The name under which this step's adapter is served: `policy@step`."""
        return f"{self.policy}@{self.step}"
