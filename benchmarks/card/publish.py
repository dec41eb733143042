"""Section b: how long a new version takes from the end of a step to its first token, by the size of its adapter.

"write" is the adapter's way into the page cache, "identify" what the gateway does with it before the engine loads it;
"load" to "first token" need vLLM. An adapter beside a base model in bfloat16 is written so; its float32 weights
are in the state. "in front" is what stood before the engine while the whole version, optimizer state included, was
synced to disk first; "behind" is what of that is now done while the new version answers. "bare" is what the machine
takes to write as many bytes, which lie in its memory as they are, over a file that is there: no writing is faster.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.card.frame import Config, Table
from benchmarks.card.shapes import QWEN3_06B, QWEN3_4B, TOY, Shape, add_tokenizer, make_model

_WITH_VLLM_S = 120.0
"""Seconds that a row may take, most of them vLLM's start; the next one as many as the longest has taken."""
_STEP_S = 1.5
"""A step takes seconds, in which room is made for the adapter that it ends with."""
_PART = 4 << 20
COLUMNS = (
    "adapter",
    "MiB",
    "bare ms",
    "write ms",
    "identify ms",
    "load ms",
    "first token ms",
    "in front ms",
    "behind ms",
)
SERVED_TOY = replace(TOY, head_size=32)
"""vLLM's CPU build knows no smaller heads."""
MODULES = (
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)


def run(config: Config) -> Table:
    """Medians over some versions, adapter by adapter, and behind a stroke the least."""
    table = Table(f"Publishing a version; {config.machine()}", COLUMNS, config.out / "b.txt")
    plan = [(QWEN3_4B, 16), (QWEN3_4B, 64), (QWEN3_06B, 16)]
    if config.toy:  # of the others an adapter's files alone: no model is loaded
        plan.insert(0, (SERVED_TOY, 8))
    longest = _WITH_VLLM_S
    for shape, rank in plan[:1] if config.quick else plan:
        if config.left_s < longest and not config.toy:
            table.note(f"not run for want of time: {shape.name}, rank {rank}")
            continue
        name = f"{shape.name}, rank {rank}"
        served, began = 0, time.monotonic()
        with table.attempt(f"{name}, with vLLM"), _engine(config, table, shape, rank) as publish:
            served = 1
            _measure(config, table, shape, rank, publish)
        if not served:
            with table.attempt(name):
                _measure(config, table, shape, rank, None)
        longest = max(longest, time.monotonic() - began)
    return table


Publish = Callable[[int, Path], tuple[float, float]]
"""Publishes a version; milliseconds of its loading, and from the order to the first token."""


class Holder:
    """What a learner holds, for a checkpoint: a LoRA on all linear layers, and Adam's moments."""

    def __init__(self, shape: Shape, rank: int, device: str) -> None:
        import torch

        self.rank = rank
        self.dtype = torch.float32 if shape == SERVED_TOY else torch.bfloat16
        self.weights: dict[str, torch.Tensor] = {}
        for layer in range(shape.layers):
            for module, (inner, outer) in zip(MODULES, shape.layer_weights(), strict=True):
                name = f"base_model.model.model.layers.{layer}.{module}"
                self.weights[f"{name}.lora_A.weight"] = 0.02 * torch.randn(rank, inner, device=device)
                self.weights[f"{name}.lora_B.weight"] = 0.02 * torch.randn(outer, rank, device=device)
        self.moments = [torch.rand_like(tensor) for tensor in self.weights.values() for _ in range(2)]

    @property
    def mib(self) -> float:
        """Of the adapter as it is written."""
        return sum(tensor.numel() for tensor in self.weights.values()) * self.dtype.itemsize / (1 << 20)

    def step(self) -> None:
        """Every weight moves."""
        for tensor in self.weights.values():
            tensor.mul_(1.01)

    def save_adapter(self, directory: Path) -> None:
        """As a learner does."""
        from trainer.policies.tensor_file import write_tensors

        settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": self.rank, "lora_alpha": 2 * self.rank}
        settings |= {"target_modules": [name.rpartition(".")[2] for name in MODULES], "bias": "none"}
        (directory / "adapter_config.json").write_text(json.dumps(settings))
        write_tensors(directory / "adapter_model.safetensors", self.weights, self.dtype)

    def save_rest(self, directory: Path) -> None:
        """As a learner does."""
        import torch

        torch.save((self.moments, self.weights), directory / "trainer_state.pt")


