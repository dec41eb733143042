"""Every public function and class says what it does, names each of its arguments, what it returns and what it raises."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

PUBLIC = (
    "arttrace",
    "arttrace.loop",
    "arttrace.mcp",
    "arttrace.rewards",
    "arttrace.store",
    "arttrace.trajectories",
    "trainer.learner",
    "trainer.serving",
)
"""Whose `__all__` is the public surface."""
RECORDS = ("call", "group", "message", "policy", "record", "reward", "rollout", "sequence", "span", "trajectory")


def defined(module: str) -> list[tuple[str, Any]]:
    """What a module offers: `__all__`, else the classes and functions that it defines."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None)
    if names is None:
        names = [n for n, v in vars(found).items() if getattr(v, "__module__", "") == module and not n.startswith("_")]
    return [(f"{module}.{name}", getattr(found, name)) for name in names]


def surface() -> Iterator[tuple[str, Any]]:
    """Every public function, class and method, by name."""
    seen: set[int] = set()
    for module in (*PUBLIC, *(f"arttrace.records.{name}" for name in RECORDS)):
        for name, value in defined(module):
            if not (inspect.isclass(value) or inspect.isroutine(value)) or id(value) in seen:
                continue
            seen.add(id(value))
            yield name, value
            if inspect.isclass(value):
                for base in value.__mro__:
                    if base.__module__.split(".")[0] not in ("arttrace", "trainer"):
                        continue
                    for method, function in vars(base).items():
                        if not method.startswith("_") and id(function) not in seen:
                            seen.add(id(function))
                            if isinstance(plain := getattr(function, "__func__", function), FunctionType):
                                yield f"{name}.{method}", plain


AS = re.compile(r"As (\w+)\.(\w+)\.$")
"""What a method that implements another one may say in place of everything."""


def documented(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    if same := AS.match(text):
        text = inspect.getdoc(getattr(importlib.import_module("arttrace.store"), same[1]).__dict__[same[2]]) or ""
    return text


def arguments(value: Any) -> list[str]:
    """The names of what is passed in."""
    if inspect.isclass(value):
        init = inspect.unwrap(vars(value).get("__init__", object.__init__))
        if not isinstance(init, FunctionType) or init.__code__.co_filename == "<string>":
            return []  # a record: its fields have names and types, and say in place what these leave open
        value = init
    return [name for name in inspect.signature(value).parameters if name not in ("self", "cls") and name[0] != "_"]


def raised(value: Any) -> set[str]:
    """The exceptions that its own body raises by name."""
    if inspect.isclass(value):
        value = inspect.unwrap(vars(value).get("__init__", object.__init__))
    if not isinstance(value, FunctionType) or value.__code__.co_filename == "<string>":  # a dataclass makes its own
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    return {call.func.id for call in calls if isinstance(call.func, ast.Name) and call.func.id[0] != "_"}


SURFACE = dict(surface())


@pytest.mark.parametrize("name", SURFACE)
def test_a_public_name_is_documented(name: str) -> None:
    value = SURFACE[name]
    text = documented(value)
    assert text
    assert not text.startswith(f"{name.rpartition('.')[2]}("), "only what dataclass wrote"
    missing = [one for one in arguments(value) if not re.search(rf"\b{re.escape(one)}\b", text)]
    assert not missing, "arguments that the docstring does not name"
    assert not [one for one in raised(value) if one not in text], "exceptions that the docstring does not name"
