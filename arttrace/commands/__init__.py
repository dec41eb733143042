"""The `arttrace` command: a group that imports a subcommand's module only when it is asked for."""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from importlib import import_module
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from arttrace.commands.shared.ending import ended_as_by_ctrl_c
from arttrace.commands.shared.extras import PACKAGE_OF_EXTRA, foreign_trainer, is_missing
from arttrace.commands.shared.machine_errors import library_error, machine_error
from arttrace.commands.shared.options import options_from_the_front, options_of_a_command_from_the_front
from arttrace.commands.shared.typed_text import read_as_typed
from arttrace.system.errors import ArttraceError
from arttrace.system.private_files import only_for_its_user
from arttrace.system.processes import collect_garbage_seldom, signals_after_imports

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

_OURS = ("arttrace", "trainer")


class _Command(NamedTuple):
    module: str
    """"" where an entry point names it: arttrace never imports the trainer."""
    help: str
    extra: str = ""
    """What has to be installed beside the bare package: `pip install 'arttrace[EXTRA]'`."""


_COMMANDS = {
    "autorl": _Command("arttrace.commands.autorl.command", "Train a model on a task described in words.", "trainer"),
    "collect": _Command("arttrace.commands.collect", "Receive spans of any OpenTelemetry SDK.", "store"),
    "completion": _Command("arttrace.commands.completion", "Print the script that completes commands in a shell."),
    "dataset": _Command("arttrace.commands.data.dataset", "Write training data for other libraries.", "store"),
    "demo": _Command("", "Watch the whole loop on this machine.", "trainer"),
    "diff": _Command("arttrace.commands.inspect.diff", "Show two runs side by side, from where they part.", "store"),
    "doctor": _Command(
        "arttrace.commands.doctor.command", "Check the installation, the data directory and the servers."
    ),
    "export": _Command("arttrace.commands.data.export", "Write stored spans as OTLP.", "store"),
    "group": _Command(
        "arttrace.commands.inspect.group", "Group stored runs by another criterion than their own.", "store"
    ),
    "import": _Command("arttrace.commands.data.import_", "Take in traces of other systems from files.", "store"),
    "init": _Command("arttrace.commands.data.init", "Make this directory the project's root for captured data."),
    "judge-check": _Command(
        "arttrace.commands.scoring.judge_check", "Compare a judge's scores with true rewards.", "judge"
    ),
    "langfuse": _Command("arttrace.commands.data.langfuse", "Send runs to Langfuse, take in its traces.", "store"),
    "ls": _Command("arttrace.commands.inspect.ls", "List captured runs, the newest first.", "store"),
    "mcp": _Command("arttrace.commands.inspect.mcp", "Serve the store to coding agents by MCP, read only.", "mcp"),
    "policies": _Command("", "List, compare, export, fork, roll back and prune versions.", "trainer"),
    "prune": _Command("arttrace.commands.data.prune", "Take old runs out of the store, and their space back.", "store"),
    "rollout": _Command("", "Run recorded inputs again under the current policy.", "trainer"),
    "run": _Command("arttrace.commands.run", "Run a program and capture what its agents do."),
    "score": _Command("arttrace.commands.scoring.score", "Let a judge model score groups of runs.", "judge"),
    "serve": _Command("", "Serve a model and its policy's newest version.", "trainer"),
    "ship": _Command("arttrace.commands.ship", "Deliver what captured processes left to a collector."),
    "show": _Command(
        "arttrace.commands.inspect.show", "Show one run as a tree of agents, messages and tools.", "store"
    ),
    "sql": _Command("arttrace.commands.inspect.sql", "Query the store with SQL.", "store"),
    "stats": _Command("arttrace.commands.inspect.stats", "Sum up tokens, errors, latency and reward.", "store"),
    "status": _Command("", "Show what the training daemon does.", "trainer"),
    "tail": _Command("arttrace.commands.inspect.tail", "Print what agents do, as they do it.", "store"),
    "top": _Command("arttrace.commands.inspect.top", "Show what runs now.", "store"),
    "train": _Command("", "Train the policy on captured runs: GRPO, SFT or DPO.", "trainer"),
    "view": _Command("arttrace.commands.inspect.view", "Look at runs, groups and training in the browser.", "store"),
}


