"""`arttrace init`: the data directory of a project, found from every directory below."""

from __future__ import annotations

from pathlib import Path

import click

from arttrace.system.files import not_written
from arttrace.system.paths import DataDir, pin


@click.command("init")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
def command(directory: Path) -> None:
    """Make DIRECTORY (here by default) the root of a project.

    Captured programs and commands that are started anywhere below it then use its `.arttrace`, unless --dir or
    $ARTTRACE_DIR says otherwise. git ignores the directory.
    """
    data = DataDir.resolve(directory / ".arttrace")
    known = data.is_pinned
    try:
        pin(data)
    except OSError as error:
        raise not_written(data.root, error, other="Name another directory") from error
    click.echo(f"{data.root} is {'the data directory' if known else 'now the data directory'} of all that runs below.")
