"""Hooks AutoGen's runtime of one process, whose own task hands messages to agents. It may have begun before any run, or
in another one, so each message takes along the flow of whoever sent it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.base.guard import Guard
from arttrace.capture.context.flow import calling_flow, set_flow
from arttrace.capture.patches.registry import patch

_FLOW = "_arttrace_flow"
"""On a message in the queue: the flow of its sender."""

_sending = Guard("sending a message of AutoGen")
_handling = Guard("handling a message of AutoGen")


def install(module: ModuleType) -> None:
    """Hook `autogen_core._single_threaded_agent_runtime`."""
    for envelope in (module.SendMessageEnvelope, module.PublishMessageEnvelope):
        patch(envelope, "__init__", _sent)
    for process in ("_process_send", "_process_publish"):  # each message's in a task of its own
        patch(module.SingleThreadedAgentRuntime, process, _process)


def _sent(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        with _sending:
            vars(self)[_FLOW] = calling_flow()

    return hooked


def _process(process: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(process)
    async def hooked(self: Any, message_envelope: Any, *args: Any, **kwargs: Any) -> Any:
        with _handling:
            flow = vars(message_envelope).get(_FLOW)
            if flow is not None:
                set_flow(flow)
        return await process(self, message_envelope, *args, **kwargs)

    return hooked
