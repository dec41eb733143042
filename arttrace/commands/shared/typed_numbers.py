"""Numbers of the command line: a word that is none, or one out of its bounds, is refused with what is wanted in place
of it, in one form for all commands."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import click
from click.types import FloatParamType, IntParamType

_Range = click.IntRange | click.FloatRange


def wanted_number(type_: click.ParamType[Any]) -> str:
    """What a type takes, such as "a whole number from 0 to 65535" or "a number above 0"."""
    kind = "a whole number" if isinstance(type_, IntParamType) else "a number"
    if not isinstance(type_, _Range):
        return kind
    least, most = type_.min, type_.max
    if least is not None and most is not None and not (type_.min_open or type_.max_open):
        return f"{kind} from {least} to {most}"
    bounds = [f"{'above' if type_.min_open else 'of at least'} {least}"] * (least is not None)
    bounds += [f"{'below' if type_.max_open else 'of at most'} {most}"] * (most is not None)
    return " ".join([kind, " and ".join(bounds)]).strip()


class _SaysWhatIsWanted(click.ParamType):  # type: ignore[type-arg]  # before 8.4 click gives it no parameters
    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = super().convert(value, param, ctx)
        except click.BadParameter:
            self._refuse(value, param, ctx)
        if isinstance(number, float) and not math.isfinite(number):
            self._refuse(value, param, ctx)
        return number

    def _refuse(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        self.fail(f"{str(value)!r} is given, {wanted_number(self)} is wanted.", param, ctx)


class _WholeNumber(_SaysWhatIsWanted, IntParamType):
    pass


class _Number(_SaysWhatIsWanted, FloatParamType):
    pass


class _WholeNumberWithin(_SaysWhatIsWanted, click.IntRange):
    pass


class _NumberWithin(_SaysWhatIsWanted, click.FloatRange):
    pass


def typed_number(type_: click.ParamType[Any]) -> click.ParamType[Any]:
    """A type of numbers that says what is wanted; any other type itself."""
    if type(type_) is click.IntRange:
        return _WholeNumberWithin(type_.min, type_.max, type_.min_open, type_.max_open, type_.clamp)
    if type(type_) is click.FloatRange:
        return _NumberWithin(type_.min, type_.max, type_.min_open, type_.max_open, type_.clamp)
    return _WholeNumber() if type_ is click.INT else _Number() if type_ is click.FLOAT else type_
