"""One Claude Code while it runs: what it writes and what it tells the SDK become the calls of the runs that asked it.

A call is recorded when its answer is whole, under the scope that had asked when the call began, or below it under the
sub-agent of Claude Code's that made it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from contextvars import Context, copy_context
from typing import Any

import anyio
import msgspec

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls.model_call import ModelCall, begin_call, is_wanted
from arttrace.capture.context import program
from arttrace.capture.context.flow import Flow, calling_flow
from arttrace.capture.context.generators import ScopeStep
from arttrace.capture.export import summary
from arttrace.capture.patches.frameworks.claude_agent.bodies import RefusedAttempt, WrittenBodies, WrittenCall
from arttrace.capture.patches.frameworks.claude_agent.directory import OwnDirectory
from arttrace.capture.patches.frameworks.claude_agent.sub_agents import SubAgents, restore_thoughts, texts_of
from arttrace.capture.patches.httpx import note_passed
from arttrace.records.values.lenient_json import json_object, json_objects

PATH = "/v1/messages"
_WAIT_S = 5.0  # on a machine that is busy
_WAIT_WHILE_WRITING_S = 30.0  # on a disk that stands still
_WAIT_FOR_THE_FIRST_S = 3.0  # an older one writes none
_LOOK_EVERY_S = 0.005
_CLOCKS_NS = 20_000_000  # the times of files are behind
_WRITTEN_WITHIN_NS = 30_000_000_000
_KEPT_BYTES = 16 << 20
_KEPT_IDS = 10_000
_KEPT_TURNS = 100  # of which calls may come that run beside the main agent's
_KEPT_REFUSALS = 100
_CLOUDS = {
    "CLAUDE_CODE_USE_BEDROCK": "aws.bedrock",
    "CLAUDE_CODE_USE_VERTEX": "gcp.vertex_ai",
    "CLAUDE_CODE_USE_FOUNDRY": "azure.ai.inference",
}
"""`gen_ai.provider.name`, by what has Claude Code ask that service."""
_recording = Guard("recording Claude Code")


class NoAnswer(Exception):
    """The model server gave Claude Code no answer."""


class ClaudeCode:
    """What of one Claude Code is not recorded yet. Without a directory, that is all of it: it is counted."""

    writes_none = False
    """Whether the last one wrote nothing, as older ones do: the next one is not waited for."""

    def __init__(self, directory: OwnDirectory | None, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._bodies = None if directory is None else WrittenBodies(directory.path)
        self._provider = next((name for told, name in _CLOUDS.items() if is_on(environment.get(told))), "anthropic")
        server = environment.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
        self._url = PATH if self._provider != "anthropic" else server.rstrip("/") + PATH
        self._turns: list[tuple[int, Context, str]] = [(0, copy_context(), "")]
        """When each turn was asked for, the context of who asked, and the prompt."""
        self._agents = SubAgents()
        self._awaited: dict[str, tuple[str, Context]] = {}
        """The answers that Claude Code has told of and that are not recorded: the agent of each, and its turn."""
        self._missed: dict[str, Context] = {}
        """Those that were given up, with their turns."""
        self._recorded: dict[str, None] = {}
        self._refusals: list[RefusedAttempt] = []
        self._thoughts: dict[str, str] = {}
        self._thoughts_bytes = 0
        self._failure = ""

    @property
    def turn(self) -> Context:
        """The context of whoever has asked last."""
        return self._turns[-1][1]

    def flow(self) -> Flow:
        """The flow of whoever has asked last."""
        return self.turn.copy().run(calling_flow)

    def asked(self, prompt: str = "") -> None:
        """What begins from now on is of the caller's flow."""
        self.take()
        self._failure = ""
        self._turns = [*self._turns[-_KEPT_TURNS:], (time.time_ns(), copy_context(), prompt)]

    def saw(self, message: dict[str, Any]) -> set[str]:
        """Claude Code has told the SDK something. Returns which agents of it have ended; '' is the main one's turn."""
        kind, said = message.get("type"), json_object(message.get("message"))
        if kind == "assistant":
            if said.get("model") == "<synthetic>":
                self._failure = " ".join(str(block.get("text", "")) for block in json_objects(said.get("content")))
            elif isinstance(id := said.get("id"), str) and id not in self._recorded:
                self._awaited[id] = str(message.get("parent_tool_use_id") or ""), self.turn
            for block in json_objects(said.get("content")):
                if block.get("type") == "thinking" and block.get("signature"):
                    self._keep_thought(str(block["signature"]), str(block.get("thinking") or ""))
        elif kind == "system" and message.get("subtype") == "api_retry":
            status = message.get("error_status")
            self._refusals.append(RefusedAttempt(time.time_ns(), status if isinstance(status, int) else None))
            del self._refusals[:-_KEPT_REFUSALS]
        ended: set[str] = self.turn.copy().run(self._agents.saw, message)
        return ended | ({""} if kind == "result" else set())

    async def settle(self, ended: set[str], *, cut: bool) -> None:
        """Record what these agents have done: wait for the answers that Claude Code writes beside telling of them, but
        not if it was `cut` short."""
        began = time.monotonic()
        while awaited := [id for id, (agent, _) in self._awaited.items() if agent in ended]:
            self.take()
            if not any(id in self._awaited for id in awaited):
                break
            late = self._is_late(time.monotonic() - began, awaited)
            if late or cut or self.writes_none or self._bodies is None:
                ClaudeCode.writes_none = self.writes_none or (late and not self._recorded)
                self._give_up(awaited)
                break
            await anyio.sleep(_LOOK_EVERY_S)
        with _recording:
            self._agents.close_ended()

    def _is_late(self, waited_s: float, awaited: list[str]) -> bool:
        """Whether answers have been waited for long enough."""
        if not self._recorded:
            return waited_s > _WAIT_FOR_THE_FIRST_S
        if waited_s <= _WAIT_S:
            return False
        return waited_s > _WAIT_WHILE_WRITING_S or self._bodies is None or not self._bodies.has_begun(awaited)

    def take(self) -> None:
        """Record what has come."""
        with _recording:
            for written in () if self._bodies is None else self._bodies.take(self._refusals):
                ClaudeCode.writes_none = False
                self._recorded[written.answer_id] = None
                self._came(written.answer_id)
                if (turn := self._missed.pop(written.answer_id, None)) is not None:
                    turn.copy().run(_miss, -1)
                self._record(written)
            while len(self._recorded) > _KEPT_IDS:
                del self._recorded[next(iter(self._recorded))]

    def _came(self, id: str) -> None:
        """An answer is there. Those that its agent was told of before, as of a stream that broke off, do not come."""
        if id not in self._awaited:
            return
        agent = self._awaited[id][0]
        before = itertools.takewhile(lambda known: known != id, [*self._awaited])
        self._give_up([known for known in before if self._awaited[known][0] == agent])
        del self._awaited[id]

    def end(self) -> None:
        """Claude Code has ended: record all that is left, and say what did not come."""
        self.take()
        with _recording:
            for written in () if self._bodies is None else self._bodies.rest(self._refusals):
                self._record(written)
        self._give_up([*self._awaited])
        with _recording:
            self._agents.close()
        if self._directory is not None:
            self._directory.remove()

    def _record(self, written: WrittenCall) -> None:
        with _recording:
            self._turn_of(written).copy().run(self._record_in_its_turn, written)

    def _turn_of(self, written: WrittenCall) -> Context:
        """The context of who had asked last when a call began."""
        began_ns = written.started_ns + _CLOCKS_NS
        turns = [turn for turn in self._turns if turn[0] <= began_ns] or self._turns
        if len(turns) > 1 and began_ns < turns[-1][0] + _WRITTEN_WITHIN_NS:  # its request may have been written late
            before, latest = (bool(prompt) and _says(written.asked, prompt) for _, _, prompt in turns[-2:])
            if before and turns[-1][2] and not latest:
                return turns[-2][1]
        return turns[-1][1]

    def _record_in_its_turn(self, written: WrittenCall) -> None:
        asked, said = written.asked, written.said
        sent, received = written.request, written.answer
        if restore_thoughts(self._thoughts, asked, said):
            sent, received = msgspec.json.encode(asked), received and msgspec.json.encode(said)
        with ScopeStep(self._agents.scope_of(asked, said, written.source, written.started_ns)):
            call = begin_call(None, path=PATH, provider=self._provider)
        if not isinstance(call, ModelCall):
            return
        call.start_ns = written.started_ns
        for refused in written.refused:
            kind = "no answer" if refused.status is None else str(refused.status)
            call.sending(sent, self._url, {}).fail(kind, refused.status, refused.time_ns)
        if received is not None:
            call.sending(sent, self._url, {})
            call.answered(200, {"content-type": "application/json"}, received)
            call.finish("complete", end_ns=written.ended_ns)
        elif any(refused.status is not None for refused in written.refused):
            call.finish("complete", NoAnswer(self._failure or "no answer came"), end_ns=written.ended_ns)
        else:
            call.finish("cancelled")

    def _keep_thought(self, signature: str, thought: str) -> None:
        self._thoughts_bytes += len(thought) - len(self._thoughts.pop(signature, ""))
        self._thoughts[signature] = thought
        while self._thoughts_bytes > _KEPT_BYTES:
            self._thoughts_bytes -= len(self._thoughts.pop(next(iter(self._thoughts))))

    def _give_up(self, answers: list[str]) -> None:
        """These answers do not come whole any more, as it seems: their runs are not complete."""
        with _recording:
            for id in answers:
                if id in self._awaited:
                    _, turn = self._awaited.pop(id)
                    self._missed = {**dict([*self._missed.items()][-_KEPT_TURNS:]), id: turn}
                    turn.copy().run(_miss, 1)


def _says(request: dict[str, Any], text: str) -> bool:
    """Whether the text is in a message of the request."""
    return any(text in said for message in json_objects(request.get("messages")) for said in texts_of(message))


def is_on(told: str | None) -> bool:
    """Whether a variable says yes, as Claude Code reads it."""
    return (told or "").strip().lower() in ("1", "true", "yes", "on")


def _miss(count: int) -> None:
    """So many calls of the caller's run are not recorded, or are after all."""
    if not is_wanted():
        return
    if count > 0:
        note_passed("Claude Code", "", summary.BY_A_PROGRAM)
    position = calling_flow().scope or program.begun()
    if position is not None and not position.run.has_ended:
        position.run.ended_spans += count
