"""One row of section a: a step in one layout, its time, its memory and its gradients.

    python -m benchmarks.card.learner_row '{"layout": "tree", ...}'

prints its figures as one line of JSON. Each row has a process of its own: Unsloth changes what is imported after it,
and a row that fails on the device takes none of the others with it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainer.learner  # noqa: F401  (sets how threads wait, before torch is loaded)
from benchmarks.card.bundle import remedy
from benchmarks.card.profiled import compiled_since, profile
from benchmarks.card.shapes import SHAPES, drawing_weights
from benchmarks.learner_cases import Call, samples_of, synthetic, tau_bench

SEED = 7
_WARM_S = 15.0
"""A step that takes longer and compiles nothing is measured once: what a first step does besides is little of it."""
KERNELS: dict[str, Any] = {"tree, varlen": "varlen", "tree, block by block": "blockwise"}
"""Layouts that differ in the kernel of attention alone."""
CHECKPOINTING = {"tree, layers kept": False, "tree, layers again": True}
"""Layouts that say by themselves whether layers are computed again."""
LAYERS = {
    "add_within_products": "tree, PEFT's LoRA",
    "norm_in_one_kernel": "tree, plain norms",
    "rotate_by_halves": "tree, plain norms",
}
"""What the packed engine does to layers, and the layout in which it does not."""
NEEDS = {
    "tree, Liger": ("liger_kernel",),
    "stock TRL": ("trl", "datasets"),
    "Unsloth": ("unsloth", "trl", "datasets"),
}
BUNDLE_OF = {"liger_kernel": "liger", "trl": "trl", "datasets": "trl", "unsloth": "unsloth"}
LAYOUTS = {
    "tree": "packed engine as it is: the prefix tree; on CUDA by FlexAttention",
    "tree, varlen": "the same by FlashAttention of many lengths over gathered paths",
    "tree, compiled": "the tree, norms, rotary positions and feed-forward parts compiled by PyTorch",
    "tree, Liger": "the tree, those parts Liger's kernels",
    "tree, block by block": "the same by PyTorch's attention for each block",
    "tree, PEFT's LoRA": "the tree, a LoRA's product scaled and added in passes of their own, as PEFT does",
    "tree, plain norms": "the tree, norms and rotary positions operation by operation, as transformers does",
    "tree, layers kept": "the tree, no layer computed again in the backward pass, where memory is enough for that",
    "tree, layers again": "the tree, every layer computed again in the backward pass, whatever memory there is",
    "packed": "packed engine, merged sequences end to end, nothing shared",
    "row per call": "every call a padded row of its own, PyTorch's attention, log-probabilities at targets only",
    "stock TRL": "TRL's GRPOTrainer as it is: merged sequences, padded, log-probabilities at every position",
    "TRL's tree": "TRL 1.16's own packed tree row, PyTorch's attention in place of its kernel from a hub",
    "Unsloth": "TRL engine, merged sequences, padded, on a model that Unsloth loaded, with its kernels",
}


@dataclass(frozen=True, slots=True)
class Row:
    """What to measure: `case` is ("synthetic", prefix, least turns, most turns) or ("tau-bench", groups, 0, 0).
    `gradients` is the file that they go to."""

    layout: str
    shape: str
    base: str
    case: tuple[str, int, int, int]
    device: str
    dtype: str
    budget: int
    gradients: str
    tau_bench: str | None = None
    steps: int = 3
    """At most: two where the second compiles nothing."""
    checkpointing: bool | None = True
    """None: layers are kept where the free memory has room for them, as for whoever chooses nothing."""
    profile: str | None = None
    """Where a report on one more step under PyTorch's profiler goes."""


def calls_of(row: Row) -> list[list[Call]]:
    """The runs of the row's case."""
    kind, size, least, most = row.case
    if kind == "synthetic":
        return synthetic(8, size, (least, most))
    assert row.tau_bench is not None
    return [run for group in tau_bench(Path(row.tau_bench), size) for run in group]


def measure(row: Row) -> dict[str, Any]:
    """The figures of a row: of the fastest of its steps, none of which moves the weights."""
    import torch

    from trainer.learner.packed import engine, forest

    if row.device == "cpu":
        torch.set_num_threads(1)
    elif row.dtype == "float32":
        torch.set_float32_matmul_precision("highest")
    replaced = {name: getattr(engine, name) for name in LAYERS}
    shared_length = forest.shared_length
    if row.layout == "packed":
        forest.shared_length = lambda left, right: 0
    for name, layout in LAYERS.items():
        if row.layout == layout:
            setattr(engine, name, lambda model: None)
    try:
        return _measure(row)
    finally:
        forest.shared_length = shared_length
        for name, function in replaced.items():
            setattr(engine, name, function)


