"""Whether two directories hold the same adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from arttrace.records.values.nesting import UNREADABLE

_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


def same_adapter(one: Path, other: Path) -> bool:
    """Whether two directories hold the same weights and settings; the order of names in the settings is no matter."""
    try:
        first, second = ((path / _CONFIG).read_bytes() for path in (one, other))
        if first != second and _settings(first) != _settings(second):
            return False
        return (one / _WEIGHTS).read_bytes() == (other / _WEIGHTS).read_bytes()
    except (OSError, *UNREADABLE):
        return False


def _settings(document: bytes) -> dict[str, str]:
    found = msgspec.json.decode(document, type=dict[str, Any])
    return {name: str(sorted(map(str, value)) if isinstance(value, list) else value) for name, value in found.items()}
