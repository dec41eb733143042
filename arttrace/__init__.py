"""arttrace: turn the agent you already run into training data, and the training data into a better model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arttrace.capture.api import (
        current_trajectory,
        flush,
        init,
        no_capture,
        reward,
        run_entry,
        shutdown,
        update,
    )
    from arttrace.capture.decorators import agent, tool, trajectory
    from arttrace.capture.routing import route

__all__ = [
    "agent",
    "current_trajectory",
    "flush",
    "init",
    "no_capture",
    "reward",
    "route",
    "run_entry",
    "shutdown",
    "tool",
    "trajectory",
    "update",
]

_DECORATORS = "arttrace.capture.decorators"
_MODULES = {"agent": _DECORATORS, "tool": _DECORATORS, "trajectory": _DECORATORS, "route": "arttrace.capture.routing"}


def __getattr__(name: str) -> Any:
    # Loaded on first use: whoever imports only records or the store does not pay for capture.
    if name not in __all__:
        raise AttributeError(f"module 'arttrace' has no attribute {name!r}")
    module = import_module(_MODULES.get(name, "arttrace.capture.api"))
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
