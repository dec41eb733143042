"""Where the time of one step goes on a device: its busy and idle share, and the operations that keep it busy.

A step whose device is idle waits for Python, which starts one operation after the other; one whose device is busy is
made faster by fewer or larger operations. Which of the two it is decides what is worth doing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN = 40
_NAME = 96


@dataclass(frozen=True, slots=True)
class Operation:
    """What ran on the device, once: a kernel or a copy, in microseconds of one clock."""

    name: str
    start_us: float
    end_us: float


def profile(step: Callable[[], Any], device: str) -> str:
    """Runs `step` once under PyTorch's profiler and returns the report. On a CPU the operators that it calls
    stand for kernels."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    on_card = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_card else [])]
    with recording(activities=activities, acc_events=True) as recorded:
        started = time.perf_counter()
        step()
        if on_card:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    events = list(recorded.events() or [])
    waits = [one for one in events if one.device_type != DeviceType.CUDA and one.name in _WAITS]
    if on_card:
        events = [one for one in events if one.device_type == DeviceType.CUDA]
    else:
        events = [one for one in events if _is_operator(one) and not _is_operator(one.cpu_parent)]
    return report(_operations(events), seconds, _operations(waits))


def compiled_since(before: int = 0) -> int:
    """How many graphs PyTorch compiled in this process beyond so many."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"]) - before


def _operations(events: Iterable[Any]) -> list[Operation]:
    return [Operation(one.name, one.time_range.start, one.time_range.end) for one in events]


def _is_operator(event: Any) -> bool:
    return event is not None and event.name.startswith("aten::")


def report(operations: Sequence[Operation], seconds: float, waits: Sequence[Operation] = ()) -> str:
    """The lines for a step of so many seconds: how long something ran, gaps between operations, how often the program
    waited for the device, what kinds of operations ran, and the operations by the time that they took together."""
    busy_us, gaps_us = _busy_and_gaps(operations)
    long_gaps = [gap for gap in gaps_us if gap >= 20]
    lines = [
        f"{seconds * 1e3:.1f} ms under the profiler, {len(operations)} operations, busy {busy_us / 1e3:.1f} ms "
        f"({busy_us / seconds / 1e4:.0f} %)",
        f"{len(gaps_us)} gaps of {sum(gaps_us) / 1e3:.1f} ms in all, {len(long_gaps)} of 20 us and more: "
        f"{sum(long_gaps) / 1e3:.1f} ms",
        f"{len(waits)} waits of the program for the device, {_length(waits):.1f} ms: few ms and many gaps say that "
        "the device waits for Python instead",
        ", ".join(f"{kind} {_length(those):.1f} ms" for kind, those in _by_kind(operations).items()),
        f"{'ms':>10} {'share %':>8} {'calls':>7} {'us each':>9}  operation",
    ]
    by_name: dict[str, list[float]] = {}
    for one in operations:
        by_name.setdefault(one.name, []).append(one.end_us - one.start_us)
    whole = sum(map(sum, by_name.values())) or 1.0
    for name, took in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:SHOWN]:
        total = sum(took)
        lines.append(
            f"{total / 1e3:10.2f} {100 * total / whole:8.1f} {len(took):7d} {total / len(took):9.1f}  {name[:_NAME]}"
        )
    return "\n".join(lines) + "\n"


_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")
"""Calls that return when the device has done what was started before; the last on a CPU, where it stands for them."""
_KINDS = (
    ("attention", ("attention", "flash", "fmha", "flex")),
    (
        "products",
        ("gemm", "gemv", "nvjet", "cutlass", "xmma", "splitk", "cublas", "aten::mm", "addmm", "bmm", "linear"),
    ),
    ("copies", ("memcpy", "memset", "copy", "clone", "contiguous", "aten::to")),
)
"""By a part of an operation's name, the first that fits; what is left are other passes over memory."""


def _by_kind(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    found: dict[str, list[Operation]] = {kind: [] for kind, _ in _KINDS} | {"other passes": []}
    for one in operations:
        name = one.name.lower()
        kinds = (kind for kind, parts in _KINDS if any(part in name for part in parts))
        found[next(kinds, "other passes")].append(one)
    return found


def _length(operations: Iterable[Operation]) -> float:
    """Milliseconds of all together."""
    return sum(one.end_us - one.start_us for one in operations) / 1e3


def _busy_and_gaps(operations: Iterable[Operation]) -> tuple[float, list[float]]:
    """Microseconds in which at least one operation ran, and each stretch between two of them in which none did."""
    busy, gaps, end = 0.0, [], None
    for one in sorted(operations, key=lambda one: one.start_us):
        if end is not None and one.start_us > end:
            gaps.append(one.start_us - end)
        begin = one.start_us if end is None else max(one.start_us, end)
        busy += max(0.0, one.end_us - begin)
        end = one.end_us if end is None else max(end, one.end_us)
    return busy, gaps
