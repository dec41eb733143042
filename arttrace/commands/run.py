"""`arttrace run`: a program captured without a line of it changed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import click

from arttrace.capture.export.summary import VARIABLE
from arttrace.commands.shared.options import dir_option
from arttrace.system.addresses import is_http
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.system.private_files import users_umask
from arttrace.system.processes import python_path, signals_after_imports, tell

_PYTHON = re.compile(r"(python|pypy)[\d.]*w?(\.exe)?", re.IGNORECASE)
_STARTERS = re.compile(
    r"(ba|da|z|k|fi)?sh|env|sudo|make|just|task|nohup|nice|ionice|setsid|stdbuf|time|timeout|xargs|watch|strace|"
    r"uvx?|poetry|pdm|hatch|pipenv|rye|pixi|(micro)?mamba|conda|srun|mpirun|mpiexec"
)
"""Programs that are no agents themselves and often start one in Python."""


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@dir_option
@click.option("--project", help="The project's name.  [default: $ARTTRACE_PROJECT or default]")
@click.option(
    "--policy",
    metavar="URL|NAME",
    help="Send every model call to this policy: the server's base URL, or a name at $ARTTRACE_POLICY_URL.",
)
@click.option(
    "--sampling",
    type=click.Choice(["request", "policy"]),
    help="With policy, what would change the policy's own sampling is left out of the calls.  "
    "[default: $ARTTRACE_POLICY_SAMPLING or request]",
)
@click.option("--quiet", is_flag=True, help="Do not print at the end what was captured and what was not.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    data: DataDir,
    project: str | None,
    policy: str | None,
    sampling: str | None,
    quiet: bool,
    program: tuple[str, ...],
) -> None:
    """Run a program and capture every model call it makes, without changes to its code.

    \b
    arttrace run -- python agent.py --task 3
    arttrace run -- python -m my_package
    arttrace run -- my-console-script

    A script's path or -m MODULE alone runs under this Python. The program replaces this command: exit code, signals and
    terminal are the program's own. Calls inside functions decorated with @trajectory belong to those trajectories; all
    other calls of a process are one trajectory, named after the program, which is complete when the process ends.
    Processes that it starts are captured as well.

    With --policy the program can be in any language: OPENAI_BASE_URL and ANTHROPIC_BASE_URL are set to the gateway,
    which records the program's calls as one trajectory that ends when the program does. A program that is not Python is
    not started where no gateway answers.
    """
    arguments = _command_line(program)
    environment = {**os.environ, **_environment(data, project)}
    if policy is not None:
        environment["ARTTRACE_ROUTE"] = "*={}@{}".format(*_policy_server(policy))
    if sampling is not None:
        environment["ARTTRACE_POLICY_SAMPLING"] = sampling
    environment |= {} if quiet else {VARIABLE: str(data.root / f"tally-{uuid4().hex}")}
    executable = shutil.which(arguments[0], path=environment.get("PATH"))
    if executable is None:
        raise ArttraceError(
            f"there is no program {arguments[0]!r}", "Name one on PATH or by its path: arttrace run -- python agent.py"
        )
    _refuse_uncapturable(executable, arguments)
    if policy is None and not quiet and not _is_one_of((_PYTHON, _STARTERS), executable, arguments):
        name = Path(executable).name
        tell(
            f"arttrace: {name} is not Python, so that its own calls are not captured, those of Python programs that it "
            f"starts are. `arttrace run --policy URL -- {name}` captures one whose calls go to `arttrace serve`."
        )
    if policy is not None and not _is_one_of((_PYTHON,), executable, arguments):
        with signals_after_imports(takes_long=False):
            from arttrace.commands.recorded_program import policy_gateway, run_recorded  # an HTTP client

        gateway = policy_gateway(*_policy_server(policy))
        program_name = Path(executable).name
        if (problem := gateway.problem()) is None:
            with _starting(executable):
                code = run_recorded(executable, arguments, environment, gateway, quiet=quiet)
            sys.exit(code)
        if not (problem.answers and _is_one_of((_STARTERS,), executable, arguments)):
            raise ArttraceError(
                f"{program_name} was not started, as no gateway records it at {gateway.host}: {problem.cause}",
                f"{problem.remedy} Without --policy it asks its own provider.",
            )
        if not quiet:
            tell(
                f"arttrace: {program_name} is not Python, and no gateway records it at {gateway.host}: "
                f"{problem.cause}. Of what it starts, only Python programs are captured."
            )
    if os.name == "posix":
        if users_umask() >= 0:
            os.umask(users_umask())
        with _starting(executable):
            os.execve(executable, arguments, environment)  # noqa: S606  to run it is what was asked
    sys.exit(subprocess.call([executable, *arguments[1:]], env=environment))


@contextmanager
def _starting(executable: str) -> Iterator[None]:
    """Raise ArttraceError where the system refuses to execute the program."""
    try:
        yield
    except OSError as error:
        if error.filename != executable:
            raise
        raise ArttraceError(
            f"{executable} cannot be started: {error.strerror}",
            f"A script begins with #! and its interpreter, or has it named: arttrace run -- sh {executable}",
        ) from error


def _command_line(program: tuple[str, ...]) -> list[str]:
    """The program as it is executed: a script or -m MODULE gets this Python before it."""
    if program[0] in ("-m", "-c") or (program[0].endswith(".py") and not os.access(program[0], os.X_OK)):
        return [sys.executable, *program]
    return list(program)


def _refuse_uncapturable(executable: str, arguments: list[str]) -> None:
    """Raise where Python is asked to start without what capture comes in by."""
    for command in (arguments, [*_shebang(executable), executable]):
        option = _isolating_option(command)
        if option is not None:
            raise ArttraceError(
                f"python -{option} starts without PYTHONPATH or sitecustomize: nothing would be captured",
                f"Leave out -{option} (in {' '.join(command[:3])} ...), or decorate the program's entry with"
                " @arttrace.trajectory and start it without arttrace run",
            )


def _is_one_of(kinds: Iterable[re.Pattern[str]], executable: str, arguments: list[str]) -> bool:
    commands = (arguments, [*_shebang(executable), executable])
    return any(kind.fullmatch(Path(command[0]).name) for kind in kinds for command in commands if command)


def _isolating_option(command: list[str]) -> str | None:
    """The first of -S, -I and -E among the options of a command that is Python's own."""
    if not command or not _PYTHON.fullmatch(Path(command[0]).name):
        return None
    rest = iter(command[1:])
    for word in rest:
        if not word.startswith("-") or word in ("-", "--") or word.startswith("--"):
            return None
        for position, letter in enumerate(word[1:], 1):
            if letter in "cm":  # what follows is the program
                return None
            if letter in "SIE":
                return letter
            if letter in "WX":  # takes a value, here or in the next word
                if position == len(word) - 1:
                    next(rest, None)
                break
    return None


