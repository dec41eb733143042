"""A run as a block: what `with Trajectory() as trajectory:` captures, as programs of newer ART write it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from arttrace.capture.api import current_trajectory
from arttrace.capture.context.flow import current_flow, set_flow
from arttrace.capture.context.run import RunOverrides
from arttrace.capture.decorators import ScopeDecorator, trajectory
from arttrace.capture.export.lifecycle import recorder
from arttrace.system.paths import DataDir

_innermost: ContextVar[RunBlock | None] = ContextVar("arttrace_loop_block", default=None)


class RunBlock:
    """One entered block. It is a run of its own, also within another block; in the run of a rollout that is gathered,
    or of a decorated function, it is that run.

    Args:
        of: The trajectory that was entered.
        name: The agent's name, of a run of its own.

    `id` is the run's, empty where nothing is recorded, and `recorded_in` the directory into which it is captured.
    """

    def __init__(self, of: Any, name: str) -> None:
        self.of = of
        self._outer = outer = _innermost.get()
        self._scope: ScopeDecorator | None = None
        self._before = current_flow()
        run = current_trajectory()
        if run is None or (outer is not None and outer.id == run.id):
            overrides = RunOverrides(trajectory_id=secrets.token_hex(16))
            set_flow(replace(self._before, scope=None, muted=False, overrides=overrides))
            self._scope = trajectory(name=name)
            run = self._scope.__enter__()
        self._run = run
        self.id: str = run.id
        self.recorded_in: DataDir | None = recorder().settings.data if self.id else None
        _innermost.set(self)

    def leave(
        self,
        account: tuple[Any, Mapping[str, Any]],
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the block.

        Args:
            account: The result and the metadata of a run of its own.
            kind: The class of what ended it, as a context manager is told.
            error: What ended it.
            traceback: Where.
        """
        if self._scope is not None:
            result, metadata = account
            self._run.update(metadata=metadata)
            self._run.set_result(result)
            self._scope.__exit__(kind, error, traceback)
            set_flow(self._before)
        _innermost.set(self._outer)


def innermost() -> Any:
    """The trajectory whose block this is in; None outside of blocks."""
    block = _innermost.get()
    return None if block is None else block.of
