"""Hooks the transport of the Claude Agent SDK, which starts Claude Code, a program of its own that calls the model.

Claude Code is asked to write what it sends and receives into a directory (`OTEL_LOG_RAW_API_BODIES`), with or without
telemetry of its own. What it tells the SDK meanwhile says when to look there, and which answers have to come.
"""

from __future__ import annotations

import copy
import functools
import os
import re
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls.model_call import is_wanted
from arttrace.capture.context.flow import Flow
from arttrace.capture.export import lifecycle
from arttrace.capture.patches.frameworks.claude_agent.claude_code import ClaudeCode, is_on
from arttrace.capture.patches.frameworks.claude_agent.directory import OwnDirectory
from arttrace.capture.patches.frameworks.claude_agent.sub_agents import texts_of
from arttrace.capture.patches.registry import patch
from arttrace.records.values.lenient_json import json_object
from arttrace.wire.span_attributes import json_or_none

VARIABLE = "OTEL_LOG_RAW_API_BODIES"
_FOLLOWED = "_arttrace_claude_code"
_GATEWAY = re.compile("/r/[0-9a-f]{32}(/|$)")
"""Where the gateway records programs."""
_hooking = Guard("recording Claude Code")


def install(module: ModuleType) -> None:
    """Hook `claude_agent_sdk._internal.transport.subprocess_cli`."""
    transport = module.SubprocessCLITransport
    for name, hook in (("connect", _connect), ("write", _write), ("read_messages", _read), ("close", _close)):
        patch(transport, name, hook)


def turn_of(transport: Any) -> Flow | None:
    """The flow of the turn that Claude Code is at; None where nothing of it is recorded."""
    followed: ClaudeCode | None = getattr(transport, _FOLLOWED, None)
    return None if followed is None else followed.flow()


def _connect(connect: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(connect)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _hooking:
            if getattr(self, _FOLLOWED, None) is None:
                setattr(self, _FOLLOWED, _begun(self))
        try:
            return await connect(self, *args, **kwargs)
        except BaseException:
            _end(self)
            raise

    return hooked


def _write(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    async def hooked(self: Any, data: str, *args: Any, **kwargs: Any) -> Any:
        with _hooking:
            followed = getattr(self, _FOLLOWED, None)
            if followed is not None and '"user"' in data[:64]:
                followed.asked(_prompt(data))
        return await write(self, data, *args, **kwargs)

    return hooked


def _prompt(data: str) -> str:
    """What a message to Claude Code asks; '' where that is no text."""
    message = json_object(json_object(json_or_none(data.encode(errors="replace"))).get("message"))
    return next(filter(None, texts_of(message)), "")


def _read(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        messages, followed = read(self, *args, **kwargs), getattr(self, _FOLLOWED, None)
        return messages if followed is None else _told(messages, followed)

    return hooked


async def _told(messages: AsyncIterator[Any], followed: ClaudeCode) -> AsyncIterator[Any]:
    async for message in messages:
        ended: set[str] = set()
        said = json_object(message)
        with _hooking:
            followed.take()
            ended = followed.saw(said)
        if ended:
            await followed.settle(ended, cut=said.get("subtype") == "error_during_execution")
        yield message


def _close(close: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(close)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await close(self, *args, **kwargs)
        finally:
            _end(self)

    return hooked


def _end(transport: Any) -> None:
    with _hooking:
        followed = getattr(transport, _FOLLOWED, None)
        if followed is not None:
            setattr(transport, _FOLLOWED, None)
            followed.end()


def _begun(transport: Any) -> ClaudeCode | None:
    """What follows a Claude Code that is about to be started; None where the gateway records it, or nothing is."""
    settings, options = lifecycle.recorder().settings, transport._options
    environment = {**os.environ, **options.env}
    server = environment.get("ANTHROPIC_BASE_URL") or ""
    if settings.disabled or lifecycle.is_off() or _GATEWAY.match(urlsplit(server).path):
        return None
    said = environment.get(VARIABLE) or ""
    if said.startswith("file:") or is_on(said) or not is_wanted():  # the user has them elsewhere, or nowhere
        return ClaudeCode(None, environment)
    try:
        directory = OwnDirectory(settings.data.claude_code)
    except OSError as error:
        _hooking.caught(error)
        return ClaudeCode(None, environment)
    transport._options = copy.copy(options)
    transport._options.env = {**options.env, VARIABLE: f"file:{directory.path}"}
    return ClaudeCode(directory, environment)
