"""Out of memory: how the error is recognised, and how what the failed computation referred to is freed."""

from __future__ import annotations

import traceback


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch found no memory, on a device or in the machine."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def let_go(error: BaseException) -> None:
    """Clear the frames that the error and those it came from have left.

    Their tracebacks keep every local variable, activations too, for as long as somebody holds the error.
    """
    known: dict[int, BaseException] = {}
    due: list[BaseException | None] = [error]
    while due:
        one = due.pop()
        if one is not None and id(one) not in known:
            known[id(one)] = one
            traceback.clear_frames(one.__traceback__)
            due += (one.__cause__, one.__context__)
