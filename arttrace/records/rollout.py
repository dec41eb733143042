"""RolloutJob and RolloutResult: one run of the user's entry point, asked for and done, as they pass between processes.

Between the trainer and a rollout worker each line is one JSON document: jobs go in, a `WorkerReady` and results come
out.
"""

from __future__ import annotations

from typing import Any

import msgspec


class RolloutJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run to make: `arguments` are the entry point's keyword arguments; an empty `trajectory_id` is filled in."""

    arguments: dict[str, Any]
    scenario: str | None = None
    group: str | None = None
    metadata: dict[str, Any] = {}
    trajectory_id: str = ""


class RolloutResult(msgspec.Struct, frozen=True, omit_defaults=True, tag="result"):
    """What became of one run. `result` is the returned value as JSON; `error` tells why there is none.

    When this arrives the run's spans are on disk. `seconds` is the time the entry point took.
    """

    trajectory_id: str
    result: Any = None
    error: str | None = None
    seconds: float = 0.0


class WorkerReady(msgspec.Struct, frozen=True, omit_defaults=True, tag="ready"):
    """The worker's first line: it has loaded the entry point, or `error` says why not (a traceback)."""

    error: str | None = None
