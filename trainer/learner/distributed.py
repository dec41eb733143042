"""Ranks: the processes of torch.distributed that share one step. Alone, every function here does nothing.

Numbers are added up on the CPU as well as on the device: the process group must serve both, as that of
`init_process_group()` without a backend does.

Whoever made the group ends it with `destroy_process_group()` before the process ends. Its threads hold the tensors of
the last sum a moment longer than the caller; one that lets go of them while the interpreter ends aborts the process.
They end with the group only where PyTorch's compiler, `torch._dynamo`, was imported before the group was made: some
defaults of functions that it loads are the group of that moment.
"""

from __future__ import annotations

from typing import TypeVar, cast

import torch
from torch import distributed

T = TypeVar("T")


def rank_and_count() -> tuple[int, int]:
    """The number of this process, from 0, and how many there are."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def total(values: torch.Tensor) -> torch.Tensor:
    """The sum of what all ranks hold, in place."""
    if rank_and_count()[1] > 1:
        distributed.all_reduce(values)
    return values


def gathered(value: T) -> list[T]:
    """What every rank holds, in their order."""
    count = rank_and_count()[1]
    if count == 1:
        return [value]
    found: list[T | None] = [None] * count
    distributed.all_gather_object(found, value)
    return cast("list[T]", found)


def least(number: int) -> int:
    """The least of what all ranks hold."""
    return -int(largest(torch.tensor(-number)))


def largest(values: torch.Tensor) -> torch.Tensor:
    """The elementwise maximum of what all ranks hold, in place."""
    if rank_and_count()[1] > 1:
        distributed.all_reduce(values, op=distributed.ReduceOp.MAX)
    return values