def _shebang(executable: str) -> list[str]:
    """The command that a script's first line names."""
    try:
        with Path(executable).open("rb") as file:
            line = file.readline(512)
    except OSError:
        return []
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    is_env = bool(words) and Path(words[0]).name == "env"
    return [word for word in words[1:] if word != "-S"] if is_env else words


def _policy_server(policy: str) -> tuple[str, str]:
    """The model's name and the server's base URL that --policy means. Raises ArttraceError where there is none."""
    if is_http(policy):
        return "policy:latest", policy
    url = os.environ.get("ARTTRACE_POLICY_URL")
    if not url:
        raise ArttraceError(
            f"the policy {policy!r} has no server",
            "Set ARTTRACE_POLICY_URL, or give the URL itself: arttrace run --policy http://127.0.0.1:8000/v1",
        )
    return policy, url


def _environment(data: DataDir, project: str | None) -> dict[str, str]:
    """What the program finds in its environment: where to record, and our folder before all others on PYTHONPATH."""
    spec = find_spec("arttrace.capture.bootstrap")
    assert spec is not None
    assert spec.origin is not None
    environment = {"PYTHONPATH": python_path(str(Path(spec.origin).parent)), "ARTTRACE_DIR": str(data.root)}
    if project is not None:
        environment["ARTTRACE_PROJECT"] = project
    return environment
