"""Passes the trajectory on to programs that are started inside it: by `subprocess`, and by what `os` starts.

A child's environment is what it would have been, and one variable more.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from msgspec.structs import replace

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.remote_context import VARIABLE, RemoteContext
from arttrace.capture.context import program
from arttrace.capture.context.flow import calling_flow
from arttrace.capture.context.propagation import outgoing_context
from arttrace.capture.patches.registry import patch
from arttrace.system.processes import inherited_environment, python_path_before_others, set_meanwhile

_carrying = Guard("telling a child process its trajectory")
_ENV = 10  # the place of `env` among the positional arguments of Popen
_BOOTSTRAP = str(Path(__file__).parents[2] / "bootstrap")
"""The folder that `arttrace run` puts on PYTHONPATH."""


def install_subprocess(module: ModuleType) -> None:
    """Hook `subprocess.Popen`, which asyncio's subprocesses are started with as well."""
    patch(module.Popen, "__init__", _popen)


def install_os(module: ModuleType) -> None:
    """Hook what `os` starts programs by. Its `spawn` functions, pty and others fork, and call one of `exec` then."""
    patch(module, "execv", _execv)
    for name in ("execve", "posix_spawn", "posix_spawnp"):
        if hasattr(module, name):
            patch(module, name, _with_env)
    if module.name == "posix":
        patch(module, "system", _system)


def _popen(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> None:
        with _carrying:
            if (told := _told()) is not None:
                if len(args) > _ENV:
                    args = (*args[:_ENV], told.added_to(args[_ENV]), *args[_ENV + 1 :])
                else:
                    kwargs["env"] = told.added_to(kwargs.get("env"))
        init(self, *args, **kwargs)

    return hooked


def _execv(start: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    @functools.wraps(start)
    def hooked(*args: Any, **kwargs: Any) -> NoReturn:
        env = None
        with set_meanwhile(python_path_before_others(os.environ, _BOOTSTRAP)):
            with _carrying:
                if (told := _told()) is not None:
                    env = told.added_to(None)
            if env is not None and len(args) == 2:
                with contextlib.suppress(Exception):  # `execv` has other words for it
                    os.execve(*args, env)  # noqa: S606  what the user starts
            start(*args, **kwargs)

    return hooked


def _with_env(start: Callable[..., Any]) -> Callable[..., Any]:
    """Of what takes the environment as its third argument; None for the inherited one is for `posix_spawn` alone, from
    Python 3.13 on."""
    takes_none = sys.version_info >= (3, 13) and start.__name__ != "execve"

    @functools.wraps(start)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        with _carrying:
            if (told := _told()) is not None:
                if len(args) > 2 and (takes_none or args[2] is not None):
                    args = (*args[:2], told.added_to(args[2]), *args[3:])
                elif kwargs.get("env") is not None or (takes_none and "env" in kwargs):
                    kwargs["env"] = told.added_to(kwargs["env"])
        return start(*args, **kwargs)

    return hooked


def _system(start: Callable[..., int]) -> Callable[..., int]:
    """The shell that runs the command sets the variable: it inherits this process's environment, as others do that
    are started meanwhile."""

    @functools.wraps(start)
    def hooked(*args: Any, **kwargs: Any) -> int:
        with _carrying:
            if (told := _told()) is not None:
                if args:
                    args = told.set_before(args[0]), *args[1:]
                elif "command" in kwargs:
                    kwargs["command"] = told.set_before(kwargs["command"])
        return start(*args, **kwargs)

    return hooked


class _Notice:
    """What a program that is started is told: its place in the trajectory, or without one that it is not captured. To
    all of them ours goes before others' folders on PYTHONPATH."""

    def __init__(self, sent: RemoteContext | None, *, is_told: bool = True) -> None:
        self._sent = sent
        self._is_told = is_told

    def added_to(self, env: Any) -> Any:
        """An environment and our variable; None is the inherited one. What is no mapping is left to be refused."""
        if env is not None and not isinstance(env, Mapping):
            return env
        sent = self._sent
        if sent is not None and env is not None and env.get("ARTTRACE_DIR") != os.environ.get("ARTTRACE_DIR"):
            sent = replace(sent, dir=None)  # the child was given a directory of its own
        kept = inherited_environment() if env is None else env
        told = self._variable(sent) | python_path_before_others(kept, _BOOTSTRAP)
        return {name: value for name, value in kept.items() if _text(name) not in told} | told

    def set_before(self, command: Any) -> Any:
        """A command of the shell that sets our variables first."""
        told = self._variable(self._sent) | python_path_before_others(os.environ, _BOOTSTRAP)
        first = "".join(f"export {name}={shlex.quote(value)}; " for name, value in told.items())
        command = os.fspath(command)
        return first + command if isinstance(command, str) else first.encode() + command

    def _variable(self, sent: RemoteContext | None) -> dict[str, str]:
        told = {"ARTTRACE_DISABLED": "1"} if sent is None else {VARIABLE: sent.text()}
        return told if self._is_told else {}


def _text(name: Any) -> Any:
    """A variable's name as text: an environment of bytes may hold ours too."""
    return os.fsdecode(name) if isinstance(name, bytes) else name


def _told() -> _Notice | None:
    """What a program that the current flow starts is told; None where that is nothing."""
    sent = outgoing_context(joins=False)  # most programs are not Python's, or not captured
    if sent is not None or (calling_flow().muted and (program.captures_all() or VARIABLE in os.environ)):
        return _Notice(sent)
    return _Notice(None, is_told=False) if python_path_before_others(os.environ, _BOOTSTRAP) else None
