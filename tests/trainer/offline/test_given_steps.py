"""SFT in optimizer steps that were ordered one by one: which examples each takes, and its learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from one_thread import one_thread as one_thread
from tiny_model import make_base_model

from arttrace.formats.content_ids import ContentIds
from arttrace.formats.conversations import Conversations
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.system.errors import TrainingError
from arttrace.trajectories.build import build_trajectories
from trainer.learner.config import LearnerConfig
from trainer.learner.packed.head import Head, log_probabilities
from trainer.learner.policy_model import make_optimizer, trainable
from trainer.offline.plan import GivenStep, OfflinePlan, plan_batches, require_examples
from trainer.offline.render import TrainingExample
from trainer.offline.step import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> Any:
    return load_tokenizer(base)


def said(*messages: tuple[str, str]) -> Trajectory:
    item = {"messages": [{"role": role, "content": content} for role, content in messages]}
    read = Conversations("test", ContentIds()).records(item)
    [found] = build_trajectories([one for one in read if isinstance(one, SpanRow)], [])
    return found


ONE = said(("user", "A pear?"), ("assistant", "3"))
LONG = said(("user", "A plum?"), ("assistant", "It is 4, as ever."), ("user", "Sure?"), ("assistant", "Yes, it is."))
THREE = said(("user", "A fig?"), ("assistant", "Five or six"))
SILENT = said(("user", "Is anybody there?"))


def test_each_batch_is_a_step_and_a_run_may_be_in_several(tokenizer: Any) -> None:
    plan = plan_batches([([ONE, LONG], 1e-3), ([SILENT], 1e-3), ([THREE, SILENT, ONE], 0.0)], tokenizer)
    assert plan.steps == (GivenStep(2, 1e-3), GivenStep(2, 0.0)), "a batch of which all is left out makes no step"
    one, long, three, again = plan.sft
    assert one == again
    assert sum(long.learned) > sum(three.learned) > sum(one.learned) > 0
    assert sorted(run.trajectory_id for run in plan.consumed) == sorted(run.id for run in (ONE, LONG, THREE))
    assert plan.conversations_left_out == {"runs without an answer": 1}


def test_nothing_to_imitate_says_what_to_give(tokenizer: Any) -> None:
    with pytest.raises(TrainingError, match=r"Left out: 1 runs without an answer\.") as shown:
        require_examples(plan_batches([([SILENT], 1e-3)], tokenizer), "Give it an answer.")
    assert shown.value.hint == "Give it an answer."


def mean_loss(model: Any, examples: list[TrainingExample]) -> torch.Tensor:
    """The mean over the learned tokens of them all."""
    sums = []
    for example in examples:
        ids = torch.tensor(example.token_ids)
        hidden = model.get_base_model().get_decoder()(input_ids=ids[None]).last_hidden_state[0]
        logps, _ = log_probabilities(Head.of(model), hidden[:-1], ids[1:], torch.ones(len(ids) - 1))
        sums.append(-logps[torch.tensor(example.learned[1:])].sum())
    return torch.stack(sums).sum() / sum(sum(example.learned) for example in examples)


def test_the_steps_are_those_of_a_loop_by_hand(base: Path, tokenizer: Any) -> None:
    """Three rows go through the model two at a time, in a step of which each token counts alike; a rate of 0, with
    which schedules end, changes nothing."""
    from trainer.offline.train import OfflineLearner

    config = LearnerConfig(lora_rank=8, dtype="float64", max_grad_norm=0.5)
    batches = [([ONE, LONG, THREE], 1e-2), ([LONG], 3e-3), ([ONE, ONE], 2e-2), ([THREE], 0.0)]
    plan = plan_batches(batches, tokenizer)
    learner, by_hand = OfflineLearner(base, config), OfflineLearner(base, config).model
    optimizer = make_optimizer(by_hand, config)
    left, losses, norms = list(plan.sft), [], []
    for step in plan.steps:
        examples, left = left[: step.examples], left[step.examples :]
        loss = mean_loss(by_hand, examples)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(trainable(by_hand).values(), config.max_grad_norm)))
        for group in optimizer.param_groups:
            group["lr"] = step.learning_rate
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    metrics = learner.train(plan, tokenizer)
    assert max(norms) > config.max_grad_norm, "gradients are clipped"
    wanted = (losses[0], losses[-1], sum(losses) / 4, sum(norms) / 4)
    found = (metrics.first_loss, metrics.last_loss, metrics.loss, metrics.grad_norm)
    assert found == pytest.approx(wanted, rel=1e-5)
    for name, weight in trainable(learner.model).items():
        torch.testing.assert_close(weight, trainable(by_hand)[name], rtol=1e-3, atol=1e-6)
    assert (metrics.optimizer_steps, metrics.tokens_trained) == (4, sum(sum(one.learned) for one in plan.sft))


def test_what_follows_has_a_learning_rate_of_its_own(base: Path, tokenizer: Any) -> None:
    from trainer.offline.train import OfflineLearner

    learner = OfflineLearner(base, LearnerConfig(lora_rank=8, learning_rate=1e-2))
    learner.train(plan_batches([([ONE], 0.0)] * 2, tokenizer), tokenizer)
    before = {name: weight.detach().clone() for name, weight in trainable(learner.model).items()}
    [example] = plan_batches([([ONE], 1.0)], tokenizer).sft
    learner.train(OfflinePlan("sft", sft=(example,)), tokenizer)
    moved = max(
        float((weight.detach() - before[name]).abs().max()) for name, weight in trainable(learner.model).items()
    )
    assert moved == pytest.approx(1e-2, rel=0.5)
