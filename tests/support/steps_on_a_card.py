"""Steps of a learner on the CPU and on a card of the host's: as JSON, for each case the numbers of either.
`python steps_on_a_card.py SCRATCH`."""

from __future__ import annotations

import json
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from host_card import put_in

SCRATCH = Path(sys.argv[1])
put_in(SCRATCH)  # before torch is imported

import torch  # noqa: E402
from recorded_runs import recorded_group  # noqa: E402
from tiny_model import VOCABULARY, make_base_model  # noqa: E402

from arttrace.records.sequence import TokenSequence  # noqa: E402
from arttrace.store import Store  # noqa: E402
from arttrace.system.paths import DataDir  # noqa: E402
from trainer.commands.train.orders import OrderedTrainer, TrainOrder  # noqa: E402
from trainer.learner import LearnerConfig, make_learner  # noqa: E402
from trainer.learner.interface import Sample  # noqa: E402
from trainer.learner.machine import card  # noqa: E402
from trainer.learner.packed import attention  # noqa: E402
from trainer.offline.plan import OfflinePlan  # noqa: E402
from trainer.offline.render import TrainingExample  # noqa: E402
from trainer.offline.step import load_tokenizer  # noqa: E402
from trainer.offline.train import OfflineLearner  # noqa: E402
from trainer.policies.checkpoints import Checkpoints  # noqa: E402

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "in float32": ("qwen3", {"dtype": "float32", "gradient_checkpointing": False}),
    "as it is chosen": ("qwen3", {}),
    "with layers kept": ("qwen3", {"gradient_checkpointing": None}),
    "with a bias": ("qwen2", {}),
    "with windows": ("gemma3_text", {}),
    "with capped scores": ("gemma2", {}),
    "with sinks and experts, in float32": ("gpt_oss", {"dtype": "float32"}),
    "several passes, corrected by trajectory": (
        "llama",
        {"loss": "grpo", "importance": "sequence_mask", "kl_weight": 0.1, "epochs": 2, "minibatches": 2},
    ),
    "in small micro-batches": ("qwen3", {"loss": "gspo", "importance": "token_truncate", "micro_batch_tokens": 64}),
    "by TRL": ("qwen3", {"engine": "trl", "loss": "dapo", "kl_weight": 0.1}),
}


def sequence(number: int) -> TokenSequence:
    drawn = torch.Generator().manual_seed(number)
    trained = (0,) * 8 + (1,) * 24
    return TokenSequence(
        trajectory_id=f"t{number}",
        revision="r",
        agent_id="root",
        token_ids=(1, 5, 9, 13, 17, 21, *torch.randint(3, VOCABULARY, (26,), generator=drawn).tolist()),
        trained=trained,
        logprobs=tuple(-5.0 if flag else None for flag in trained),
        versions=tuple(0 if flag else -1 for flag in trained),
        policy_versions=("p@1",),
        call_ids=("c",),
    )


def steps(base_model: Path, device: Any, settings: dict[str, Any], folder: Path) -> list[float]:
    """Of two steps, the second by a learner that goes on from what the first one saved."""
    checkpointing = settings.get("gradient_checkpointing", True)
    config = {"dtype": "bfloat16", "lora_rank": 8, "max_logprob_difference": 900.0, **settings}
    config |= {"device": device, "gradient_checkpointing": checkpointing}
    samples = [Sample((sequence(number),), (-0.5) ** number) for number in range(4)]
    learner: Any = make_learner(base_model, LearnerConfig(**config))
    drawn = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in sorted(learner.model.named_parameters()):
            if "lora_B" in name:
                parameter.copy_(0.05 * torch.randn(parameter.shape, generator=drawn))
    first = learner.step(samples, current_version="p@1")
    saved = folder / "p@1"
    saved.mkdir(parents=True)
    learner.save(saved)
    again: Any = make_learner(base_model, LearnerConfig(**config))
    again.load(saved)
    again.refit()
    second = again.step(samples, current_version="p@1")
    if device == "cuda" and checkpointing is None:
        assert again.layers.kept == again.model.config.num_hidden_layers, "the machine's memory is enough for toys"
    return [number for one in (first, second) for number in (one.loss, one.grad_norm, one.entropy)]


def offline(base_model: Path, device: Any, method: Any) -> list[float]:
    one, other = (TrainingExample(s.token_ids, tuple(map(bool, s.trained))) for s in (sequence(1), sequence(2)))
    config = LearnerConfig(lora_rank=8, device=device, dtype="bfloat16", gradient_checkpointing=True)
    plan = OfflinePlan("sft", sft=(one, other)) if method == "sft" else OfflinePlan("dpo", dpo=((one, other),))
    return [OfflineLearner(base_model, config).train(plan, load_tokenizer(base_model)).loss]


def by_order(base_model: Path, device: Any) -> list[float]:
    """Of an order; a card is not named, but found."""
    data = DataDir(base_model / f"by order on {device}")
    card.has_driver = lambda: True
    with Store.open(data, create=True) as store:
        store.append([record for key in "ab" for record in recorded_group(key, (0.0, 1.0, 0.5))])
        trainer = OrderedTrainer(data, store, Checkpoints(data.policies, "policy"), base_model)
        on = {"device": "cpu", "dtype": "bfloat16"} if device == "cpu" else {}
        answer = trainer.fill(TrainOrder(1, {"lora_rank": 8, "max_logprob_difference": 900.0, **on}))
    assert not answer.error, answer.error
    return [answer.steps[0]["metrics"][name] for name in ("loss", "grad_norm", "entropy")]


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Traced as on a card, and computed by its formula: what is not traced has no true gradient of a capped score where
    # layers are computed again.
    torch.compile = partial(torch.compile, backend="aot_eager")  # type: ignore[assignment]
    attention.LEAST_TOKENS = 1
    found = {}
    for name, (family, settings) in CASES.items():
        base_model = make_base_model(SCRATCH / name, family=family)
        found[name] = [steps(base_model, device, settings, SCRATCH / name / device) for device in ("cpu", "cuda")]
    for method in ("sft", "dpo"):
        found[method] = [offline(SCRATCH / "by TRL", device, method) for device in ("cpu", "cuda")]
    found["by order"] = [by_order(SCRATCH / "by TRL", device) for device in ("cpu", "cuda")]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
