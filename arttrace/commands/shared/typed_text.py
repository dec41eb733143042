"""Text as it was typed, if Python was set to ASCII only (`LC_ALL=C PYTHONUTF8=0`): then it reads the bytes of other
letters as surrogates, which match nothing in a store and which DuckDB refuses."""

from __future__ import annotations

import contextlib
import os

import click

from arttrace.commands.shared.typed_numbers import typed_number


class _TypedText(click.types.StringParamType):
    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return as_typed(super().convert(value, param, ctx))


def as_typed(text: str) -> str:
    """A parameter of a command in letters; itself where it is no UTF-8."""
    with contextlib.suppress(UnicodeError):
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            return os.fsencode(text).decode()
    return text


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