def _measure(config: Config, table: Table, shape: Shape, rank: int, publish: Publish | None) -> None:
    from arttrace.records.policy import PolicyStep
    from trainer.gateway.publish import read_adapter
    from trainer.policies.checkpoints import Checkpoints

    holder = Holder(shape, rank, config.device)
    checkpoints = Checkpoints(config.scratch / f"{shape.name}-{rank}", "policy")
    found: dict[str, list[float]] = {name: [] for name in COLUMNS[2:]}
    for _ in range(3 if config.quick else 6):
        holder.step()
        time.sleep(0 if shape == SERVED_TOY else _STEP_S)
        bare = _bare_ms(config.scratch / "bare.bin", int(holder.mib * (1 << 20)))
        began = time.perf_counter()
        step, path = checkpoints.hand_over(holder.save_adapter)
        written = time.perf_counter()
        read_adapter(path)
        identified = time.perf_counter()
        load, first = publish(step, path) if publish else (float("nan"), float("nan"))
        handed = time.perf_counter()
        checkpoints.complete(step, holder.save_rest, PolicyStep("policy", step, str(path)))
        behind = 1000 * (time.perf_counter() - handed)
        write, identify = 1000 * (written - began), 1000 * (identified - written)
        for name, value in zip(
            found, (bare, write, identify, load, write + first, write + behind, behind), strict=True
        ):
            found[name].append(value)
    cells = ["-" if any(map(math.isnan, values)) else _median_and_least(values) for values in found.values()]
    table.add(f"{shape.name}, rank {rank}", f"{holder.mib:.1f}", *cells)


def _bare_ms(path: Path, size: int) -> float:
    """Of writing over a file of so many bytes."""
    part = memoryview(bytearray(_PART))
    with path.open("wb", buffering=0) as file:
        for _ in range(2):  # a new file first
            began = time.perf_counter()
            file.seek(0)
            for left in range(size, 0, -_PART):
                file.write(part[: min(left, _PART)])
    path.unlink()
    return 1000 * (time.perf_counter() - began)


def _median_and_least(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f}/{min(values):.1f}"


@contextmanager
def _engine(config: Config, table: Table, shape: Shape, rank: int) -> Iterator[Publish | None]:
    """A vLLM behind the gateway; None where there is none, and on a CPU for all but the toy, with --quick for that
    too."""
    without = "" if importlib.util.find_spec("vllm") else "without vLLM"
    if config.toy and (config.quick or shape != SERVED_TOY):
        without = "without vLLM, on a CPU"
    if without:
        table.note(without)
        yield None
        return
    import httpx

    from arttrace.system.paths import DataDir
    from trainer.serving import start_serving

    base_model = make_model(shape, config.models / shape.name, config.device)
    add_tokenizer(base_model, config.scratch, shape.vocabulary)
    options = [
        "--max-model-len=2048",
        "--vllm-arg=--max-num-seqs=16",
        f"--vllm-arg=--max-lora-rank={max(16, rank)}",
        "--engine-memory-share=0.25",
    ]
    data = DataDir(config.scratch / f"data-{rank}")
    with start_serving(data, base_model, options=options, timeout_s=config.left_s) as serving:
        client = serving.client()

        def publish(step: int, path: Path) -> tuple[float, float]:
            began = time.perf_counter()
            report = client.publish(step, path)
            body: dict[str, Any] = {"model": "policy:latest", "prompt": [5, 6, 7], "max_tokens": 1}
            httpx.post(f"{serving.url}/v1/completions", json=body, timeout=60).raise_for_status()
            return 1000 * report.load_seconds, 1000 * (time.perf_counter() - began)

        yield publish
