"""The whole program as one trajectory, for `arttrace run`: calls outside any `@trajectory` belong to it.

It begins with the first such call, so that a program whose calls are all inside trajectories of its own has none
beside them, and ends when the process does. Each process of a program has its own; one that was started inside a
trajectory is a sub-agent of that. A process that was given a function to run, or jobs of a pool, has one for each: that
of the function, with its arguments, which ends when it returns, as the process may be killed as soon as it has.

A command that a rollout has started is one run, however many processes and decorated functions take part in it: the
first process to record something begins it, and all else is a sub-agent of that.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from arttrace.capture.base.annotations import arguments_of
from arttrace.capture.base.entry_point import EntryPoint, is_of_a_library, of_callable, of_program
from arttrace.capture.base.guard import Guard, SaidLater
from arttrace.capture.base.ids import random_hex
from arttrace.capture.base.remote_context import RemoteContext, of_process
from arttrace.capture.context.execution import Execution
from arttrace.capture.context.position import Position, ScopeKind
from arttrace.capture.context.propagation import remote_parent, remote_parent_by_baggage
from arttrace.capture.context.run import RunOverrides, RunState
from arttrace.capture.context.scope import Scope
from arttrace.capture.export import lifecycle
from arttrace.capture.export.command_run import CommandRun
from arttrace.records.rollout import BEGUN_IN, ROLLOUT
from arttrace.system import native_threads
from arttrace.system.processes import at_the_end_of_a_multiprocessing_child

_lock = native_threads.Lock()
_enabled = False
_overrides: RunOverrides | None = None
_command: CommandRun | None = None
"""Where a rollout has started the command that this process belongs to, the run of it."""
_scope: Scope | None = None
_beginning: int | None = None
"""The thread that begins it: what a rule of the user's calls meanwhile belongs to nothing."""
_ends = False
_ending = Guard("ending the program's trajectory", background=True)
_describing = Guard("saying what a process was given to do")


class Work(NamedTuple):
    """What a process was given to do: a function, by its name and as an entry point, and its arguments; `args` is None
    where what it works on is told otherwise, as by the object that it is a method of, or a queue."""

    name: str
    entry: EntryPoint
    fn: Callable[..., Any]
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any]


_job: Work | None = None
_forked = False


def enable() -> bool:
    """From now on calls outside a trajectory are recorded under the program's. True when a rollout started it.

    What a rollout that started this program says of its trajectory is taken from the environment here, so that it
    concerns no process that the program starts. What it says of a command's run concerns all of the command's.
    """
    global _enabled, _overrides, _command
    _enabled = True
    job = os.environ.get(ROLLOUT)
    if job is None:
        return False
    given = msgspec.json.decode(job)
    begun_in = given.pop(BEGUN_IN, None)
    if begun_in is None:
        del os.environ[ROLLOUT]
    else:
        _command = CommandRun(begun_in)
    _overrides = RunOverrides(**given)
    return True


def captures_all() -> bool:
    """Whether calls outside a trajectory are recorded under the program's."""
    return _enabled


def takes_jobs() -> bool:
    """Whether what a job does outside a trajectory is recorded."""
    return _enabled or of_process() is not None


def begin_job(job: Work) -> None:
    """What this process, which is one of a pool, does now is a run of that, if it does anything outside of others; what
    it did until now is another."""
    global _job
    if _scope is not None:
        end()
    _job = job


def end_job(result: Any, error: BaseException | None) -> None:
    """The job has returned that, or raised: its run is complete, and what comes later is in another."""
    global _job
    if _scope is not None:
        if error is None:
            _scope.set_result(result)
        end(error)
    _job = None


