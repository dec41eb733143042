"""Pure: which route a request's path means, and the names in it: /v1/..., /r/TRAJECTORY/..., /r/TRAJECTORY/AGENT/v1/...

The path is taken as it was sent, so that a slash or a space inside a name, percent-encoded, stays part of the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

T = TypeVar("T")

_NOBODY: Mapping[str, str] = MappingProxyType({})


class Routes(Generic[T]):
    """What there is at each path: `trajectories` only under /r/TRAJECTORY, `agents` only under /r/TRAJECTORY/AGENT."""

    def __init__(self, plain: Mapping[str, T], trajectories: Mapping[str, T], agents: Mapping[str, T]) -> None:
        self._plain = {path.encode(): found for path, found in plain.items()}
        self._trajectories = {path.encode(): found for path, found in trajectories.items()}
        self._agents = {path.encode(): found for path, found in agents.items()}

    def find(self, raw_path: bytes) -> tuple[T, Mapping[str, str]] | None:
        """What is at a path, and `trajectory` and `agent` where it names them; None when nothing is."""
        if (found := self._plain.get(raw_path)) is not None:
            return found, _NOBODY
        if not raw_path.startswith(b"/r/"):
            return None
        trajectory, _, rest = raw_path[3:].partition(b"/")
        if (found := self._trajectories.get(b"/" + rest)) is not None:
            return found, {"trajectory": _name(trajectory)}
        agent, _, rest = rest.partition(b"/")
        if (found := self._agents.get(b"/" + rest)) is not None:
            return found, {"trajectory": _name(trajectory), "agent": _name(agent)}
        return None


def _name(part: bytes) -> str:
    return unquote_to_bytes(part).decode("latin-1")  # beyond ASCII no name is good, so the encoding does not matter
