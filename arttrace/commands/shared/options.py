"""Options that several commands share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from arttrace.commands.shared.progress import with_reading_progress
from arttrace.system.addresses import is_http, without_login
from arttrace.system.errors import ArttraceError
from arttrace.system.files import written_text
from arttrace.system.paths import DataDir, beside_another

_URL = "arttrace.url"
_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _resolve(ctx: click.Context, _param: click.Parameter, value: str | None) -> DataDir:
    data = DataDir.resolve(value)
    if (url := ctx.meta.get(_URL)) is not None:
        if value is not None:
            raise click.UsageError("--url names a collector, --dir a directory of this machine: give one of them")
        return replace(data, url=url)
    if value is None and "ARTTRACE_DIR" not in os.environ and (above := data.above()) is not None:
        with contextlib.suppress(OSError):  # nobody reads it: the command does what it is for
            click.echo(f"note: {beside_another(data, above)}", err=True)
    return data


dir_option: _Decorator = click.option(
    "--dir",
    "data",
    type=click.Path(file_okay=False),
    callback=_resolve,
    help="Data directory (spool, store, policies).  [default: $ARTTRACE_DIR, else what `arttrace init` made here or"
    " above, else ./.arttrace]",
)


def require_address(value: str, such_as: str) -> None:
    """Raises click.BadParameter for what is no HTTP address."""
    if not is_http(value):
        raise click.BadParameter(f"{without_login(value)!r} is not an address such as {such_as}")


def _remember(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        require_address(value, "http://127.0.0.1:4318")
        ctx.meta[_URL] = value.rstrip("/")


_url_option: _Decorator = click.option(
    "--url",
    is_eager=True,
    expose_value=False,
    callback=_remember,
    help="Ask this collector, with the key $ARTTRACE_API_KEY, and no data directory.  [default: $ARTTRACE_ENDPOINT]",
)


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--dir`, or `--url` for a store on another machine: for commands that need the store and no other file. They say
    how far it is when the store's runs are read, if that takes long."""
    return dir_option(_url_option(with_reading_progress(command)))


def file_or_standard_output(_ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
    """The callback of an option that names a file to write: None, standard output, for `-`."""
    return None if value == Path("-") else value


def _read_key(_ctx: click.Context, _param: click.Parameter, file: Path | None) -> str | None:
    """The key that clients must send, from the file or the environment. One that no header can hold would be refused by
    each client, or never match."""
    if file is None:
        key = os.environ.get("ARTTRACE_API_KEY", "")
        if key and not _can_be_sent(key):
            raise ArttraceError(
                "ARTTRACE_API_KEY is no key that a client can send: it is more than one line of printable ASCII, or "
                "has spaces around it",
                "Set it to a long random key, and nothing else.",
            )
        return key or None
    try:
        key = written_text(file).strip()
    except UnicodeDecodeError:
        raise ArttraceError(f"the key file {file} is not a text file", "Put a long random key into it.") from None
    if not _can_be_sent(key):
        what = "is empty" if not key else "holds more than one line of printable ASCII"
        raise ArttraceError(f"the key file {file} {what}", "Put a long random key into it, and nothing else.")
    return key


def _can_be_sent(key: str) -> bool:
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()


api_key_file_option: _Decorator = click.option(
    "--api-key-file",
    "api_key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_read_key,
    help="Clients must send the key in this file.  [default: $ARTTRACE_API_KEY, else none is asked for]",
)
"""The key is in a file: a command line can be read by every user of the machine."""

_SHARED = {"--dir": 1, "--url": 1, "--json": 0}
"""Options that may stand on either side of a subcommand, with the number of their values."""


def options_from_the_front(args: list[str]) -> list[str]:
    """Shared options before the name of a subcommand stand behind it."""
    length = _leading(args)
    return [*args[length : length + 1], *args[:length], *args[length + 1 :]] if length < len(args) else args


def options_of_a_command_from_the_front(
    args: list[str], find: Callable[[str], click.Command | None], names: Collection[str], around: click.Command
) -> list[str]:
    """Options before the name of the command that has them stand behind it: `--limit 2 ls` is `ls --limit 2`; so do
    those of `around`, the command that it is a command of. All else stays, for click to refuse."""
    for place, name in enumerate(args):
        if place and name in names and (command := find(name)) is not None:
            known = _lengths(around) | _lengths(command)
            if isinstance(command, click.Group):
                inner = next((found for arg in args[place:] if (found := command.commands.get(arg)) is not None), None)
                known |= _lengths(inner) if inner is not None else {}
            at = 0
            while at < place and (length := _length(args[at], known)):
                at += length
            if at == place:
                return [name, *args[:place], *args[place + 1 :]]
    return args


def _lengths(command: click.Command) -> dict[str, int]:
    """The options of a command, each with the number of its values."""
    options = [
        param for param in command.params if isinstance(param, click.Option) and not (param.is_flag and param.is_eager)
    ]
    return {
        name: 0 if one.is_flag or one.count else one.nargs
        for one in options
        for name in (*one.opts, *one.secondary_opts)
    }


def _length(arg: str, known: dict[str, int]) -> int:
    """How many arguments an option takes with its values; 0 for what is none of these options."""
    if arg[:2] == "--":
        name, equals, _ = arg.partition("=")
        return (1 if equals else 1 + known[name]) if name in known else 0
    name = arg[:2]  # `-n8` is `-n 8`
    return (1 if len(arg) > len(name) else 1 + known[name]) if name in known else 0


def options_to_the_front(args: list[str], stay: Collection[str] = ()) -> list[str]:
    """Shared options behind the name of a subcommand stand before it, but for those in `stay` and what follows `--`."""
    before, after = (args[: args.index("--")], args[args.index("--") :]) if "--" in args else (args, [])
    front: list[str] = []
    rest: list[str] = []
    while before:
        length = _leading(before, stay)
        front += before[:length]
        rest += before[length : length + 1]
        before = before[length + 1 :]
    return [*front, *rest, *after]


def _leading(args: list[str], stay: Collection[str] = ()) -> int:
    """How many arguments at the beginning are shared options and their values."""
    at = 0
    while at < len(args) and (name := args[at].partition("=")[0]) in _SHARED and name not in stay:
        at += 1 + (_SHARED[name] if "=" not in args[at] else 0)
    return min(at, len(args))


class SharedOptionsGroup(click.Group):
    """A subcommand with subcommands of its own: `--dir` and `--json` may stand behind their names too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = options_of_a_command_from_the_front(args, self.commands.get, self.commands, self)
        command = next((found for arg in args if (found := self.get_command(ctx, arg)) is not None), None)
        own = {name for param in command.params for name in param.opts} if command is not None else set()
        return super().parse_args(ctx, options_to_the_front(args, own))


json_option: _Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
