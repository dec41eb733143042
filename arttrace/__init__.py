"""arttrace: turn the agent you already run into training data, and the training data into a better model."""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all else here
if TYPE_CHECKING:
    from typing import Any

    from arttrace.capture.api import (
        current_trajectory,
        flush,
        init,
        no_capture,
        reward,
        run_entry,
        shutdown,
        uninstrument,
        update,
    )
    from arttrace.capture.base.receiver import Receiver
    from arttrace.capture.decorators import agent, tool, trajectory
    from arttrace.capture.middleware import ASGIMiddleware, WSGIMiddleware
    from arttrace.capture.route import route
    from arttrace.views.datasets.huggingface import dataset

__all__ = [
    "ASGIMiddleware",
    "Receiver",
    "WSGIMiddleware",
    "agent",
    "current_trajectory",
    "dataset",
    "flush",
    "init",
    "no_capture",
    "reward",
    "route",
    "run_entry",
    "shutdown",
    "tool",
    "trajectory",
    "uninstrument",
    "update",
]

_MODULES = {
    "ASGIMiddleware": "capture.middleware",
    "Receiver": "capture.base.receiver",
    "WSGIMiddleware": "capture.middleware",
    "agent": "capture.decorators",
    "dataset": "views.datasets.huggingface",
    "route": "capture.route",
    "tool": "capture.decorators",
    "trajectory": "capture.decorators",
}

_DECORATORS = "@arttrace.trajectory on the entry, @arttrace.agent and @arttrace.tool below it"
_HOOKED = "nothing: clients are captured as they are"
_ELSEWHERE = {
    "LitAgent": ("Agent Lightning", "@arttrace.trajectory on the function that you have"),
    "LLMProxy": ("Agent Lightning", "`arttrace serve`"),
    "Trainer": ("Agent Lightning", "`arttrace train`, or a loop by arttrace.loop"),
    "emit_reward": ("Agent Lightning", "arttrace.reward(value)"),
    "observe": ("Langfuse", _DECORATORS),
    "op": ("Weave", _DECORATORS),
    "rollout": ("Agent Lightning", "@arttrace.trajectory"),
    "traceable": ("LangSmith", _DECORATORS),
    "traced": ("Braintrust", _DECORATORS),
    "wrap_anthropic": ("LangSmith", _HOOKED),
    "wrap_openai": ("LangSmith", _HOOKED),
}
"""What names of other libraries are here."""


def __getattr__(name: str) -> Any:
    # Loaded on first use: whoever imports only records or the store does not pay for capture.
    if name not in __all__:
        from arttrace.system.errors import no_such_name

        library, here = _ELSEWHERE.get(name, ("", ""))
        raise no_such_name("arttrace", name, {name: here} if here else {}, library)
    from importlib import import_module

    module = import_module(f"arttrace.{_MODULES.get(name, 'capture.api')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
