"""Attention over a forest as one FlexAttention kernel: PyTorch's, compiled, with blocks of the mask that it may skip.

In depth-first order a key is seen by the queries from its own place to the end of its subtree, and by no others. So a
tile of the mask is empty, full or mixed by the least and the largest end among its keys, and the mask of a forest takes
no more than its tiles to make. It is made once for each window and used by all layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from arttrace.system.errors import TrainingError
from trainer.learner.packed.kernels.kind import Kind
from trainer.learner.packed.layout import Layout

TILE = 128
LEAST_TOKENS = TILE
"""Smaller forests are not worth compiling for."""
LEAST_HEAD = 16
"""Numbers of a head, of which the kernel takes no fewer: tensor cores multiply so many at a time."""
_MOST_COMPILED = 64
"""Variants of the kernel in one process: by kind, precision, with and without gradients, for one length and for any."""


def flex_forest_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, kind: Kind
) -> torch.Tensor:
    """`query` (1, H, N, D), `key` and `value` (1, G, N, D) with G dividing H; gives (1, H, N, D).

    Raises TrainingError where the kernel cannot be compiled.
    """
    mask = layout.kept(("flex", kind.window), lambda: block_mask(layout, kind.window))
    # Under autocast a norm or a rotation may have left some of the three in another precision.
    query, key = query.to(value.dtype), key.to(value.dtype)
    named: dict[str, Any] = {
        "block_mask": mask,
        "scale": kind.scale,
        "enable_gqa": query.shape[1] != key.shape[1],
        "score_mod": None,
    }
    if kind.softcap is not None:
        named["score_mod"] = _capped(query.new_full((query.shape[1],), kind.softcap, dtype=torch.float32))
    if kind.sinks is None:
        out: torch.Tensor = _call(query, key, value, named)
        return out
    out, aux = _call(query, key, value, {**named, "return_aux": AuxRequest(lse=True)})
    share = torch.sigmoid(aux.lse - kind.sinks.to(aux.lse.dtype).reshape(1, -1, 1))  # of all but the sink
    return out * share.unsqueeze(-1).to(out.dtype)


def block_mask(layout: Layout, window: int | None) -> BlockMask:
    """Which tiles of keys each tile of queries sees: none of it, all of it, or what `mask_mod` says."""
    tokens, device = layout.tokens, layout.exits.device
    tiles = -(-tokens // TILE)
    padding = tiles * TILE - tokens

    def tiled(values: torch.Tensor, last: int) -> torch.Tensor:
        """(tiles, TILE), filled up at the end."""
        return torch.nn.functional.pad(values, (0, padding), value=last).reshape(tiles, TILE)

    exits, depths = tiled(layout.exits, -1), tiled(layout.positions, 0)
    first = torch.arange(tiles, device=device) * TILE
    last = (first + TILE - 1).clamp(max=tokens - 1)
    earlier = torch.arange(tiles, device=device) < torch.arange(tiles, device=device)[:, None]
    seen = earlier & (exits.amax(1) >= first[:, None])
    # Keys behind the end are in the last tile only, which is no earlier one.
    full = earlier & (exits.amin(1) >= last[:, None])
    if window is not None:
        shallow, deep = tiled(layout.positions, 1 << 30).amin(1), depths.amax(1)
        seen &= shallow[:, None] - deep < window
        full &= deep[:, None] - depths.amin(1) < window
    mixed = (seen & ~full) | torch.eye(tiles, dtype=torch.bool, device=device)
    flat_exits, flat_depths = exits.reshape(-1).to(torch.int32), depths.reshape(-1).to(torch.int32)
    return BlockMask.from_kv_blocks(
        *_listed(mixed),
        *_listed(full),
        BLOCK_SIZE=TILE,
        mask_mod=_descends(flat_exits) if window is None else _descends_within(flat_exits, flat_depths, window),
        seq_lengths=(tokens, tokens),
    )


def _listed(tiles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many tiles of each row are set, and their numbers in order, as BlockMask has them: int32 of shape (1, 1, T)
    and (1, 1, T, T)."""
    order = torch.argsort((~tiles).to(torch.int8), dim=-1, stable=True)
    return tiles.sum(-1).to(torch.int32)[None, None], order.to(torch.int32)[None, None].contiguous()


def _descends(exits: torch.Tensor) -> Callable[..., torch.Tensor]:
    def mask_mod(_batch: Any, _head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query <= exits[key])

    return mask_mod


def _descends_within(exits: torch.Tensor, depths: torch.Tensor, window: int) -> Callable[..., torch.Tensor]:
    beyond = depths - window  # a tensor, as the caps below: the kernel's compiler takes no number that may change

    def mask_mod(_batch: Any, _head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query <= exits[key]) & (depths[key] > beyond[query])

    return mask_mod


def _capped(caps: torch.Tensor) -> Callable[..., torch.Tensor]:
    def score_mod(score: torch.Tensor, _batch: Any, head: torch.Tensor, *_: Any) -> torch.Tensor:
        return caps[head] * torch.tanh(score / caps[head])

    return score_mod


@functools.lru_cache
def compiled() -> Callable[..., Any]:
    """FlexAttention, compiled for the first length and then for any; as one graph, since what is beyond the limit of
    compiled variants would otherwise be computed with all scores in memory, and without a word."""
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    setattr(torch._dynamo.config, limit, max(getattr(torch._dynamo.config, limit), _MOST_COMPILED))
    fused: Callable[..., Any] = torch.compile(flex_attention, fullgraph=True)
    return fused


def _call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, named: dict[str, Any]) -> Any:
    if query.device.type == "cpu":
        return flex_attention(query, key, value, **named)
    try:
        return compiled()(query, key, value, **named)
    except torch._dynamo.exc.TorchDynamoException as error:
        raise TrainingError(
            f"The attention kernel cannot be compiled on this machine: {error}",
            "Triton needs a C compiler (gcc) and a GPU that it knows. --engine trl does without the kernel.",
        ) from error
