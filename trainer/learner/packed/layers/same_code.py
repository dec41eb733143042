"""Whether a function is, instruction by instruction, another one.

transformers repeats the same few functions in each of its models. What replaces one of them has to know what it
replaces; by its code a function is known for certain, whatever it is called and whichever model it is of.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any


def same_code(one: Any, other: Any) -> bool:
    """Both are plain functions that do the same with the same names; False where either is anything else."""
    if type(one) is not FunctionType or type(other) is not FunctionType:
        return False
    mine, theirs = one.__code__, other.__code__
    return (
        mine.co_code == theirs.co_code
        and mine.co_names == theirs.co_names
        and mine.co_varnames[: mine.co_argcount] == theirs.co_varnames[: theirs.co_argcount]
        and _constants(one) == _constants(other)
        and one.__defaults__ == other.__defaults__
        and not (one.__closure__ or other.__closure__)
    )


def _constants(function: FunctionType) -> list[tuple[type, Any]]:
    """Without the docstring."""
    return [(type(value), value) for value in function.__code__.co_consts if value != function.__doc__]
