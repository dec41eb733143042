"""Takes messages, arguments and results from Google ADK where it makes a span and leaves them out.

By default it exports no content, and says it in log records at most. What it exports stays as the user has it: these
hooks only look at what it had in hand. The spans themselves are followed by otel_tracers.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from opentelemetry.trace import get_current_span

from arttrace.capture.base.guard import Guard
from arttrace.capture.patches.otel_tracers import followed_by
from arttrace.capture.patches.registry import patch
from arttrace.records import semconv

_reading = Guard("reading a call of Google ADK")


def install(module: ModuleType) -> None:
    """Hook `google.adk.telemetry.tracing`, of version 2.13 or one that has the same functions. Its first schema says
    messages one by one, in log records: of those it is the functions that make them that are hooked."""
    if hasattr(module, "maybe_log_completion_details"):
        patch(module, "maybe_log_completion_details", _call)
    if hasattr(module, "trace_tool_call"):
        patch(module, "trace_tool_call", _tool)
    if hasattr(module, "system_message_body") and hasattr(module, "trace_inference_result"):
        patch(module, "system_message_body", _request)
        patch(module, "trace_inference_result", _response)


def _call(log: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(log)
    def hooked(*args: Any, **kwargs: Any) -> None:
        with _reading:
            given = _given(("span", "otel_logger", "operation_details_attributes"), args, kwargs)
            followed = followed_by(given["span"])
            if followed is not None and followed.is_awaited:
                followed.unsaid = {**followed.unsaid, **given["operation_details_attributes"]}
        log(*args, **kwargs)

    return hooked


def _request(body: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(body)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        with _reading:
            followed = followed_by(get_current_span())
            if followed is not None and followed.is_awaited:
                given = _given(("llm_request",), args, kwargs)
                followed.unsaid = dict(_written()._build_request_operation_details(given["llm_request"]))
        return body(*args, **kwargs)

    return hooked


def _response(trace: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(trace)
    def hooked(*args: Any, **kwargs: Any) -> None:
        trace(*args, **kwargs)
        with _reading:
            given = _given(("invocation_context", "span", "llm_response"), args, kwargs)
            followed = followed_by(getattr(given["span"], "span", given["span"]))
            if followed is not None and followed.is_awaited and semconv.INPUT_MESSAGES in followed.unsaid:
                said = _written()._build_response_operation_details(given["llm_response"])
                followed.unsaid = _with_answer(followed.unsaid, said.get(semconv.OUTPUT_MESSAGES))

    return hooked


def _written() -> ModuleType:
    return import_module("google.adk.telemetry._experimental_semconv")


def _with_answer(unsaid: Mapping[str, Any], answers: Any) -> dict[str, Any]:
    """With an answer, or with the next chunk of it."""
    if not answers:
        return dict(unsaid)
    [before] = unsaid.get(semconv.OUTPUT_MESSAGES) or [{"parts": ()}]
    [new] = answers
    return {**unsaid, semconv.OUTPUT_MESSAGES: [{**before, **new, "parts": [*before["parts"], *new["parts"]]}]}


def _tool(trace: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(trace)
    def hooked(*args: Any, **kwargs: Any) -> None:
        trace(*args, **kwargs)
        with _reading:
            given = _given(("tool", "args", "function_response_event", "error", "span"), args, kwargs)
            followed = followed_by(given.get("span") or get_current_span())
            if followed is not None and followed.is_awaited:
                followed.unsaid = _ran(given["args"], given.get("function_response_event"))

    return hooked


def _ran(arguments: Mapping[str, Any], event: Any) -> dict[str, Any]:
    said: dict[str, Any] = {semconv.TOOL_CALL_ARGUMENTS: dict(arguments)}
    for part in getattr(getattr(event, "content", None), "parts", None) or ():
        response = getattr(part.function_response, "response", None)
        if response is not None:
            said[semconv.TOOL_CALL_RESULT] = response
    return said


def _given(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}