def _measure(row: Row) -> dict[str, Any]:
    import torch

    learner = _learner(row)
    gradients: dict[str, Any] = {}
    # In the first step alone: copying them off a card takes a tenth of a fast step.
    copying = learner.optimizer.register_step_pre_hook(lambda *_: gradients.update(_gradients(learner.model)))
    _draw_lora(learner.model)
    samples = samples_of(calls_of(row), merged=row.layout != "row per call")
    step = _step_of(row, learner, samples)
    seconds, graphs, metrics = [], [], None
    for _ in range(row.steps):
        _reset_peak(row.device)
        compiled = compiled_since()
        started = _now(row.device)
        metrics = step()
        seconds.append(_now(row.device) - started)
        graphs.append(compiled_since(compiled))
        copying.remove()
        if not graphs[-1] and (len(seconds) > 1 or seconds[-1] > _WARM_S):
            break
    newly, best = min(list(zip(graphs, seconds, strict=True))[1:] or [(graphs[0], seconds[0])])
    work = _work(row, samples)
    operations = SHAPES[row.shape].step_operations(rank=learner.config.rank, **work)
    torch.save(gradients, row.gradients)
    peak = _peak(row.device)
    if row.profile is not None:
        Path(row.profile).write_text(f"{row.layout}, {row.shape}: {profile(step, row.device)}")
    return {
        "seconds": best,
        "measured": len(seconds),
        "first_s": seconds[0],
        "loss": metrics["loss"],
        "trained": metrics["trained"],
        "operations": operations,
        "peak_gib": peak / 2**30,
        "kept": _kept(row, learner),
        "compiled": newly,
        **work,
    }


def _learner(row: Row) -> Any:
    from trainer.learner import make_learner
    from trainer.learner.config import LearnerConfig

    if row.layout == "stock TRL":
        from benchmarks.learner import take_trl_as_it_is

        take_trl_as_it_is()
    config = LearnerConfig(
        engine="trl" if row.layout in ("stock TRL", "Unsloth") else "packed",
        loader="unsloth" if row.layout == "Unsloth" else "transformers",
        learning_rate=1e-30,  # each step finds the weights that the one before it found
        micro_batch_tokens=row.budget,
        max_logprob_difference=1e9,
        max_grad_norm=1e9,
        device=row.device,
        dtype=row.dtype,
        gradient_checkpointing=CHECKPOINTING.get(row.layout, row.checkpointing),
        torch_compile=row.layout == "tree, compiled",
        use_liger_kernel=row.layout == "tree, Liger",
    )
    with drawing_weights(SHAPES[row.shape], row.device):
        learner = make_learner(Path(row.base), config)
    if row.layout in KERNELS:
        learner.kernel = KERNELS[row.layout]
    return learner


def _gradients(model: Any) -> dict[str, Any]:
    """By name, as they are before the optimizer takes them."""
    return {name: p.grad.float().cpu().clone() for name, p in model.named_parameters() if p.grad is not None}


def _kept(row: Row, learner: Any) -> int | None:
    """How many layers the backward pass did not compute again; None where the engine does not say."""
    if not learner.config.gradient_checkpointing:
        return SHAPES[row.shape].layers
    layers = getattr(learner, "layers", None)
    return None if layers is None else int(layers.kept)


def _draw_lora(model: Any) -> None:
    """Weights for B, which begins as zero and hides the gradient of A: the same for every layout and device."""
    import torch

    drawn = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_A" in name or "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=drawn) * 0.02)


def _step_of(row: Row, learner: Any, samples: list[Any]) -> Callable[[], dict[str, float]]:
    if row.layout == "row per call":
        return lambda: _padded_step(learner, samples)
    if row.layout == "TRL's tree":
        return lambda: _tree_step(learner, samples)

    def step() -> dict[str, float]:
        metrics = learner.step(samples)
        return {"loss": metrics.loss, "trained": metrics.trained_tokens}

    return step


