"""A trainer that is ordered to imitate batches of runs: a version of them all, which the next order goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from one_thread import one_thread as one_thread
from recorded_runs import recorded_group
from safetensors.torch import load_file
from tiny_model import make_base_model

from arttrace.formats.content_ids import ContentIds
from arttrace.formats.conversations import Conversations
from arttrace.loop.processes.trainer_process import OrderedBatch, OrderedGroup
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.commands.train import orders
from trainer.commands.train.order_lines import OrderResult, TrainOrder
from trainer.commands.train.orders import OrderedTrainer
from trainer.gateway.status import ServingFile
from trainer.offline import step as offline_step
from trainer.policies.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = {"method": "sft", "lora_rank": 8}


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("base"))


def example(question: str, *answers: str) -> list[SpanRow]:
    messages = [{"role": "user", "content": question}]
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And?"}]
    read = Conversations("examples", ContentIds()).records({"messages": messages[:-1] if answers else messages})
    return [one for one in read if isinstance(one, SpanRow)]


EXAMPLES = [example("A pear?", "3"), example("A plum?", "It is 4.", "As ever."), example("A fig?")]
PEAR, PLUM, FIG = (spans[0].trace_id for spans in EXAMPLES)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append([record for spans in EXAMPLES for record in spans])
        store.append(recorded_group("a", (0.0, 1.0, 0.5)))
        yield store


@pytest.fixture
def trainer(store: Store, base_model: Path) -> OrderedTrainer:
    return OrderedTrainer(store.data, store, Checkpoints(store.data.policies, "policy"), base_model)


def ordered(trainer: OrderedTrainer, *batches: tuple[tuple[str, ...], float], **settings: Any) -> OrderResult:
    given = tuple(OrderedBatch(ids, rate) for ids, rate in batches)
    return trainer.fill(TrainOrder(1, {**SETTINGS, **settings}, batches=given))


def test_a_version_is_made_of_batches_and_grpo_goes_on_from_it(store: Store, trainer: OrderedTrainer) -> None:
    """A run may be in several batches and in later orders, needs no reward, and is consumed once."""
    made = ordered(trainer, ((PEAR, PLUM), 1e-2), ((PEAR, FIG), 1e-2), ((PLUM,), 0.0))
    assert (made.error, [one["version"] for one in made.steps]) == ("", ["policy@1"])
    [step] = made.steps
    assert step["left_out"] == {"runs without an answer": 1}
    assert step["metrics"]["optimizer_steps"] == 3
    checkpoints = Checkpoints(store.data.policies, "policy")
    assert checkpoints.manifest(1).method == "sft"
    assert sorted(one.trajectory_id for one in checkpoints.manifest(1).consumed) == sorted((PEAR, PLUM))
    again = ordered(trainer, *[((PEAR, PLUM), 1e-2)] * 8)
    assert again.error == ""
    assert again.steps[0]["metrics"]["last_loss"] < step["metrics"]["first_loss"] - 0.5
    group = OrderedGroup("a", tuple(f"a-{n}" for n in range(3)))
    reinforced = trainer.fill(TrainOrder(2, {"lora_rank": 8, "max_logprob_difference": 1e9}, (group,)))
    assert [one["version"] for one in reinforced.steps] == ["policy@3"]
    two, three = (load_file(str(checkpoints.path(n) / "adapter_model.safetensors")) for n in (2, 3))
    moved = max(float((three[name] - two[name]).abs().max()) for name in two)
    assert 0 < moved < 1e-3, "AdamW moves a weight by about the learning rate of 5e-5"
    imitated = ordered(trainer, ((PEAR,), 1e-4))
    assert [one["version"] for one in imitated.steps] == ["policy@4"]
    state = torch.load(checkpoints.path(4) / "trainer_state.pt", weights_only=True)
    steps = next(iter(state["optimizer"]["state"].values()))["step"].item()
    assert (state["steps"], steps) == (4, 1), "AdamW begins anew where the loss before was another"


def test_the_model_is_loaded_once_for_orders_that_follow(
    trainer: OrderedTrainer, base_model: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many small orders come one after the other; each makes what a process of its own would make."""
    loaded: list[Path] = []
    load = offline_step.offline_learner
    monkeypatch.setattr(orders, "offline_learner", lambda *given: loaded.append(given[0]) or load(*given))
    chunks = [((PEAR, PLUM), 1e-2)], [((PLUM,), 5e-3), ((PEAR,), 1e-3)], [((PLUM, PEAR), 2e-3)]
    for chunk in chunks:
        assert ordered(trainer, *chunk).error == ""
    assert len(loaded) == 1
    with Store.open(DataDir(tmp_path / "other"), create=True) as other:
        other.append([record for spans in EXAMPLES for record in spans])
        alone = Checkpoints(other.data.policies, "policy")
        for chunk in chunks:
            assert ordered(OrderedTrainer(other.data, other, alone, base_model), *chunk).error == ""
    by_one = load_file(str(Checkpoints(store.data.policies, "policy").path(3) / "adapter_model.safetensors"))
    for name, weight in load_file(str(alone.path(3) / "adapter_model.safetensors")).items():
        torch.testing.assert_close(weight, by_one[name])


