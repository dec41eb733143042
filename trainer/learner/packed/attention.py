"""Attention over a forest, registered with transformers as `arttrace_forest`: any model on its interface can use it.

A query sees the keys of its own row that are not behind it: those that come before it and whose subtree still holds
it. Which kernel computes that:

- On a CPU `joined.py`, block by block, the oracle of the others. What it does not compute (a window shorter than a row,
  soft-capped scores, sinks) is computed by `blockwise.py` from matrix products.
- On CUDA `flex.py`: one FlexAttention kernel over the whole forest, in every precision. `varlen.py` is the other way,
  FlashAttention over the gathered keys of every path; see benchmarks/gpu.py for what each takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from arttrace.system.errors import TrainingError
from trainer.learner.packed.kernels.blockwise import blockwise_attention
from trainer.learner.packed.kernels.flex import LEAST_HEAD, LEAST_TOKENS, flex_forest_attention
from trainer.learner.packed.kernels.joined import joined_attention
from trainer.learner.packed.kernels.kind import Kind
from trainer.learner.packed.kernels.varlen import varlen_forest_attention
from trainer.learner.packed.layout import Layout

NAME = "arttrace_forest"
Kernel = Literal["joined", "blockwise", "flex", "varlen"]


class Visit:
    """One forest while it goes through the model; `layers` counts how often attention was asked."""

    def __init__(self, layout: Layout, kernel: Kernel) -> None:
        self.layout = layout
        self.kernel = kernel
        self.layers = 0


# Not a context variable: on CUDA, layers that are computed again run in autograd's own threads.
_visits: list[Visit] = []


def usual_kernel(device: str) -> Kernel:
    """The kernel for a device where nobody chose one."""
    return "flex" if device == "cuda" else "joined"


@contextmanager
def visiting(layout: Layout, kernel: Kernel) -> Iterator[Visit]:
    """Attention inside the `with` is that of a forest, whose tokens are the only row of the batch.

    One learner of a process at a time: what models do in other threads meanwhile would follow the same forest.
    """
    visit = Visit(layout, kernel)
    _visits.append(visit)
    try:
        yield visit
    finally:
        _visits.pop()


def forest_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers asks for it: `query` (B, H, N, D), `key` and `value` (B, G, N, D) with G dividing H;
    gives (B, N, H, D). Outside of `visiting` it is plain causal attention over unpadded rows.

    Raises TrainingError for a kind of attention that it does not compute.
    """
    for name in ("position_bias", "cu_seq_lens_q"):
        if kwargs.get(name) is not None:
            raise _unsupported(module, f"attention with {name}")
    if kwargs.get("dropout"):
        raise _unsupported(module, "attention with dropout")
    if kwargs.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise _unsupported(module, "attention that looks ahead")
    visit = _visits[-1] if _visits else None
    longest = query.shape[2] if visit is None else visit.layout.longest
    kind = Kind(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=None if sliding_window is None or sliding_window >= longest else sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    if visit is None:
        if kind.beyond_plain:
            raise _unsupported(module, f"attention with {kind.beyond_plain} outside of a forest")
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=kind.scale, enable_gqa=True)
    else:
        visit.layers += 1
        out = _compute(module, query, key, value, visit, kind)
    return out.transpose(1, 2).contiguous(), None


def _compute(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visit: Visit, kind: Kind
) -> torch.Tensor:
    """By the visit's kernel, or block by block what that does not compute."""
    kernel, layout = visit.kernel, visit.layout
    if kernel == "varlen":
        if lacking := kind.beyond_windows or (query.dtype == torch.float32 and "float32") or "":
            raise _unsupported(module, f"attention with {lacking} over gathered paths")
        return varlen_forest_attention(query, key, value, layout, kind)
    if kernel == "flex" and layout.tokens >= LEAST_TOKENS and query.shape[-1] >= LEAST_HEAD:
        return flex_forest_attention(query, key, value, layout, kind)
    if kernel == "joined" and not kind.beyond_plain:
        return joined_attention(query, key, value, layout.blocks, kind.scale)
    return blockwise_attention(query, key, value, layout.blocks, kind)


def _unsupported(module: torch.nn.Module, what: str) -> TrainingError:
    return TrainingError(
        f"The packed engine does not compute {what} (in {type(module).__name__}).", "Train with --engine trl."
    )


AttentionInterface.register(NAME, forest_attention)
