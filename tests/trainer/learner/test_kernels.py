"""Every kernel of attention over a forest, and every kind of attention, against each row on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from token_rows import branching_rows

from arttrace.system.errors import TrainingError
from trainer.learner.packed.attention import forest_attention, visiting
from trainer.learner.packed.forest import plant, split_forests
from trainer.learner.packed.kernels import flex
from trainer.learner.packed.kernels.kind import Kind
from trainer.learner.packed.layout import Layout, single_row

Attend = Callable[..., torch.Tensor]


def layout_of(seed: int, scale: int = 1) -> Layout:
    (run,) = split_forests(branching_rows(seed, scale), 10_000)
    return plant(run, current_version="p@1", device="cpu", dtype=torch.float64).layout


def alone(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, kind: Kind) -> torch.Tensor:
    """Every row by itself, straight from the formula."""
    out = torch.zeros_like(query)
    group = query.shape[1] // key.shape[1]
    for block in layout.blocks:
        path = [*block.path.tolist(), *range(block.start, block.stop)]
        q, k, v = query[0][:, path], key[0][:, path], value[0][:, path]
        for head in range(q.shape[0]):
            scores = q[head] @ k[head // group].T * kind.scale
            if kind.softcap is not None:
                scores = kind.softcap * torch.tanh(scores / kind.softcap)
            places = torch.arange(len(path))
            behind = places[:, None] - places
            hidden = (behind < 0) | (behind >= (kind.window or len(path)))
            weights = scores.exp().masked_fill(hidden, 0.0)
            sink = 0.0 if kind.sinks is None else kind.sinks[head].exp()
            seen = (weights / (weights.sum(1, keepdim=True) + sink)) @ v[head // group]
            out[0, head, block.start : block.stop] = seen[block.path.numel() :]
    return out


KINDS = {
    "plain": Kind(0.3),
    "window": Kind(0.3, window=5),
    "softcap": Kind(0.3, softcap=2.0),
    "sinks": Kind(0.3, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -0.5])),
    "all": Kind(0.3, window=4, softcap=1.5, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -0.5])),
}
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}
HEADS = [(4, 2), (4, 4), (6, 1)]
COMPUTED = {"joined": ("plain",), "blockwise": tuple(KINDS), "flex": tuple(KINDS), "varlen": ("plain", "window")}


CASES = [
    pytest.param(kernel, kind, dtype, heads, id=f"{kernel}-{kind}-{str(dtype)[6:]}-{heads[0]}-{heads[1]}")
    for kernel, kinds in COMPUTED.items()
    for kind in kinds
    for dtype in BOUNDS
    for heads in HEADS
    if not (kernel == "varlen" and dtype == torch.float32)
    and not (
        kernel == "flex" and (dtype == torch.float32 or heads != (4, 2)) and (dtype, kind) != (torch.float64, "all")
    )
]
"""FlexAttention outside of its kernel takes a second each: not all of its."""


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize(("kernel", "kind", "dtype", "heads"), CASES)
def test_attention_and_its_gradients_are_those_of_every_row_alone(
    kernel: Any, kind: str, dtype: torch.dtype, heads: tuple[int, int]
) -> None:
    bound = BOUNDS[dtype]
    torch.manual_seed(0)
    layout, given = layout_of(heads[0]), KINDS[kind]
    size = layout.tokens
    leaves = [
        torch.randn(1, count, size, 16, dtype=dtype, requires_grad=True) for count in (heads[0], heads[1], heads[1])
    ]
    sinks = None if given.sinks is None else given.sinks[: heads[0]].to(dtype).requires_grad_()
    inputs = leaves if sinks is None else [*leaves, sinks]
    with visiting(layout, kernel):
        out, _ = forest_attention(
            torch.nn.Module(),
            *leaves,
            None,
            scaling=0.3,
            sliding_window=given.window,
            softcap=given.softcap,
            s_aux=sinks,
        )
    out = out.transpose(1, 2)
    gradient = torch.randn_like(out)
    got = torch.autograd.grad(out, inputs, gradient)

    exact = [one.detach().double().requires_grad_() for one in inputs]
    wanted = alone(*exact[:3], layout, Kind(0.3, given.window, given.softcap, exact[3] if sinks is not None else None))
    torch.testing.assert_close(out.double(), wanted, rtol=bound, atol=bound)
    for mine, reference in zip(got, torch.autograd.grad(wanted, exact, gradient.double()), strict=True):
        torch.testing.assert_close(mine.double(), reference, rtol=bound, atol=bound)


@pytest.mark.parametrize("window", [None, 40, 150])
@pytest.mark.parametrize("seed", range(4))
def test_tiles_are_empty_full_or_mixed_as_their_pairs_are(seed: int, window: int | None) -> None:
    layout = layout_of(seed, scale=40)
    assert layout.tokens > 6 * flex.TILE
    places = torch.arange(layout.tokens)
    wanted = (places <= places[:, None]) & (places[:, None] <= layout.exits)
    if window is not None:
        wanted &= layout.positions[:, None] - layout.positions < window
    mask = flex.block_mask(layout, window)
    assert torch.equal(mask.mask_mod(0, 0, places[:, None], places[None]), wanted)

    tiles = -(-layout.tokens // flex.TILE)
    for row, column in ((row, column) for row in range(tiles) for column in range(tiles)):
        pairs = wanted[row * flex.TILE :, column * flex.TILE :][: flex.TILE, : flex.TILE]
        state = [column in _listed(mask, "kv", row), column in _listed(mask, "full_kv", row)]
        if pairs.all():
            assert state in ([False, True], [True, False])
        elif pairs.any():
            assert state == [True, False]
        elif window is None:
            assert state == [False, False]
        assert state != [True, True]
        assert [row in _listed(mask, "q", column), row in _listed(mask, "full_q", column)] == state


def _listed(mask: Any, which: str, row: int) -> list[int]:
    number = getattr(mask, f"{which}_num_blocks")[0, 0, row]
    return getattr(mask, f"{which}_indices")[0, 0, row, :number].tolist()


def test_forests_of_any_length_share_a_compiled_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled anew for each forest would take longer than the step."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("eager")
    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *given, **named: whole(*given, **named, backend=counter))
    flex.compiled.cache_clear()
    try:
        for seed in range(12):
            layout = layout_of(seed, scale=12 + seed)
            query, key = torch.randn(1, 4, layout.tokens, 16), torch.randn(1, 2, layout.tokens, 16)
            mask = flex.block_mask(layout, 30)
            with torch.no_grad():
                flex.compiled()(query, key, key, block_mask=mask, scale=0.3, enable_gqa=True)
    finally:
        flex.compiled.cache_clear()
        torch._dynamo.reset()
    assert 0 < counter.frame_count <= 3


@pytest.mark.full
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("sinks", "all")])
def test_the_compiled_kernel_follows_the_tiles(kind: str) -> None:
    """Of its forward pass, on a CPU: which has no sum of exponents, and no backward pass."""
    layout = layout_of(3, scale=25)
    query, key, value = (torch.randn(1, heads, layout.tokens, 16) for heads in (4, 2, 2))
    given = KINDS[kind]
    if given.window is not None:
        given = Kind(0.3, window=100)
    named: dict[str, Any] = {"block_mask": flex.block_mask(layout, given.window), "scale": 0.3, "enable_gqa": True}
    if given.softcap is not None:
        named["score_mod"] = flex._capped(torch.full((4,), given.softcap))
    with torch.no_grad():
        out = flex.compiled()(query, key, value, **named)
    wanted = alone(query.double(), key.double(), value.double(), layout, given)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "dtype", "named"),
    [
        ({"softcap": 2.0}, torch.bfloat16, "softcap"),
        ({"s_aux": torch.ones(2)}, torch.bfloat16, "sinks"),
        ({}, torch.float32, "float32"),
    ],
)
def test_attention_over_gathered_paths_refuses_by_name(asked: dict[str, Any], dtype: torch.dtype, named: str) -> None:
    heads = torch.randn(1, 2, 9, 16, dtype=dtype)
    with visiting(single_row(9, "cpu"), "varlen"), pytest.raises(TrainingError, match=named):
        forest_attention(torch.nn.Module(), heads, heads, heads, None, **asked)


@pytest.mark.parametrize(("head", "tokens", "by_kernel"), [(16, 128, True), (8, 128, False), (16, 127, False)])
def test_what_the_kernel_does_not_take_is_computed_block_by_block(
    head: int, tokens: int, by_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def kernel(query: torch.Tensor, *_: Any) -> torch.Tensor:
        asked.append(query.shape[-1])
        return query

    monkeypatch.setattr("trainer.learner.packed.attention.flex_forest_attention", kernel)
    heads = torch.randn(1, 2, tokens, head)
    with visiting(single_row(tokens, "cpu"), "flex"):
        forest_attention(torch.nn.Module(), heads, heads, heads, None)
    assert bool(asked) is by_kernel


@pytest.mark.parametrize("asked", [{"position_bias": torch.ones(1)}, {"dropout": 0.1}, {"is_causal": False}])
def test_attention_of_another_kind_is_refused(asked: dict[str, Any]) -> None:
    heads = torch.randn(1, 2, 9, 16)
    with visiting(single_row(9, "cpu"), "joined"), pytest.raises(TrainingError, match="does not compute"):
        forest_attention(torch.nn.Module(), heads, heads, heads, None, **asked)