def _padded_step(learner: Any, samples: list[Any]) -> dict[str, float]:
    """What a plain trainer does with padded rows; the loss is the packed engine's."""
    from trainer.learner.packed.head import log_probabilities
    from trainer.learner.packed.losses import Before, loss_terms
    from trainer.learner.policy_model import in_its_precision
    from trainer.learner.samples import plan_step

    learner.model.get_base_model().set_attn_implementation("sdpa")
    plan = plan_step(samples, learner.config)
    loss = 0.0
    for batch in _padded(plan.rows, learner):
        targets = batch.weights > 0
        learner.layers.choose(batch.token_ids.numel())
        with in_its_precision(learner.config):
            hidden = learner._decoder(input_ids=batch.token_ids[:, :-1], use_cache=False).last_hidden_state
        logps, _ = log_probabilities(
            learner._head, hidden[targets], batch.token_ids[:, 1:][targets], batch.temperatures[targets]
        )
        captured = batch.logprobs[targets]
        advantages = batch.advantages.expand_as(targets)[targets]
        terms = loss_terms(learner.config, logps, advantages, Before(sampled=captured, old=captured))
        part = (batch.weights[targets] * terms.loss).sum() / plan.normaliser
        part.backward()
        loss += float(part.detach())
    learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)
    return {"loss": loss, "trained": plan.trained_tokens}


def _tree_step(learner: Any, samples: list[Any]) -> dict[str, float]:
    """TRL's packing is made anew at each step, as it is in its collator."""
    from benchmarks.card.trl_tree import TreeRows
    from trainer.learner.samples import plan_step

    plan = plan_step(samples, learner.config)
    loss = TreeRows(plan.rows, learner.config.micro_batch_tokens).step(learner, plan.normaliser)
    return {"loss": loss, "trained": plan.trained_tokens}


def _padded(rows: Any, learner: Any) -> Iterator[Any]:
    import torch

    from trainer.learner.samples import pad_rows, split_rows

    for part in split_rows(rows, learner.config.micro_batch_tokens):
        yield pad_rows(part, current_version=None, device=learner.config.device, dtype=torch.float32)


def _work(row: Row, samples: list[Any]) -> dict[str, int]:
    """Tokens that the layout sends through the model, pairs of a token and one it attends to, and predictions."""
    import torch

    from trainer.learner.config import LearnerConfig
    from trainer.learner.packed.forest import plant, split_forests
    from trainer.learner.samples import plan_step, split_rows

    rows = plan_step(samples, LearnerConfig()).rows
    if row.layout in ("row per call", "stock TRL", "Unsloth"):
        shapes = [(len(batch), len(batch[0].token_ids)) for batch in split_rows(rows, row.budget)]
        tokens = sum(count * length for count, length in shapes)
        targets = sum(sum(one.targets) for one in rows)
        pairs = sum(count * length * (length + 1) // 2 for count, length in shapes)
        return {"tokens": tokens, "pairs": pairs, "predictions": tokens if row.layout == "stock TRL" else targets}
    if row.layout == "TRL's tree":
        from benchmarks.card.trl_tree import TreeRows

        return TreeRows(rows, row.budget).work()
    forests = [
        plant(run, current_version=None, device="cpu", dtype=torch.float32) for run in split_forests(rows, row.budget)
    ]
    return {
        "tokens": sum(one.token_ids.numel() for one in forests),
        "pairs": sum(int((one.layout.positions + 1).sum()) for one in forests),
        "predictions": sum(one.predict_at.numel() for one in forests),
    }


def _now(device: str) -> float:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _reset_peak(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak(device: str) -> int:
    """Bytes: of the device with the model on it, or of the whole process."""
    import torch

    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _absent(layout: str) -> list[str]:
    """The bundles that a layout lacks."""
    if layout == "TRL's tree":
        from benchmarks.card import trl_tree

        return [] if trl_tree.file() else ["trl-tree"]
    found = [(name, importlib.util.find_spec(name)) for name in NEEDS.get(layout, ())]
    return [BUNDLE_OF[name] for name, spec in found if spec is None or spec.origin is None]


def main() -> None:
    """Measures the row that the argument describes."""
    given = json.loads(sys.argv[1])
    row = Row(**{**given, "case": tuple(given["case"])})
    if absent := _absent(row.layout):
        print(json.dumps({"missing": "; ".join(dict.fromkeys(map(remedy, absent)))}))
    elif row.layout == "tree, Liger" and row.device == "cpu":
        print(json.dumps({"missing": "its kernels need a CUDA device"}))
    else:
        print(json.dumps(measure(row)))


def as_json(row: Row) -> str:
    """The argument of `main`."""
    return json.dumps(dataclasses.asdict(row))


if __name__ == "__main__":
    main()
