"""Forests: rows that begin alike share the tokens of their common beginning, so that each is computed once. Pure.

Rows in lexicographic order have this property: what a row shares with any row before it, it shares with the row right
before it. So a run of sorted rows is a forest in depth-first order, and every row adds one block of tokens of its own
behind the path that it continues. A block attends fully to that path and causally to itself; nothing is padded, and no
mask is built.

This is another tree than that of `arttrace.trajectories.sequences`, which joins the answers of one agent and decides
whose targets their tokens are: this one joins rows of any agents and trajectories, and decides nothing. What two rows
share is measured once per step, by `split_forests`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from trainer.learner.packed.layout import Block, Layout
from trainer.learner.samples import TokenRow, shared_length


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows in lexicographic order that go through the model together. `shared[n]` is how many tokens row n has in
    common with the row before it, 0 for the first."""

    rows: tuple[TokenRow, ...]
    shared: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forest:
    """What goes through the model at once: N distinct tokens, and the M targets among them.

    `token_ids` int64 (N,). A prediction is a packed position, the
    token that came next and the temperature it was sampled at: `predict_at`, `predict_id` int64 (K,) and
    `temperatures` (K,), each distinct one once, in order. The others have
    shape (M,): `prediction` indexes the predictions, `trajectory` the step's trajectories; `advantages`, `weights` and
    `logprobs` (as sampled) are floating, `current` says that the current version sampled the token. Targets
    stand in the order of `rows`.
    """

    token_ids: torch.Tensor
    layout: Layout
    predict_at: torch.Tensor
    predict_id: torch.Tensor
    temperatures: torch.Tensor
    prediction: torch.Tensor
    trajectory: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    logprobs: torch.Tensor
    current: torch.Tensor
    rows: tuple[TokenRow, ...] = ()


def split_forests(rows: Iterable[TokenRow], max_tokens: int) -> list[RowRun]:
    """The rows in lexicographic order, cut into runs of at most `max_tokens` distinct tokens each.

    A row that is longer goes alone; where a run is cut, the next one computes the shared beginning again. The result
    does not depend on the order given.
    """
    ordered = sorted(rows, key=lambda row: (row.token_ids, row.targets, row.logprobs, row.advantages, row.temperatures))
    runs: list[list[tuple[TokenRow, int]]] = []
    room = 0
    for row in ordered:
        shared = shared_length(runs[-1][-1][0].token_ids, row.token_ids) if runs else 0
        if not runs or len(row.token_ids) - shared > room:
            runs.append([])
            shared, room = 0, max_tokens
        runs[-1].append((row, shared))
        room -= len(row.token_ids) - shared
    return [RowRun(tuple(row for row, _ in run), tuple(shared for _, shared in run)) for run in runs]


def plant(run: RowRun, *, current_version: str | None, device: str, dtype: torch.dtype) -> Forest:
    """One run of rows as a forest on `device`; floating numbers in `dtype`."""
    token_ids: list[int] = []
    positions: list[int] = []
    exits: list[int] = []
    blocks: list[Block] = []
    path: list[int] = []
    predictions: dict[tuple[int, int, float], None] = {}
    targets: list[tuple[tuple[int, int, float], TokenRow, int]] = []
    advantages: list[float] = []
    for row, shared in zip(run.rows, run.shared, strict=True):
        start = len(token_ids)
        for ended in path[shared:]:
            exits[ended] = start - 1
        token_ids += row.token_ids[shared:]
        positions += range(shared, len(row.token_ids))
        exits += [-1] * (len(token_ids) - start)
        path[shared:] = range(start, len(token_ids))
        if len(token_ids) > start:
            blocks.append(Block(start, len(token_ids), torch.tensor(path[:shared], dtype=torch.int64, device=device)))
        of_row = row.advantages
        for place, is_target in enumerate(row.targets):
            if is_target:
                temperature = row.temperatures[place] if row.temperatures else 1.0
                prediction = (path[place - 1], row.token_ids[place], temperature)
                predictions[prediction] = None
                targets.append((prediction, row, place))
                advantages.append(of_row[place] if row.token_advantages else of_row[0])
    for ended in path:
        exits[ended] = len(token_ids) - 1
    ordered = sorted(predictions)
    index = {prediction: number for number, prediction in enumerate(ordered)}

    def integers(values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=device)

    def numbers(values: Iterable[float]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=dtype, device=device)

    return Forest(
        token_ids=integers(token_ids),
        layout=Layout(tuple(blocks), integers(positions), integers(exits)),
        predict_at=integers(at for at, _, _ in ordered),
        predict_id=integers(id for _, id, _ in ordered),
        temperatures=numbers(temperature for _, _, temperature in ordered),
        prediction=integers(index[prediction] for prediction, _, _ in targets),
        trajectory=integers(row.trajectory for _, row, _ in targets),
        advantages=numbers(advantages),
        weights=numbers(row.weight for _, row, _ in targets),
        logprobs=numbers(row.logprobs[place] for _, row, place in targets),
        current=torch.tensor(
            [row.versions[place] is not None and row.versions[place] == current_version for _, row, place in targets],
            dtype=torch.bool,
            device=device,
        ),
        rows=run.rows,
    )
