"""Writes tensors into a safetensors file without a copy: everything waits while an adapter is handed over.

The library's own writer makes a copy of every tensor and of the whole, which takes three times as long. The format is
eight bytes with the length of a JSON header, the header, and the tensors' bytes in the order of their offsets.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from trainer.policies.spare_file import ROOM

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
_PART = 4 << 20
"""Bytes that are gathered while as many are written; a larger tensor has a part of its own."""


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> None:
    """Write them under their names, in the order of those, rounded to `dtype` (None: as they are); over the room that
    was made beside `path`, where there is one. Raises OSError."""
    header: dict[str, Any] = {}
    ordered = [tensors[name].detach() for name in sorted(tensors)]
    end = 0
    for name, tensor in zip(sorted(tensors), ordered, strict=True):
        kept = dtype or tensor.dtype
        begin, end = end, end + tensor.numel() * kept.itemsize
        header[name] = {"dtype": _NAMES[kept], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    mode = "wb"
    if (made := path.with_name(ROOM)).exists():
        made.rename(path)
        mode = "r+b"
    with path.open(mode, buffering=0) as file, ThreadPoolExecutor(1) as gathering:
        file.write(struct.pack("<Q", len(text)) + text)
        parts = _parts(ordered, dtype)
        due = gathering.submit(next, parts, None)
        while (part := due.result()) is not None:
            due = gathering.submit(next, parts, None)
            while part:
                part = part[file.write(part) or 0 :]
        file.truncate()  # what was there may have been longer


def _parts(tensors: Sequence[torch.Tensor], dtype: torch.dtype | None) -> Iterator[memoryview]:
    """Their bytes in the host's memory, end to end, in two buffers that take turns."""
    sizes = [tensor.numel() * (dtype or tensor.dtype).itemsize for tensor in tensors]
    card = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    buffers = [torch.empty(max(_PART, *sizes, 0), dtype=torch.uint8, pin_memory=card is not None) for _ in range(2)]
    filled = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        kept = dtype or tensor.dtype
        if filled and (filled + size > len(buffers[0]) or filled % kept.itemsize):
            yield _gathered(buffers[0][:filled], card)
            buffers.reverse()
            filled = 0
        place = buffers[0][filled : filled + size].view(kept).view(tensor.shape)
        place.copy_(tensor, non_blocking=True)
        filled += size
    if filled:
        yield _gathered(buffers[0][:filled], card)


def _gathered(buffer: torch.Tensor, card: torch.device | None) -> memoryview:
    if card is not None:
        torch.cuda.synchronize(card)
    return memoryview(buffer.numpy())
