"""Out of memory: how the error is recognised, and how what the failed computation referred to is freed."""

from __future__ import annotations

import traceback
from pathlib import Path


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch found no memory, on a device or in the machine."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def free_memory(device: str) -> int | None:
    """Bytes that are free on the device, or in the machine for "cpu"; None where it is not known."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(found[0][1]) * 1024 if found else None


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
