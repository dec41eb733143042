"""What one step of the learner reads and writes beside matrix products and attention, operation by operation.

On a GPU such passes over memory, and not arithmetic, are most of what a layer waits for; they can be counted without
one. One layer of Qwen3-4B's shape in bfloat16 with a LoRA of rank 16, computed again in the backward pass as on a GPU,
takes a step on 1,187 tokens. An operation reads each tensor that it is given and writes each that it gives; attention
and PyTorch's rms_norm, which are one kernel on CUDA and many operations here, count as one. Printed are kilobytes a
token by operation and precision, and the arithmetic of all matrix products.

    python benchmarks/traffic.py [--without norm_in_one_kernel] [--without rotate_by_halves]
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import trainer.learner  # noqa: E402, F401  (sets how threads wait, before torch is loaded)
from benchmarks.card.shapes import QWEN3_4B, Shape, make_model  # noqa: E402
from benchmarks.learner_cases import VOCABULARY, samples_of, synthetic  # noqa: E402
from trainer.learner import make_learner  # noqa: E402
from trainer.learner.config import LearnerConfig  # noqa: E402
from trainer.learner.packed import engine  # noqa: E402
from trainer.learner.packed.kernels import joined  # noqa: E402

PRODUCTS = {"mm", "addmm", "addmm_", "bmm"}
MOVES_NOTHING = {
    *("view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze"),
    *("detach", "alias", "as_strided", "split", "unbind", "_reshape_alias", "split_with_sizes", "lift_fresh"),
    *("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "_local_scalar_dense"),
}
ONLY_WRITES = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_full", "zero_", "fill_"}


def size(tensor: torch.Tensor) -> int:
    """Bytes of it in memory: what is repeated by a stride of zero is there once."""
    there = math.prod(
        extent for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or extent < 2
    )
    return there * tensor.element_size()


class Traffic(TorchDispatchMode):
    """Adds up bytes by operation and precisions."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.operations = 0
        """Of matrix products: a multiplication and an addition are two."""
        self.paused = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if self.paused or name in MOVES_NOTHING:
            return out
        given = [x for x in tree_leaves((args, {**(kwargs or {}), "out": None})) if isinstance(x, torch.Tensor)]
        written = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if name in PRODUCTS:
            self.operations += 2 * written[0].numel() * given[-1].shape[0]
        if name == "copy_":
            given = given[1:]
        elif name in ONLY_WRITES:
            given = []
        elif name in ("embedding", "index", "index_select", "gather"):
            given = written
        self.count(name, given, written)
        return out

    def count(self, name: str, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """One call of an operation."""
        key = name, "/".join(sorted({str(x.dtype).removeprefix("torch.") for x in [*read, *written]}))
        self.bytes[key] += sum(map(size, [*read, *written]))
        self.calls[key] += 1

    def as_one(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted as one operation on what it is given and gives; a backward pass reads what its
        gradients are of, too."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.paused, before = True, self.paused
            try:
                out = function(*args, **kwargs)
            finally:
                self.paused = before
            leaves = tree_leaves((args, out, out if name.endswith("_backward") else ()))
            if not before:
                self.count(name, [x for x in leaves if isinstance(x, torch.Tensor)], [])
            return out

        return counted

    @property
    def beside(self) -> int:
        """Bytes of what is neither a matrix product nor attention."""
        aside = {*PRODUCTS, "attention", "attention_backward"}
        return sum(found for (name, _), found in self.bytes.items() if name not in aside)


class _CudaNorm(torch.autograd.Function):
    """rms_norm as CUDA's kernels compute it: forward and backward in one each, keeping the input and, of each row, one
    number in float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shape: Any, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        exact = x.float()
        inverse = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, inverse, weight)
        scaled = exact * inverse
        return (scaled if weight is None else scaled * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, inverse, weight = ctx.saved_tensors
        scaled = x.float() * inverse
        gradient = gradients[0].float() if weight is None else gradients[0].float() * weight
        inner = (gradient * scaled).mean(-1, keepdim=True)
        return ((gradient - scaled * inner) * inverse).to(x.dtype), None, None, None


@contextmanager
def as_on_cuda(traffic: Traffic) -> Iterator[None]:
    """Inside the block attention and rms_norm are one kernel forward and one backward, as they are there."""
    kernels = (("attention", joined._JoinedAttention), ("rms_norm", _CudaNorm))
    kept = [(kernel, kernel.forward, kernel.backward) for _, kernel in kernels]
    usual = torch.nn.functional.rms_norm
    for name, kernel in kernels:
        kernel.forward = staticmethod(traffic.as_one(name, kernel.forward))
        kernel.backward = staticmethod(traffic.as_one(f"{name}_backward", kernel.backward))
    torch.nn.functional.rms_norm = lambda x, shape, weight=None, eps=None: _CudaNorm.apply(x, shape, weight, eps)
    try:
        with traffic:
            yield
    finally:
        torch.nn.functional.rms_norm = usual
        for kernel, forward, backward in kept:
            kernel.forward, kernel.backward = staticmethod(forward), staticmethod(backward)


def step_of(shape: Shape, without: Sequence[str]) -> tuple[Traffic, int]:
    """What a step moves, and its tokens; `without` names functions of the engine's that are left out."""
    left_out = {name: getattr(engine, name) for name in without}
    for name in without:
        setattr(engine, name, lambda model: None)
    config = LearnerConfig(
        dtype="bfloat16",
        gradient_checkpointing=True,
        micro_batch_tokens=16_384,
        max_logprob_difference=1e9,
        max_grad_norm=1e9,
    )
    try:
        with tempfile.TemporaryDirectory() as scratch:
            learner = make_learner(make_model(shape, Path(scratch) / shape.name, "cpu"), config)
            traffic = Traffic()
            with as_on_cuda(traffic):
                return traffic, learner.step(samples_of(synthetic(4, 256, (2, 3)), merged=True)).forwarded_tokens
    finally:
        for name, function in left_out.items():
            setattr(engine, name, function)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="a function of the engine's")
    without = parser.parse_args().without
    torch.set_num_threads(1)
    shape = dataclasses.replace(QWEN3_4B, layers=1, vocabulary=VOCABULARY, name="one-layer")
    traffic, tokens = step_of(shape, without)
    print(f"{tokens:.0f} tokens; operation, precision, calls, kB a token")
    for (name, dtypes), found in traffic.bytes.most_common():
        if found >= 10_000 * tokens:
            print(f"{name:<24}{dtypes:<20}{traffic.calls[name, dtypes]:>4}{found / tokens / 1e3:>9.1f}")
    print(f"beside products and attention: {traffic.beside / tokens / 1e3:.0f} kB a token")
    print(f"products: {traffic.operations / tokens / 1e6:.0f} million operations a token")


if __name__ == "__main__":
    main()
