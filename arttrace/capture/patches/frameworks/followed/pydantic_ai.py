"""Has PydanticAI make its spans where nobody asked it to, so that otel_tracers.py can follow them.

A run that is not instrumented makes none since version 2. Inside a trajectory it is given settings whose provider makes
spans that go nowhere; settings of the user's, of an agent or of all, are left as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

from arttrace.capture.base.guard import Guard
from arttrace.capture.context import program
from arttrace.capture.context.flow import calling_flow
from arttrace.capture.patches.registry import patch

_instrumenting = Guard("following the agents of PydanticAI")


def install(module: ModuleType) -> None:
    """Hook `pydantic_ai.agent`."""
    name, settings = "_resolve_instrumentation_settings", module.InstrumentationSettings
    if hasattr(module.Agent, name):
        patch(module.Agent, name, lambda resolve: _resolve(resolve, settings))


def _resolve(resolve: Callable[..., Any], settings: Callable[..., Any]) -> Callable[..., Any]:
    private: list[Any] = []

    @functools.wraps(resolve)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        users = resolve(self, *args, **kwargs)
        if users is not None:
            return users
        with _instrumenting:
            flow = calling_flow()
            if not flow.muted and (flow.scope or program.scope()) is not None:
                if not private:
                    made = settings(tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
                    private.append(made)
                return private[0]
        return None

    return hooked
