"""Hooks the transport of the Claude Agent SDK, which starts Claude Code, a program of its own that calls the model.

Claude Code is asked to write what it sends and receives into a directory (`OTEL_LOG_RAW_API_BODIES`), with or without
telemetry of its own. What it tells the SDK meanwhile says when to look there, and which answers have to come. A call is
recorded when its answer is whole, under the agent that asked Claude Code, or below it under the sub-agent of Claude
Code's that made it.
"""

from __future__ import annotations

import copy
import functools
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import Context, copy_context
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls.model_call import ModelCall, begin_call, is_wanted
from arttrace.capture.context import program
from arttrace.capture.context.flow import Flow, calling_flow
from arttrace.capture.context.generators import ScopeStep
from arttrace.capture.export import summary
from arttrace.capture.patches.frameworks.claude_agent.bodies import RefusedAttempt, WrittenBodies, WrittenCall
from arttrace.capture.patches.frameworks.claude_agent.sub_agents import SubAgents, restore_thoughts
from arttrace.capture.patches.httpx import note_passed
from arttrace.capture.patches.registry import patch
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.wire.span_attributes import json_or_none

VARIABLE = "OTEL_LOG_RAW_API_BODIES"
PATH = "/v1/messages"
_SESSION = "_arttrace_session"
_WAIT_S = 1.0
_LOOK_EVERY_S = 0.005
_GATEWAY = "/r/"
_recording = Guard("recording Claude Code")


def install(module: ModuleType) -> None:
    """Hook `claude_agent_sdk._internal.transport.subprocess_cli`."""
    transport = module.SubprocessCLITransport
    for name, hook in (("connect", _connect), ("write", _write), ("read_messages", _read), ("close", _close)):
        patch(transport, name, hook)


class NoAnswer(Exception):
    """The model server gave Claude Code no answer."""


