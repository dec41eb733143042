"""The runs that a step was refused for, since other weights than their version's sampled them: left out from then on.

They would be refused in every later step too, and the good runs beside them. A file in the policy's directory names
them; who removes it has them looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.files import replace_file

REFUSED_RUNS = "refused_runs.json"
_MOST = 100_000


def refused_runs(directory: Path) -> frozenset[str]:
    """The ids of those of the policy in a directory; none where the file cannot be read: they are looked at again."""
    return frozenset(_read(directory))


def refuse_runs(directory: Path, ids: Iterable[str]) -> None:
    """Leave these out from now on; of very many the last. Raises OSError."""
    kept = dict.fromkeys([*_read(directory), *ids])
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / REFUSED_RUNS, msgspec.json.encode(list(kept)[-_MOST:]))


def _read(directory: Path) -> list[str]:
    try:
        return msgspec.json.decode((directory / REFUSED_RUNS).read_bytes(), type=list[str])
    except (OSError, *UNREADABLE):
        return []
