"""What a plan says of any method that trains on what the policy itself sampled, as lines or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from trainer.commands.train.report import print_hint, uses_document
from trainer.policies.checkpoints import Checkpoints
from trainer.step.left_out import Reasons, left_out_lines


@dataclass(frozen=True, slots=True)
class SampledPlan:
    """How many steps and trajectories there would be, what of the sampled tokens would be trained, and by reason the
    trajectories that are left out and the calls whose tokens are not trained."""

    steps: int
    trajectories: int
    tokens_captured: int
    tokens_trained: int
    left_out: Reasons
    quarantined: Reasons

    def show(
        self,
        checkpoints: Checkpoints,
        on_what: str,
        own: Mapping[str, Any],
        *,
        first: Iterable[str] = (),
        last: Iterable[str] = (),
        fewer: str,
        check: Callable[[], None],
        as_json: bool,
    ) -> None:
        """Print it. `own` are the method's own fields of the document; in lines, `on_what` is said of the policy,
        `first` and `last` stand around what all methods say, and then what to do where `check` raises TrainingError;
        `fewer` is why there are fewer steps than were asked for."""
        if fewer:
            click.echo(fewer, err=True)
        if as_json:
            document = {
                "policy": checkpoints.policy,
                "steps": self.steps,
                "trajectories": self.trajectories,
                "tokens_captured": self.tokens_captured,
                "tokens_trained": self.tokens_trained,
                "trajectories_left_out": self.left_out,
                "calls_quarantined": self.quarantined,
                "already_trained_on": uses_document(checkpoints),
            }
            click.echo(json.dumps({**document, **own}))
            return
        click.echo(f"{checkpoints.policy} {on_what}.")
        said = f"{self.tokens_trained} of {self.tokens_captured} sampled tokens would be trained."
        for line in (*first, said, *left_out_lines(self.left_out, calls=self.quarantined), *last):
            click.echo(f"  {line}")
        print_hint(check)
