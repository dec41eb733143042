"""Keeps decorated functions decorated that are given to other processes by what they consist of."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from arttrace.capture.base.guard import Guard
from arttrace.capture.context.generators import Instrumented
from arttrace.capture.patches.registry import patch

_carrying = Guard("telling a child process its trajectory")


def install_cloudpickle(module: ModuleType) -> None:
    """Hook a copy of cloudpickle, by which joblib, loky, Ray and Dask give functions of `__main__` to other processes:
    it takes along what a function consists of, and so would leave its decoration behind."""
    pickler = vars(module).get("CloudPickler")  # before its major 3 in another module
    if hasattr(pickler, "reducer_override"):
        patch(pickler, "reducer_override", lambda reduce: _reduce(reduce, module.dumps))


def _reduce(reduce: Callable[..., Any], dumps: Callable[[Any], bytes]) -> Callable[..., Any]:
    @functools.wraps(reduce)
    def hooked(self: Any, obj: Any) -> Any:
        reduced = reduce(self, obj)
        if type(obj) is Instrumented and isinstance(reduced, tuple):  # by what it consists of
            with _carrying:
                return _decorated_again, (obj.__wrapped__, dumps(obj._self_again))
        return reduced

    return hooked


def _decorate_again(fn: Any, again: bytes) -> Any:
    """Taken along itself, as the other process may have no arttrace."""
    import pickle

    try:
        return pickle.loads(again)(fn)  # noqa: S301  what this module has pickled
    except Exception:  # noqa: BLE001  then it runs there undecorated
        return fn


_decorated_again = FunctionType(_decorate_again.__code__, {"__builtins__": builtins}, "_decorated_again")
_decorated_again.__module__ = "__main__"  # whose functions are taken along
