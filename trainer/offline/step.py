"""One version of a policy by an offline method: from a plan to a checkpoint that is served and recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arttrace.records.policy import PolicyStep
from arttrace.store import AnyStore
from arttrace.system.errors import TrainingError
from arttrace.system.processes import signals_after_imports
from trainer.learner import LearnerConfig
from trainer.offline.plan import OfflinePlan, Tell
from trainer.policies.base_tokenizer import read_tokenizer
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.retention import KEPT_STATES
from trainer.step.engines import engines_asleep
from trainer.step.phases import Clock, Phase
from trainer.step.retry import no_retry
from trainer.step.version import PublishingGateway, complete_step

if TYPE_CHECKING:  # it imports what takes seconds
    from trainer.offline.train import OfflineLearner


def load_tokenizer(base_model: Path) -> Any:
    """The base model's tokenizer with its chat template. Raises TrainingError when it has none of them, or no places of
    its tokens."""
    tokenizer = read_tokenizer(base_model)
    if not getattr(tokenizer, "chat_template", None):
        raise TrainingError(
            f"The tokenizer in {base_model} has no chat template, so that conversations cannot be rendered.",
            "Use an instruct model, or put the template into its directory as chat_template.jinja.",
        )
    if not tokenizer.is_fast:
        raise TrainingError(
            f"The tokenizer in {base_model} ({type(tokenizer).__name__}) does not say where in a text its tokens "
            "stand: which are of an answer is not known.",
            "Put its fast form into its directory, as tokenizer.json, or train by GRPO.",
        )
    return tokenizer


def offline_learner(base_model: Path, config: LearnerConfig) -> OfflineLearner:
    """A learner with the base model loaded. Raises TrainingError as `OfflineLearner` does."""
    with signals_after_imports():
        from trainer.offline.train import OfflineLearner

    return OfflineLearner(base_model, config)


def train_offline(
    store: AnyStore,
    checkpoints: Checkpoints,
    gateway: PublishingGateway | None,
    base_model: Path,
    plan: OfflinePlan,
    config: LearnerConfig,
    *,
    progress: Callable[[int], Tell] | None = None,
    keep_states: int = KEPT_STATES,
    uninterrupted: AbstractContextManager[None] | None = None,
    learner: OfflineLearner | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> PolicyStep:
    """Go on from the newest version, or begin the first, with a `learner` of this config or a new one; one that
    trained before needs a version to go on from. `progress` is asked once, with the number of optimizer steps; `say` is
    told what is to be known of the optimizer. Engines that share the card sleep meanwhile. What follows once the model
    is loaded is done in `uninterrupted`. Raises TrainingError; nothing is consumed then."""
    clock = Clock()
    clock(Phase.STEP)
    learner = learner or offline_learner(base_model, config)
    latest = checkpoints.latest()
    if latest is not None and (note := learner.load(checkpoints.path(latest), plan.method)):
        say(note)
    tokenizer = load_tokenizer(base_model)
    with uninterrupted or nullcontext():
        with engines_asleep(gateway, no_retry, lora_rank=config.rank):
            learned = learner.train(plan, tokenizer, progress=progress)
        metrics = {"groups": float(plan.groups), "groups_equal": float(plan.groups_equal), **learned.numbers()}
        return complete_step(
            store,
            checkpoints,
            gateway,
            str(base_model),
            learner,
            plan.consumed,
            metrics,
            clock,
            method=plan.method,
            keep_states=keep_states,
        )
