"""The `arttrace` command: a group that imports a subcommand's module only when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import entry_points, version

import click

from arttrace.errors import ArttraceError
from arttrace.private import only_for_its_user

_OWN = {
    "collect": "arttrace.commands.collect",
    "export": "arttrace.commands.export",
    "import": "arttrace.commands.import_",
    "judge-check": "arttrace.commands.judge_check",
    "ls": "arttrace.commands.ls",
    "prune": "arttrace.commands.prune",
    "run": "arttrace.commands.run",
    "score": "arttrace.commands.score",
    "ship": "arttrace.commands.ship",
    "show": "arttrace.commands.show",
    "sql": "arttrace.commands.sql",
}

_EXTRA_OF_MODULE = {
    "duckdb": "store",
    "pyarrow": "store",
    "rich": "store",
    "starlette": "store",
    "uvicorn": "store",
    "litellm": "judge",
    "torch": "trainer",
}


class _LazyGroup(click.Group):
    """Names come from the table above and from the entry points `arttrace.commands` of installed packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_OWN, *(point.name for point in entry_points(group="arttrace.commands"))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            if cmd_name in _OWN:
                command: click.Command = import_module(_OWN[cmd_name]).command
                return command
            for point in entry_points(group="arttrace.commands", name=cmd_name):
                loaded: click.Command = point.load()
                return loaded
        except ModuleNotFoundError as error:
            extra = _EXTRA_OF_MODULE.get(error.name or "")
            if extra is None:
                raise
            raise click.ClickException(
                f"`arttrace {cmd_name}` needs the package {error.name}, which is not installed.\n"
                f"Install it with: pip install 'arttrace[{extra}]'"
            ) from None
        return None


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("arttrace"), prog_name="arttrace")
def cli() -> None:
    """Turn the agent you already run into training data, and the training data into a better model."""


def main() -> None:
    """Run the command line; our own errors are shown as cause and mend, without a traceback (exit code 1)."""
    only_for_its_user()
    try:
        cli.main(standalone_mode=False)
    except ArttraceError as error:
        click.secho(f"error: {error.message}", fg="red", err=True)
        if error.mend:
            click.echo(error.mend, err=True)
        sys.exit(1)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
