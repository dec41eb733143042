"""Text as it was typed. Python reads bytes that its encoding does not have as surrogates, which match nothing in a
store and which DuckDB and JSON refuse: set to ASCII only (`LC_ALL=C PYTHONUTF8=0`), those of all other letters."""

from __future__ import annotations

import os

import click

from arttrace.commands.shared.typed_numbers import typed_number


class _TypedText(click.types.StringParamType):
    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return as_typed(super().convert(value, param, ctx), param, ctx)


def as_typed(text: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
    """A parameter of a command in letters. Raises click.BadParameter if it is no UTF-8."""
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    try:
        return os.fsencode(text).decode()
    except UnicodeError:
        said = f"{text!r} is not UTF-8: type it in a terminal that is set to UTF-8."
        raise click.BadParameter(said, ctx, param) from None


_TYPED_TEXT = _TypedText()


def read_as_typed(command: click.Command) -> None:
    """Let every parameter of text of a command, and of the commands in it, be what was typed. The names of files are
    left as Python has them, or the operating system would not find them: theirs is `click.Path` or `click.UNPROCESSED`.
    And let every number be refused in words of ours.
    """
    for parameter in command.params:
        parameter.type = _TYPED_TEXT if parameter.type is click.STRING else typed_number(parameter.type)
    for inner in getattr(command, "commands", {}).values():
        read_as_typed(inner)
