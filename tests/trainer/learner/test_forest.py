"""Forests and attention over them, against every row on its own."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from trainer.learner.packed import forest
from trainer.learner.packed.attention import _JoinedAttention, blockwise_attention
from trainer.learner.packed.forest import Forest, RowRun, plant, shared_length, split_forests
from trainer.learner.samples import TokenRow


def row(ids: list[int], advantage: float = 1.0, trajectory: int = 0) -> TokenRow:
    return TokenRow(
        token_ids=tuple(ids),
        targets=(False, *[True] * (len(ids) - 1)),
        logprobs=tuple(-0.1 * n for n in range(len(ids))),
        versions=(None, *["p@1"] * (len(ids) - 1)),
        advantage=advantage,
        weight=1.0,
        trajectory=trajectory,
    )


def planted(run: RowRun) -> Forest:
    return plant(run, current_version="p@1", device="cpu", dtype=torch.float64)


token_rows = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=8), min_size=1, max_size=8)


@given(token_rows, st.integers(1, 30))
@settings(deadline=None)
def test_every_row_can_be_read_back_from_its_forest(lists: list[list[int]], budget: int) -> None:
    rows = [row(ids, trajectory=number) for number, ids in enumerate(lists)]
    runs = split_forests(rows, budget)
    assert sorted(r.trajectory for run in runs for r in run.rows) == list(range(len(rows)))
    for run in runs:
        forest = planted(run)
        distinct = {r.token_ids[: n + 1] for r in run.rows for n in range(len(r.token_ids))}
        assert forest.token_ids.numel() == len(distinct), "each distinct beginning is one token of the forest"
        assert len(distinct) <= budget or len(run.rows) == 1
        paths = []
        for block in forest.blocks:
            path = [*block.path.tolist(), *range(block.start, block.stop)]
            assert forest.positions[path].tolist() == list(range(len(path)))
            paths.append(tuple(forest.token_ids[path].tolist()))
        assert all(any(path[: len(r.token_ids)] == r.token_ids for path in paths) for r in run.rows)
        at, next_id = forest.predict_at[forest.prediction], forest.predict_id[forest.prediction]
        wanted = [(r, place) for r in run.rows for place, is_target in enumerate(r.targets) if is_target]
        assert next_id.tolist() == [r.token_ids[place] for r, place in wanted]
        assert forest.positions[at].tolist() == [place - 1 for _, place in wanted]
        assert forest.token_ids[at].tolist() == [r.token_ids[place - 1] for r, place in wanted]
        assert forest.trajectory.tolist() == [r.trajectory for r, _ in wanted]
        assert forest.logprobs.tolist() == [r.logprobs[place] for r, place in wanted]
        assert forest.current.all()
        assert len(set(zip(forest.predict_at.tolist(), forest.predict_id.tolist(), strict=True))) == len(
            forest.predict_at
        )


def test_what_neighbours_share_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def counted(left: tuple[int, ...], right: tuple[int, ...]) -> int:
        measured.append((left, right))
        return shared_length(left, right)

    monkeypatch.setattr(forest, "shared_length", counted)
    rows = branching_rows(0)
    for run in split_forests(rows, 20):
        planted(run)
    ordered = sorted(one.token_ids for one in rows)
    assert measured == list(pairwise(ordered))


@given(token_rows, st.integers(1, 30), st.randoms())
@settings(deadline=None)
def test_the_order_given_changes_nothing(lists: list[list[int]], budget: int, rng: random.Random) -> None:
    rows = [row(ids) for ids in lists]
    shuffled = rng.sample(rows, len(rows))
    assert split_forests(rows, budget) == split_forests(shuffled, budget)


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_shared_length(left: list[int], right: list[int]) -> None:
    n = shared_length(left, right)
    assert left[:n] == right[:n]
    assert n == min(len(left), len(right)) or left[n] != right[n]


def branching_rows(seed: int) -> list[TokenRow]:
    rng = random.Random(seed)
    trunk = [rng.randrange(9) for _ in range(12)]
    rows = [
        row(trunk[: rng.randint(0, 12)] + [rng.randrange(9) for _ in range(rng.randint(2, 9))], trajectory=n)
        for n in range(6)
    ]
    return [*rows, rows[0]]


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 2), (4, 4), (6, 1)])
@pytest.mark.parametrize("compute", [_JoinedAttention.apply, blockwise_attention], ids=["joined", "blockwise"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_attention_and_its_gradients_are_those_of_every_row_alone(
    compute: object, heads: int, key_heads: int, dtype: torch.dtype, bound: float
) -> None:
    assert callable(compute)
    torch.manual_seed(0)
    (run,) = split_forests(branching_rows(heads), 10_000)
    forest = planted(run)
    size, scale = forest.token_ids.numel(), 0.3
    query, key, value = (
        torch.randn(1, count, size, 16, dtype=dtype, requires_grad=True) for count in (heads, key_heads, key_heads)
    )
    out = compute(query, key, value, forest.blocks, scale)
    gradient = torch.randn_like(out)
    got = torch.autograd.grad(out, (query, key, value), gradient)

    alone = torch.zeros_like(out, dtype=torch.float64)
    leaves = [part.detach().double().requires_grad_() for part in (query, key, value)]
    for block in forest.blocks:
        path = [*block.path.tolist(), *range(block.start, block.stop)]
        q, k, v = (part[:, :, path] for part in leaves)
        whole = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        alone[:, :, block.start : block.stop] = whole[:, :, block.path.numel() :]
    wanted = torch.autograd.grad(alone, leaves, gradient.double())
    torch.testing.assert_close(out.double(), alone, rtol=bound, atol=bound)
    for mine, reference in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), reference, rtol=bound, atol=bound)
