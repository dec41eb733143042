"""What a rollout runs: the function that an entry names, or a whole program, with arguments as they were recorded, or a
command."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from arttrace.capture import bootstrap
from arttrace.capture.base.annotations import as_annotated, hints_of, signature_of
from arttrace.capture.export.command_run import CommandRun
from arttrace.records.rollout import BEGUN_IN, ROLLOUT, Command, RolloutJob
from arttrace.system.exit_status import how_ended
from arttrace.system.processes import python_path


def load_entry(entry: str) -> Callable[..., Any]:
    """The callable that `module:function` or `path/to/file.py:function` names; a file's folder joins sys.path.

    Raises what importing it raises, ValueError for another form, TypeError when it names no callable, or a method.
    """
    source, colon, attribute = entry.rpartition(":")
    if not colon or not source or not attribute:
        raise ValueError(f"{entry!r} is neither module:function nor path/to/file.py:function")
    if source.endswith(".py"):
        path = Path(source).absolute()
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, str(Path.cwd()))
        module = importlib.import_module(source)
    found: Any = module
    holder: Any = None
    for name in attribute.split("."):
        holder, found = found, getattr(found, name)
    if not callable(found):
        raise TypeError(f"{entry} is not a function but of the type {type(found).__name__}")
    if inspect.isclass(holder) and _needs_an_object(holder, name):
        raise TypeError(
            f"{entry} is a method, and the record does not have the object it was called on. Name a function that makes"
            " the object and calls it."
        )
    return found  # type: ignore[no-any-return]


def _needs_an_object(holder: type, name: str) -> bool:
    found = inspect.getattr_static(holder, name)
    while not isinstance(found, (staticmethod, classmethod)) and hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return inspect.isfunction(found)


def bind(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments for `fn` from those that were recorded by parameter name.

    A value whose parameter is annotated as a dataclass, a pydantic model, a date and the like is made one again.
    Raises TypeError for a name that is no parameter.
    """
    signature = signature_of(fn)
    unknown = sorted(arguments.keys() - signature.parameters.keys())
    if unknown:
        raise TypeError(f"it has no parameter {unknown[0]!r}: the entry point has changed since it was recorded")
    hints = hints_of(fn)
    bound = inspect.BoundArguments(signature, {})
    for name, parameter in signature.parameters.items():
        if name in arguments:
            is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            value = arguments[name]
            bound.arguments[name] = as_annotated(value, hints.get(name)) if is_one else value
    return bound.args, bound.kwargs


def run_program(program: str, job: RolloutJob) -> None:
    """Run a script (its path) or a module again as one trajectory, as `arttrace run` does; its output is this
    process's.

    Raises RuntimeError with its exit code when that is not 0.
    """
    started = [program] if program.endswith(".py") else ["-m", program]
    words = [sys.executable, *started, *map(str, job.arguments.get("argv") or ())]
    _run(words, {**_given(job), "PYTHONPATH": python_path(str(Path(str(bootstrap.__file__)).parent))})


def run_command(job: RolloutJob) -> None:
    """Run the job's command, which is an `arttrace run` of a program, in a copy of its workspace where it has one; its
    output is this process's. The copy has all but the data directory, and is removed.

    Raises RuntimeError with its exit code when that is not 0, OSError where the workspace cannot be copied.
    """
    command = job.command
    assert command is not None
    begun_in = str(Path(command.copies, f"{job.trajectory_id}.run").absolute())
    try:
        _run_in_its_folder(command, job.trajectory_id, _given(job, begun_in))
    finally:
        CommandRun(begun_in).end()


def _run_in_its_folder(command: Command, trajectory_id: str, environment: Mapping[str, str]) -> None:
    if command.workspace is None:
        _run(command.words, environment)
        return
    left_out = {Path(os.environ["ARTTRACE_DIR"]).resolve(), Path(command.copies).resolve()}
    copy = Path(command.copies) / trajectory_id

    def not_copied(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if Path(folder, name).resolve() in left_out}

    try:
        shutil.copytree(command.workspace, copy, symlinks=True, ignore=not_copied)
        _run(command.words, environment, copy)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _given(job: RolloutJob, begun_in: str | None = None) -> dict[str, str]:
    """The environment in which a program finds what is said of its run, and a command's programs the file in which they
    say who has begun it."""
    given = {
        **({} if begun_in is None else {BEGUN_IN: begun_in}),
        "trajectory_id": job.trajectory_id,
        "scenario": job.scenario,
        "group": job.group,
        "metadata": job.metadata,
        "tags": job.tags,
    }
    return {**os.environ, ROLLOUT: msgspec.json.encode(given).decode()}


def _run(words: Sequence[str], environment: Mapping[str, str], folder: Path | None = None) -> None:
    code = subprocess.run(words, env=environment, cwd=folder, check=False).returncode
    if code:
        raise RuntimeError(f"the program ended with {how_ended(code)}")
