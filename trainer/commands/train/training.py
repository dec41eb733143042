"""Training: what one `arttrace train` works on, and by which settings."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from arttrace.commands.shared.progress import say
from arttrace.store import AnyStore
from trainer.commands.train.settings import TrainSettings
from trainer.grpo.trainer import PolicyTrainer
from trainer.learner import make_learner
from trainer.policies.checkpoints import Checkpoints
from trainer.step.reported import Reporting
from trainer.step.version import PublishingGateway


class Training(NamedTuple):
    """The runs and the policy of a command, and what was asked for."""

    store: AnyStore
    checkpoints: Checkpoints
    gateway: PublishingGateway
    base_model: Path | None
    """None where nothing names one."""
    settings: TrainSettings
    reporting: Reporting
    as_json: bool
    """Whether a version or a plan is printed as JSON."""

    def trainer(self, base_model: Path) -> PolicyTrainer:
        """Load the base model, and say so. Raises TrainingError where it cannot be trained on."""
        settings = self.settings
        say(f"loading {base_model}")
        return PolicyTrainer(
            policy=self.checkpoints.policy,
            base_model=str(base_model),
            store=self.store,
            learner=make_learner(base_model, settings.learner),
            checkpoints=self.checkpoints,
            gateway=self.gateway,
            scale=settings.advantages,
            std_floor=settings.std_floor,
            max_staleness=settings.max_staleness,
            keep_states=settings.keep_states,
            say=say,
        )