@pytest.mark.parametrize(
    ("batches", "settings", "said"),
    [
        ([((FIG,), 1e-3)], {}, "There is nothing to train on by SFT. Left out: 1 runs without an answer."),
        ([((PEAR, "unknown"), 1e-3)], {}, "1 of 2 runs not in the store, unknown for one."),
        ([((PEAR,), 1e-3)], {"learning_rate": 1e-3}, "learning_rate does nothing where batches are given."),
        ([((PEAR,), 1e-3)], {"epochs": 2}, "epochs does nothing where batches are given."),
        ([((PEAR,), 1e-3)], {"min_reward": 1.0}, "min_reward does nothing where batches are given."),
        ([((PEAR,), 1e-3)], {"method": "dpo"}, "Batches are imitated by sft, not by dpo."),
    ],
)
def test_what_cannot_be_imitated_is_said(
    trainer: OrderedTrainer, batches: list[Any], settings: dict[str, Any], said: str
) -> None:
    refused = ordered(trainer, *batches, **settings)
    assert (refused.error, refused.steps) == (said, [])


def test_reasoning_that_the_template_drops_is_counted_and_said(store: Store, base_model: Path) -> None:
    thought = {"role": "assistant", "content": "3", "reasoning_content": "A dozen is 36."}
    read = Conversations("examples", ContentIds()).records(
        {"messages": [{"role": "user", "content": "Pears?"}, thought]}
    )
    spans = [one for one in read if isinstance(one, SpanRow)]
    store.append(spans)
    said: list[str] = []
    checkpoints = Checkpoints(store.data.policies, "policy")
    trainer = OrderedTrainer(store.data, store, checkpoints, base_model, lambda one: said.append(one.said))
    [step] = ordered(trainer, ((PEAR, spans[0].trace_id), 1e-3), ((spans[0].trace_id,), 1e-3)).steps
    assert step["left_out"] == {"reasoning that the chat template drops": 1}
    assert "left out: reasoning that the chat template drops, of 1 answer" in said


def test_what_to_do_about_runs_that_are_not_in_the_store_is_said(trainer: OrderedTrainer) -> None:
    imitated = ordered(trainer, ((PEAR, "unknown"), 1e-3))
    compared = trainer.fill(TrainOrder(1, {"lora_rank": 8}, (OrderedGroup("a", ("a-0", "unknown")),)))
    assert imitated.error == compared.error == "1 of 2 runs not in the store, unknown for one."
    assert imitated.hint == compared.hint
    assert imitated.hint is not None
    assert "pruned" in imitated.hint
    assert "train_sft" in imitated.hint


def test_groups_and_batches_in_one_order_are_refused(trainer: OrderedTrainer) -> None:
    given = (OrderedGroup("a", ("a-0", "a-1")),), (OrderedBatch((PEAR,), 1e-3),)
    refused = trainer.fill(TrainOrder(1, SETTINGS, *given))
    assert (refused.error, refused.steps) == ("The order has both groups and batches.", [])
    assert refused.hint == "Order a step on the groups, and another on the batches."


def test_it_imitates_in_the_precision_that_is_served(
    trainer: OrderedTrainer, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = ServingFile("http://127.0.0.1:9", str(base_model), "policy", 1, "", dtype="bfloat16")
    monkeypatch.setattr(orders, "find_serving", lambda _: served)
    found: list[Any] = []
    monkeypatch.setattr(orders, "offline_learner", lambda _, config: found.append(config.dtype))
    monkeypatch.setattr(orders, "train_offline", lambda *given, **_: found.append(given[5].dtype))
    ordered(trainer, ((PEAR,), 1e-3))
    assert found == ["bfloat16", "bfloat16"]
