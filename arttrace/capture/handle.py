"""The handle of a run: what `with arttrace.trajectory(...) as run` and `arttrace.current_trajectory()` return.

It shows the same five names whether the run is recorded or not: code that uses it runs unchanged where capture is off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

from arttrace.capture.context.position import Position


class RunHandle:
    """A run of a trajectory, an agent or a tool. Where nothing is recorded its methods do nothing."""

    __slots__ = ("__weakref__", "_position")

    def __init__(self, position: Position | None) -> None:
        self._position = position

    def __copy__(self) -> RunHandle:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RunHandle:
        return self  # the run is one, however often the object is copied that knows it

    @property
    def id(self) -> str:
        """The trajectory's id; empty where nothing is recorded."""
        return "" if self._position is None else self._position.id

    def set_arguments(self, /, **arguments: Any) -> None:
        """Record what this run was started with, as it is now."""
        if self._position is not None:
            self._position.set_arguments(**arguments)

    def set_result(self, result: Any) -> None:
        """Record what this run returned, as it is now."""
        if self._position is not None:
            self._position.set_result(result)

    def update(self, *, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()) -> None:
        """Add metadata (JSON values by name) and tags to the trajectory."""
        if self._position is not None:
            self._position.update(metadata=metadata, tags=tags)

    def reward(self, value: float, name: str = "reward") -> None:
        """Give the trajectory a reward. Each call adds one; a value that is not a finite number is logged and not
        recorded."""
        if self._position is not None:
            self._position.reward(value, name)


def handle_of(position: Position | None) -> RunHandle:
    """The handle of a position: the same one as long as the user has it. Nothing is recorded by that of None."""
    handle = None if position is None or position.handle is None else position.handle()
    if isinstance(handle, RunHandle):
        return handle
    handle = RunHandle(position)
    if position is not None:
        position.handle = ref(handle)
    return handle
