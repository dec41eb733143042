"""A .wandb file, as W&B writes it offline: what was logged, read by W&B's own types."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def when_written(file: Path, steps: int, artifacts: int) -> tuple[list[int], list[str]]:
    """The steps that have numbers and the names of the artifacts, once so many are there: W&B writes in a process of
    its own."""
    for _ in range(1200):
        found = read(file.read_bytes())
        if len(found[0]) >= steps and len(found[1]) >= artifacts:
            break
        time.sleep(0.05)
    return found


def read(log: bytes) -> tuple[list[int], list[str]]:
    """The steps that have numbers, and the names of the artifacts, of a .wandb file."""
    from wandb.proto import wandb_internal_pb2

    steps: list[int] = []
    artifacts: list[str] = []
    for data in _records(log):
        record: Any = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            [step] = [item.value_json for item in record.history.item if item.nested_key == ["_step"]]
            steps.append(int(step))
        elif record.HasField("artifact"):
            artifacts.append(record.artifact.name)
    return steps, artifacts


def logged(log: bytes, name: str) -> dict[int, str]:
    """A number of a .wandb file, by step."""
    from wandb.proto import wandb_internal_pb2

    found: dict[int, str] = {}
    for data in _records(log):
        record: Any = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        numbers = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        if name in numbers:
            found[int(numbers["_step"])] = numbers[name]
    return found


def _records(log: bytes) -> Iterator[bytes]:
    """Of a .wandb file: after 7 bytes, blocks of 32 KiB with chunks of (checksum, length, kind) and payload, where kind
    tells a whole record (1) or its first, middle and last part (2, 3, 4)."""
    at, part = 7, b""
    while at + 7 <= len(log):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", log, at + 4)
        part += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield part
            part = b""
