"""Which functions of a package a program enters, and how to make one of them raise wherever it is called from."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any


class Fault(ZeroDivisionError):
    """What a function made to fail raises."""


def modules(package: ModuleType) -> list[ModuleType]:
    """The package's modules, all imported."""
    names = [info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    # Python itself imports the sitecustomize that `arttrace run` puts before the user's.
    return [package, *(importlib.import_module(name) for name in names if not name.endswith("sitecustomize"))]


def functions(package: ModuleType) -> dict[str, FunctionType]:
    """Every function and method written in the package, by `module:qualname`."""
    found: dict[str, FunctionType] = {}
    for module in modules(package):
        for value in list(vars(module).values()):
            for function in _functions_of(value):
                if function.__module__ == module.__name__ and "<" not in function.__qualname__:
                    found[f"{module.__name__}:{function.__qualname__}"] = function
    return found


def _functions_of(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)
    if callable(value) and not isinstance(value, type):  # a proxy's class has a `__wrapped__` for its objects
        value = inspect.unwrap(value)
    if isinstance(value, FunctionType):
        if value.__code__.co_filename.endswith(".py"):  # not one that dataclasses generated
            yield value
    elif isinstance(value, type):
        for member in list(vars(value).values()):
            if not isinstance(member, type):
                yield from _functions_of(member)


def entered(package: ModuleType, program: Callable[[], object]) -> set[CodeType]:
    """The code in the package's files that `program` runs, in any thread that it starts."""
    root = str(Path(str(package.__file__)).parent)
    codes: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            codes.add(frame.f_code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        program()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return codes


@contextmanager
def failing(function: FunctionType) -> Iterator[None]:
    """Make every call of the function raise `Fault`, under whatever name it was imported."""

    def broken(*_: Any, **__: Any) -> Any:
        from faults import Fault

        raise Fault("ours")

    code = function.__code__
    function.__code__ = broken.__code__.replace(co_freevars=code.co_freevars, co_name=code.co_name)
    try:
        yield
    finally:
        function.__code__ = code
