"""RolloutJob and RolloutResult: one run of the user's entry point, asked for and done, as they pass between processes.

Between the trainer and a rollout worker each line is one JSON document: jobs go in, a `WorkerReady` and results come
out.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

PROGRAM = "run "
"""Before the script or module of a whole program, where an entry point is named."""


class RecordedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """One execution of a tool in the record. `arguments` and `result` are JSON values; where it raised, `error` is the
    name of the built-in exception, and `message` its text. Of a library's tool `failed` tells that the result says so,
    and `whole` is the result where it is more than a model is shown."""

    name: str
    arguments: Any = None
    result: Any = None
    error: str | None = None
    message: str = ""
    failed: bool = False
    whole: Any = None


class ToolRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What tools are answered with instead of being run, in order; a call beyond it is run (`live`) or fails.

    `agents` names the tools in which a model was called: these are sub-agents, and always run.
    """

    tools: tuple[RecordedTool, ...] = ()
    on_missing: Literal["live", "error"] = "error"
    agents: tuple[str, ...] = ()


class RolloutJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run to make: `arguments` are the entry point's keyword arguments; an empty `trajectory_id` is filled in.

    With `as_recorded` they are as the root span of a run has them: by parameter name, those of `*args` and `**kwargs`
    under their parameter's. With a `tools` record the entry point's tools are answered from it.
    """

    arguments: dict[str, Any]
    scenario: str | None = None
    group: str | None = None
    metadata: dict[str, Any] = {}
    trajectory_id: str = ""
    as_recorded: bool = False
    tools: ToolRecord | None = None


class RolloutResult(msgspec.Struct, frozen=True, omit_defaults=True, tag="result"):
    """What became of one run. `result` is the returned value as JSON; `error` tells why there is none.

    When this arrives the run's spans are on disk. `seconds` is the time the entry point took. `lost` tells that the
    error is no word about the agent: its worker died or was ended, or its spans could not be written.
    """

    trajectory_id: str
    result: Any = None
    error: str | None = None
    seconds: float = 0.0
    lost: bool = False


class WorkerReady(msgspec.Struct, frozen=True, omit_defaults=True, tag="ready"):
    """The worker's first line: it has loaded the entry point, or `error` says why not (a traceback)."""

    error: str | None = None