def _connect(connect: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(connect)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _recording:
            if is_wanted() and getattr(self, _SESSION, None) is None:
                setattr(self, _SESSION, _begun(self))
        try:
            return await connect(self, *args, **kwargs)
        except BaseException:
            _end(self)
            raise

    return hooked


def _write(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    async def hooked(self: Any, data: str, *args: Any, **kwargs: Any) -> Any:
        with _recording:
            session = getattr(self, _SESSION, None)
            if session is not None and '"user"' in data[:64]:
                session.asked()
        return await write(self, data, *args, **kwargs)

    return hooked


def _read(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        messages, session = read(self, *args, **kwargs), getattr(self, _SESSION, None)
        return messages if session is None else _followed(messages, session)

    return hooked


async def _followed(messages: AsyncIterator[Any], session: _ClaudeCode) -> AsyncIterator[Any]:
    async for message in messages:
        ended: set[str] = set()
        with _recording:
            ended = session.saw(json_object(message))
        if ended:
            await session.settle(ended)
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
    with _recording:
        session = getattr(transport, _SESSION, None)
        if session is not None:
            setattr(transport, _SESSION, None)
            session.end()


def _begun(transport: Any) -> _ClaudeCode | None:
    """What follows a Claude Code that is about to be started; None where the gateway records it."""
    options = transport._options
    environment = {**os.environ, **options.env}
    server = environment.get("ANTHROPIC_BASE_URL") or ""
    if urlsplit(server).path.startswith(_GATEWAY):
        return None
    if environment.get(VARIABLE):  # the user has them written elsewhere
        return _ClaudeCode(None, environment)
    directory = Path(tempfile.mkdtemp(prefix="arttrace-claude-code-"))
    transport._options = copy.copy(options)
    transport._options.env = {**options.env, VARIABLE: f"file:{directory}"}
    session = _ClaudeCode(directory, environment)
    weakref.finalize(session, _remove, directory, os.getpid())
    return session


def _remove(directory: Path, pid: int) -> None:
    if pid == os.getpid():  # a forked child's end is not that of the session
        shutil.rmtree(directory, ignore_errors=True)


class _ClaudeCode:
    """One Claude Code while it runs, and what of it is not recorded yet."""

    def __init__(self, directory: Path | None, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._bodies = None if directory is None else WrittenBodies(directory)
        self._url = (environment.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com").rstrip("/") + PATH
        self._provider = _provider(environment)
        self.context: Context = copy_context()
        """That of whoever has asked last."""
        self._agents = SubAgents()
        self._awaited: dict[str, str] = {}
        """The answers that Claude Code has told of and that are not recorded, with the agent of each."""
        self._recorded: set[str] = set()
        self._refusals: list[RefusedAttempt] = []
        self._thoughts: dict[str, str] = {}
        self._failure = ""
        self._is_waited_for = True

    def asked(self) -> None:
        """What comes from now on is of the caller's flow."""
        self.context = copy_context()

    def saw(self, message: dict[str, Any]) -> set[str]:
        """Claude Code has told the SDK something. Returns which agents of it have ended; '' is the main one's turn."""
        kind, said = message.get("type"), json_object(message.get("message"))
        if kind == "assistant":
            if said.get("model") == "<synthetic>":
                self._failure = " ".join(str(block.get("text", "")) for block in json_objects(said.get("content")))
            elif isinstance(id := said.get("id"), str) and id not in self._recorded:
                self._awaited[id] = str(message.get("parent_tool_use_id") or "")
            for block in json_objects(said.get("content")):
                if block.get("type") == "thinking" and block.get("signature"):
                    self._thoughts[str(block["signature"])] = str(block.get("thinking") or "")
        elif kind == "system" and message.get("subtype") == "api_retry":
            status = message.get("error_status")
            self._refusals.append(RefusedAttempt(time.time_ns(), status if isinstance(status, int) else None))
        return self._agents.saw(message) | ({""} if kind == "result" else set())

    async def settle(self, ended: set[str]) -> None:
        """Record what these agents have done: wait for the answers that Claude Code writes beside telling of them."""
        until = time.monotonic() + _WAIT_S
        while True:
            self._take()
            awaited = [id for id, agent in self._awaited.items() if agent in ended]
            if not awaited:
                break
            if not self._is_waited_for or time.monotonic() > until:
                self._is_waited_for = bool(self._recorded)  # an older one writes none
                self._give_up(awaited, alone=not self._agents.are_running)
                break
            await anyio.sleep(_LOOK_EVERY_S)
        with _recording:
            self._run(self._agents.close_ended)

    def end(self) -> None:
        """Claude Code has ended: record all that is left, and say what did not come."""
        self._take()
        self._give_up([*self._awaited], alone=True)
        with _recording:
            self._run(self._agents.close)
        if self._directory is not None:
            _remove(self._directory, os.getpid())

    def _give_up(self, answers: list[str], *, alone: bool) -> None:
        """These answers do not come whole any more. If they are all that was asked for, `alone`, the requests that are
        there have no answer."""
        with _recording:
            rest = self._bodies.rest(self._refusals) if alone and self._bodies is not None else []
            for written in rest:
                self._run(self._record, written)
            for id in answers:
                del self._awaited[id]
            if (missing := len(answers) - len(rest)) > 0:
                self._run(self._miss, missing)

    def _run(self, what: Callable[..., None], *args: Any) -> None:
        """Do something in the flow of whoever has asked last."""
        self.context.copy().run(what, *args)

    def _take(self) -> None:
        """Record what has come."""
        with _recording:
            if self._bodies is not None:
                for written in self._bodies.take(self._refusals):
                    self._recorded.add(written.answer_id)
                    self._awaited.pop(written.answer_id, None)
                    self._run(self._record, written)

    def _record(self, written: WrittenCall) -> None:
        request = json_object(json_or_none(written.request))
        answer = json_object(json_or_none(written.answer or b""))
        sent, received = written.request, written.answer
        if restore_thoughts(self._thoughts, request, answer):
            sent, received = msgspec.json.encode(request), received and msgspec.json.encode(answer)
        with ScopeStep(self._agents.scope_of(request, answer, written.source, written.started_ns)):
            call = begin_call(None, path=PATH, provider=self._provider)
        if not isinstance(call, ModelCall):
            return
        call.start_ns = written.started_ns
        for refused in written.refused:
            call.sending(sent, self._url, {})
            call.refused(refused.time_ns, refused.status)
        if received is not None:
            call.sending(sent, self._url, {})
            call.answered(200, {"content-type": "application/json"}, received)
            call.finish("complete", end_ns=written.ended_ns)
        elif any(refused.status is not None for refused in written.refused):
            call.finish("complete", NoAnswer(self._failure or "no answer came"), end_ns=written.ended_ns)
        else:
            call.finish("cancelled")

    @staticmethod
    def _miss(count: int) -> None:
        """So many calls are not recorded: their run is not complete."""
        for _ in range(count):
            note_passed("Claude Code", "", summary.BY_A_PROGRAM)
        position = calling_flow().scope or program.begun()
        if position is not None:
            position.run.ended_spans += count


def _provider(environment: Mapping[str, str]) -> str:
    """`gen_ai.provider.name` of the service that Claude Code asks."""
    if environment.get("CLAUDE_CODE_USE_BEDROCK"):
        return "aws.bedrock"
    return "gcp.vertex_ai" if environment.get("CLAUDE_CODE_USE_VERTEX") else "anthropic"


def turn_of(transport: Any) -> Flow | None:
    """The flow of the turn that Claude Code is at; None where nothing of it is recorded."""
    session: _ClaudeCode | None = getattr(transport, _SESSION, None)
    return None if session is None else session.context.copy().run(calling_flow)
