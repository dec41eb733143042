"""Memory: how much is free, how its end is recognised, and how what the failed computation referred to is freed."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch found no memory, on a device or in the machine."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
    )


_SAID = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""What PyTorch's allocator for a CPU says, and on CUDA libraries that ask past its allocator."""


def free_memory(device: str) -> int | None:
    """Bytes that are free on the device, or in the machine for "cpu"; None where it is not known."""
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return None
        # What PyTorch has taken and does not use is there for whoever asks it.
        return int(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
    free = _numbers(_ROOT / "proc" / "meminfo").get("MemAvailable:")
    return None if free is None else max(0, min(free * 1024, *_left_by_limits()))


_ROOT = Path("/")
_NO_LIMIT = 1 << 62
_LIMIT_FILES = {
    "": ("memory.max", "memory.current", ""),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}
"""By the controller's name, which version 2 of control groups has none of: the limit, what is used, and what stands
before the names of its parts."""


def _left_by_limits() -> Iterator[int]:
    """What the limits on this process's memory leave, those of a container for one: beyond them the kernel kills it.
    Files in memory give way."""
    yield _NO_LIMIT
    with contextlib.suppress(OSError):
        for line in (_ROOT / "proc" / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in _LIMIT_FILES:
                continue
            limit, used, before = _LIMIT_FILES[controllers]
            top = _ROOT / "sys" / "fs" / "cgroup" / controllers
            group = top / path.lstrip("/")
            for place in (
                group,
                *group.parents,
            ):  # of a container's own the path may be the host's: only its top is there
                with contextlib.suppress(OSError, ValueError):  # "max"
                    left = int((place / limit).read_text()) - int((place / used).read_text())
                    parts = _numbers(place / "memory.stat")
                    yield left + sum(parts.get(f"{before}{kind}_file", 0) for kind in ("active", "inactive"))
                if place == top:
                    break


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file of the kernel's by their names, a pair on a line; {} where it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, value, *_ in map(str.split, lines)}


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
