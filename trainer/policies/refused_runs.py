"""The runs that a step was refused for, since other weights than their version's sampled them: left out from then on.

They would be refused in every later step too, and the good runs beside them. A file in the policy's directory names
them; who removes it has them looked at again. With the id of each is the bound on the difference of log-probabilities
that its step was beyond, null where another version was found to be nearer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.files import replace_file

REFUSED_RUNS = "refused_runs.json"
_MOST = 100_000


def refused_runs(directory: Path, bound: float, say: Callable[[str], None]) -> frozenset[str]:
    """The ids of those of the policy in a directory, without those that were beyond a smaller bound than `bound`
    (nats): it may be raised for their sake. `say` is told of a file that cannot be read, which names none."""
    try:
        known = _read(directory)
    except (OSError, *UNREADABLE) as error:
        say(
            f"{directory / REFUSED_RUNS} cannot be read: {error}. The runs that it names are looked at again, and may "
            "be refused again."
        )
        return frozenset()
    return frozenset(id for id, beyond in known.items() if beyond is None or beyond >= bound)


def refuse_runs(directory: Path, ids: Iterable[str], beyond: float | None = None) -> None:
    """Leave these out from now on; of very many the last. A damaged file is written anew. Raises OSError."""
    try:
        known = _read(directory)
    except UNREADABLE:
        known = {}
    kept = [*(known | dict.fromkeys(ids, beyond)).items()][-_MOST:]
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / REFUSED_RUNS, msgspec.json.encode(dict(kept)))


def _read(directory: Path) -> dict[str, float | None]:
    """By id, the bound. Raises OSError, and what is UNREADABLE."""
    try:
        content = (directory / REFUSED_RUNS).read_bytes()
    except FileNotFoundError:
        return {}
    return msgspec.json.decode(content, type=dict[str, float | None])