def scope(kind: ScopeKind = "agent") -> Position | None:
    """The position of what happens outside any scope of this process; None where it belongs to nothing.

    That is the remote parent that an HTTP request named; else the program, begun now if it has not, where the whole
    program is captured or it was started inside a trajectory of another process. A `trajectory` stands beside the
    program, and not in it, but for the command of a rollout.
    """
    stands_beside = kind == "trajectory" and _command is None
    if not stands_beside and (lifecycle.is_off() or _beginning == threading.get_ident()):
        return None
    parent: Position | None = remote_parent_by_baggage()
    if parent is not None:
        return parent
    inherited = of_process()
    if stands_beside or (inherited is None and not _enabled):
        return None if inherited is None else remote_parent(inherited)
    with SaidLater(_lock), _lock:
        if _scope is None and not lifecycle.recorder().settings.disabled:
            if inherited is not None:
                _begin(remote_parent(inherited))
            elif _command is None:
                _begin(None, copy(_overrides) if _forked else _overrides)  # each job is of a rollout's run
            else:
                _begin_or_join(_command)
        return _scope


def _begin_or_join(command: CommandRun) -> None:
    with command.turn() as turn:
        if turn is None:
            _begin(None)
        elif turn.begun is not None:
            _begin(remote_parent(turn.begun))
        else:
            scope = _begin(None, _overrides)
            span = scope.context
            turn.note(RemoteContext(span.trace_id, span.span_id, scope.id, capture_content=scope.capture_content))


def _begin(parent: Position | None, overrides: RunOverrides | None = None) -> Scope:
    """Begin the program's trajectory, or its part of another process's."""
    global _scope, _beginning
    project = lifecycle.recorder().settings.project
    run = RunState(id=random_hex(32), project=project) if parent is None else parent.run
    if overrides is not None:
        overrides.apply(run)
    work = _job or _work_of_process()
    entry = of_program() if work is None else work.entry
    name = _program_name(entry) if work is None else work.name
    _beginning = threading.get_ident()
    try:
        scope = Scope("trajectory" if parent is None else "agent", name, run=run, parent=parent, entry=entry)
    finally:
        _beginning = None
    _scope = scope
    if (arguments := {"argv": sys.argv[1:]} if work is None else _arguments_of(work)) is not None:
        scope.set_arguments(**arguments)
    scope.belongs_to(Execution.start(scope.root.execution, owner=threading.main_thread()))
    _end_with_the_process()
    return scope


def _arguments_of(work: Work) -> Mapping[str, Any] | None:
    """None where they cannot be told: the run is then compared with no other."""
    if work.args is None:
        return None
    with _describing:
        return arguments_of(work.fn, work.args, work.kwargs)
    return None


def _work_of_process() -> Work | None:
    """What a process of `multiprocessing` was started for: its function, or the `run` of its own class. Where it is a
    library's, that of this program."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return None
    current = process.current_process()
    target = getattr(current, "_target", None)
    does = target or type(current).run
    if does is process.BaseProcess.run:
        return None
    name, entry = of_callable(does)
    if is_of_a_library(does):
        program = of_program()
        entry = EntryPoint(program.source, f"{program.name}:{entry.name.rpartition(':')[2]}")
        return Work(_program_name(program), entry, does, None, {})
    if target is None:
        return Work(type(current).__name__, entry, does, None, {})
    return Work(name, entry, target, current._args, current._kwargs)


def _program_name(entry: EntryPoint) -> str:
    return Path(entry.source).stem or entry.source


def begun() -> Position | None:
    """The program's position where it has begun already; nothing begins by asking."""
    return _scope


def _end_with_the_process() -> None:
    global _ends
    if not _ends:
        _ends = True
        lifecycle.before_exit.append(_finish)
    at_the_end_of_a_multiprocessing_child(_finish_child, priority=200)


def _finish(error: BaseException | None = None) -> None:
    with _ending:
        if _scope is not None:
            _scope.close(error or getattr(sys, "last_value", None))


def _finish_child() -> None:
    """Called while what the process ran is being left, by an exception where it raised one."""
    _finish(sys.exc_info()[1])


def end(error: BaseException | None = None) -> None:
    """End the program's trajectory before the program: what is recorded later is in another."""
    global _scope
    with _lock:
        _finish(error)
        _scope = None


def _after_fork_in_child() -> None:
    global _lock, _scope, _beginning, _job, _forked
    _lock, _scope, _beginning, _job, _forked = native_threads.Lock(), None, None, None, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
