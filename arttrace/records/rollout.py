"""RolloutJob and RolloutResult: a request to run the user's entry point and what came of it, as they pass between
processes.

Between the trainer and a rollout worker each line is one JSON document: jobs go in, a `WorkerReady` and results come
out.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

PROGRAM = "run "
"""The prefix of an entry point that is a whole program, before its script or module."""
COMMAND = "command "
"""The prefix of an entry point that is a command in any language, before its name."""
ROLLOUT = "ARTTRACE_ROLLOUT"
"""The environment variable by which a program finds what a rollout says of its run: an object as JSON."""
BEGUN_IN = "begun_in"
"""In that object, of a command: the file in which the first of its processes says where it has begun the run."""


class RecordedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """One execution of a tool in the record. `arguments` and `result` are JSON values; where it raised, `error` is the
    name of the built-in exception, and `message` its text. For a library's tool, `failed` means that its result reports
    a failure, and `whole` is the result if it is more than the model was shown."""

    name: str
    arguments: Any = None
    result: Any = None
    error: str | None = None
    message: str = ""
    failed: bool = False
    whole: Any = None


class ToolRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answers of tools that are not run again, in order; a call beyond them is run (`live`) or fails.

    `agents` are the names of tools in which a model was called: these are sub-agents, and always run.
    """

    tools: tuple[RecordedTool, ...] = ()
    on_missing: Literal["live", "error"] = "error"
    agents: tuple[str, ...] = ()


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command to run: its words, and the directory of which it gets a copy to work in, below `copies`, if any."""

    words: tuple[str, ...]
    workspace: str | None = None
    copies: str = ""


class RolloutJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run to make. `arguments` are the entry point's keyword arguments; an empty `trajectory_id` is filled in.

    With `as_recorded` they are in the form of a run's root span: by parameter name, those of `*args` and `**kwargs`
    under their parameter's. With `tools`, the entry point's tools are answered from that record. A `command` is
    run in the place of the entry point.
    """

    arguments: dict[str, Any]
    scenario: str | None = None
    group: str | None = None
    metadata: dict[str, Any] = {}
    tags: tuple[str, ...] = ()
    trajectory_id: str = ""
    as_recorded: bool = False
    tools: ToolRecord | None = None
    command: Command | None = None


class RolloutResult(msgspec.Struct, frozen=True, omit_defaults=True, tag="result"):
    """The outcome of one run. `result` is the returned value as JSON; `error` says why there is none.

    When this arrives the run's spans are on disk. `seconds` is the time the entry point took. `lost` means that the
    error says nothing about the agent: its worker died or was stopped, or its spans could not be written.
    """

    trajectory_id: str
    result: Any = None
    error: str | None = None
    seconds: float = 0.0
    lost: bool = False


class WorkerReady(msgspec.Struct, frozen=True, omit_defaults=True, tag="ready"):
    """The worker's first line: it has loaded the entry point, or `error` says why not (a traceback)."""

    error: str | None = None