class _LazyGroup(click.Group):
    """Names come from the table above and from the entry points `arttrace.commands` of installed packages."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-"):
            find = partial(self.get_command, ctx)
            args = options_of_a_command_from_the_front(args, find, self.list_commands(ctx), self)
        try:
            return super().parse_args(ctx, options_from_the_front(args))
        except click.NoSuchOption as error:
            said = f"{error.format_message()} Options of a command stand behind its name: arttrace ls --limit 2"
            raise click.UsageError(said, ctx) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_COMMANDS, *(point.name for point in _entry_points())})

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names alone: nothing is imported for a word that is not written yet."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=_COMMANDS[name].help if name in _COMMANDS else None) for name in names]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, one.help + (f" [{one.extra}]" * is_missing(one.extra))) for name, one in _COMMANDS.items()]
        rows += [(name, "") for name in self.list_commands(ctx) if name not in _COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        if any(map(is_missing, (one.extra for one in _COMMANDS.values()))):
            formatter.write_paragraph()
            formatter.write_text("A command with a word in brackets needs more: pip install 'arttrace[WORD]'.")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = _COMMANDS.get(cmd_name, _Command("", ""))
        try:
            if known.module:
                with signals_after_imports(takes_long=False):
                    command: click.Command = import_module(known.module).command
                read_as_typed(command)
                return command
            for point in _entry_points().select(name=cmd_name):
                if cmd_name in _COMMANDS:
                    _check_trainer()
                with signals_after_imports(takes_long=False):
                    loaded: click.Command = point.load()
                read_as_typed(loaded)
                return loaded
        except ModuleNotFoundError as error:
            raise _explained(error, cmd_name) from None
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in _COMMANDS or ctx.resilient_parsing or name in (known := self.list_commands(ctx)):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        near = get_close_matches(name, known, 1)
        remedy = f"Did you mean {near[0]!r}?" if near else "`arttrace --help` lists them."
        raise click.UsageError(f"No such command {name!r}. {remedy}", ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does; a command that imports what it needs only as it runs, such as `demo`, names its extra too."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if _importer(error) not in _OURS:
                raise
            raise _explained(error, ctx.invoked_subcommand or "") from None


def _entry_points() -> EntryPoints:
    """Looked for only where the table does not name a module: every installed package is asked."""
    with signals_after_imports(takes_long=False):
        from importlib.metadata import entry_points
    return entry_points(group="arttrace.commands")


def _explained(error: ModuleNotFoundError, command: str) -> Exception:
    """What to install, where a command of an extra lacks a package; else the error itself."""
    extra = _COMMANDS[command].extra if command in _COMMANDS else ""
    if not extra or (error.name or "").partition(".")[0] in _OURS:
        return error
    package = PACKAGE_OF_EXTRA[extra] if is_missing(extra) else error.name
    return click.ClickException(f"`arttrace {command}` needs the package {package}: pip install 'arttrace[{extra}]'")


def _importer(error: ModuleNotFoundError) -> str:
    """The top-level package of the module whose import statement failed."""
    frames = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    names = [name.partition(".")[0] for name in frames]
    return next((name for name in reversed(names) if name != "importlib"), "")


def _check_trainer() -> None:
    """Raises when Python finds another `trainer` than the one that came with arttrace."""
    if other := foreign_trainer():
        raise click.ClickException(
            f"Python finds {other} as the module `trainer`, in place of arttrace's own.\n"
            "Take its folder off PYTHONPATH, or rename it."
        )


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="arttrace", prog_name="arttrace")
def cli() -> None:
    """Turn the agent you already run into training data, and the training data into a better model."""


def main(program: str | None = None) -> None:
    """Run the command line; our own errors are shown as cause and hint, without a traceback (exit code 1). In its help
    it is called `program`, or as it was started."""
    collect_garbage_seldom()
    only_for_its_user()
    _open_closed_streams()
    _print_whatever_it_is()
    try:
        with ended_as_by_ctrl_c():
            cli.main(prog_name=program, standalone_mode=False, color=_colour())
    except ArttraceError as error:
        _fail(error)
    except (OSError, ImportError) as error:
        found = machine_error(error) if isinstance(error, OSError) else None
        if (found := found or library_error(error)) is None:
            raise
        _fail(found)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)


def _open_closed_streams() -> None:
    """What is printed where nobody listens goes nowhere. A program that is started finds the streams closed as ever."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def _print_whatever_it_is() -> None:
    """Letters that the terminal's encoding does not have are printed as escapes, in place of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _colour() -> bool | None:
    """False where NO_COLOR wants none; None where a terminal has colours, and nothing else."""
    return False if os.environ.get("NO_COLOR") else None


def _fail(error: ArttraceError) -> NoReturn:
    click.secho(f"error: {error.message}", fg="red", err=True, color=_colour())
    if error.hint:
        click.echo(error.hint, err=True)
    sys.exit(1)
