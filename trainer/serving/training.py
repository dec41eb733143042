"""Training on request, for clients elsewhere: they submit groups over HTTP; the server trains on them and serves the
new version.

An order has a name that its client chose, so that sending it again after a broken connection is not a second order.
Orders are carried out one at a time; clients ask for the status until it is done.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec

from arttrace.formats.otlp.validate import checked
from arttrace.loop.processes.trainer_process import (
    LoggedNumbers,
    OrderedBatch,
    OrderedGroup,
    TrainedStep,
    TrainerProcess,
)
from arttrace.records.reward import Reward
from arttrace.records.semconv import TRAJECTORY_ID
from arttrace.records.span import SpanRow
from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.users_text import error_line
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from trainer.gateway.app import AdminRequest, RouteTable, as_handler
from trainer.gateway.errors import Refusal
from trainer.gateway.gate import MAX_BODY_BYTES, Gate
from trainer.gateway.recording.identity import trajectory_owner
from trainer.gateway.recording.recorder import GatewayRecorder
from trainer.gateway.recording.trajectories import EndOrder, RewardOrder
from trainer.output.log import Problem

MAX_KEPT = 1000
"""Orders whose result is remembered."""
MAX_WAITING = 64
"""Orders that are carried out or wait for their turn; further ones are refused."""
_WAIT_S = 20.0
_MAX_LINES = 20
_COMMAND = (sys.executable, "-c", "from arttrace.commands import main; main()", "train", "--orders")
_uploaded: msgspec.json.Decoder[SpanRow | Reward] = msgspec.json.Decoder(SpanRow | Reward)


class SubmittedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run by its id, and what its client says of it."""

    id: str
    reward: float | None = None
    metrics: dict[str, float] = {}
    metadata: dict[str, Any] = {}


class SubmittedGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs of one scenario, which are compared."""

    key: str
    trajectories: tuple[SubmittedRun, ...]


class TrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step on these groups, or by SFT on these batches; without either, up to `settings["steps"]` steps on all that
    wait. With `log`, these numbers are only sent to the trackers of the settings."""

    order: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    groups: tuple[SubmittedGroup, ...] | None = None
    batches: tuple[OrderedBatch, ...] | None = None
    settings: dict[str, Any] = {}
    log: LoggedNumbers | None = None


class WaitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the status of an order; `lines` is the number of its lines that the client has."""

    order: str
    lines: int = 0


class OrderStatus(msgspec.Struct, frozen=True):
    """An order: "running", "done" or "failed"; the lines that it said after those known, and how many in all."""

    order: str
    state: Literal["running", "done", "failed"]
    said: list[str] = []
    lines: int = 0
    steps: list[TrainedStep] = []
    error: str = ""
    hint: str | None = None


class Trainer(Protocol):
    """Carries out orders."""

    async def begin(self) -> None: ...
    async def order(self, groups: Sequence[OrderedGroup] | None, settings: dict[str, Any]) -> list[TrainedStep]: ...
    async def imitate(self, batches: Sequence[OrderedBatch], settings: dict[str, Any]) -> list[TrainedStep]: ...
    async def log(self, numbers: LoggedNumbers, settings: dict[str, Any]) -> None: ...
    async def finish(self) -> None: ...
    async def stop(self) -> None: ...


class _Order:
    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self.news = asyncio.Event()
        self.task: asyncio.Task[list[TrainedStep]] | None = None

    def say(self, line: str) -> None:
        self.lines.append(line)
        self.news.set()

    def status(self, known: int) -> OrderStatus:
        said, count = self.lines[known:][-_MAX_LINES:], len(self.lines)
        assert self.task is not None
        if not self.task.done():
            return OrderStatus(self.name, "running", said, count)
        error = None if self.task.cancelled() else self.task.exception()
        if isinstance(error, ArttraceError):
            return OrderStatus(self.name, "failed", said, count, error=error.message, hint=error.hint)
        if error is not None or self.task.cancelled():
            what = "the server was stopped" if error is None else error_line(error)
            return OrderStatus(self.name, "failed", said, count, error=what)
        return OrderStatus(self.name, "done", said, count, steps=self.task.result())


class TrainingDesk:
    """Takes orders of clients, one at a time; requests wait meanwhile where it `blocks`. Used from one event loop."""

    def __init__(self, recorder: GatewayRecorder, gate: Gate, say: Callable[[str], None], *, blocks: bool) -> None:
        self.trainer: Trainer | None = None
        self._recorder = recorder
        self._gate = gate
        self._say = say
        self._blocks = blocks
        self._orders: OrderedDict[str, _Order] = OrderedDict()
        self._turn = asyncio.Lock()
        self._current: _Order | None = None
        self._stopping = False

    @property
    def busy(self) -> bool:
        """Whether an order is being carried out."""
        return self._current is not None

    def routes(self) -> RouteTable:
        """Its part of the gateway's."""
        return {
            "/arttrace/train": {"POST": as_handler(self._train)},
            "/arttrace/train/wait": {"POST": as_handler(self._wait)},
            "/arttrace/records": {"POST": as_handler(self._take)},
        }

    async def begin(self, data: DataDir, policy: str, base_model: str, api_key: str | None) -> None:
        """Start the trainer, which waits for its first order."""
        command = (*_COMMAND, "--policy", policy, "--base-model", base_model, "--dir", str(data.root))
        self.trainer = TrainerProcess(command, env={"ARTTRACE_API_KEY": api_key} if api_key else None, say=self._said)
        await self.trainer.begin()

    async def finish(self) -> None:
        """Wait until the step under way is made and saved; no further order is begun."""
        self._stopping = True
        for order in self._orders.values():
            if order is not self._current and order.task is not None:
                order.task.cancel()
        if self.trainer is not None:
            await self.trainer.finish()

    async def close(self) -> None:
        """End the trainer; a step under way is dropped."""
        for order in self._orders.values():
            if order.task is not None:
                order.task.cancel()
        if self.trainer is not None:
            await self.trainer.stop()

    def _said(self, line: str) -> None:
        self._say(line)
        if self._current is not None:
            self._current.say(line)

    async def _train(self, request: AdminRequest) -> OrderStatus:
        wanted = await request.read(TrainRequest, empty=False)
        order = self._orders.get(wanted.order)
        if order is None:
            _require_sound(wanted)
            self._require_room()
            order = self._orders[wanted.order] = _Order(wanted.order)
            order.task = asyncio.create_task(self._carry_out(order, wanted))
        return order.status(0)

    def _require_room(self) -> None:
        """Raises Refusal (503) when no further order is taken; of those that are over, the oldest are forgotten."""
        if self._stopping:
            raise Refusal(503, "stopping", "the server is being stopped", hint="Submit again once it was started.")
        over = [name for name, order in self._orders.items() if order.task is None or order.task.done()]
        if len(self._orders) - len(over) >= MAX_WAITING:
            raise Refusal(503, "overloaded", f"{MAX_WAITING} orders wait already", hint="Wait for those first.")
        for name in over[: max(0, len(self._orders) + 1 - MAX_KEPT)]:
            del self._orders[name]

    async def _wait(self, request: AdminRequest) -> OrderStatus:
        asked = await request.read(WaitRequest, empty=False)
        order = self._orders.get(asked.order)
        if order is None or order.task is None:
            raise Refusal(
                404,
                "not_found",
                f"there is no order {asked.order!r}: the server was started again since",
                hint="A step that was finished is served: ask the model for its step. Else submit the groups again.",
            )
        if not order.task.done() and len(order.lines) <= asked.lines:
            order.news.clear()
            news = asyncio.create_task(order.news.wait())
            await asyncio.wait((order.task, news), timeout=_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
        return order.status(asked.lines)

    async def _take(self, request: AdminRequest) -> dict[str, int]:
        """Spans and rewards of runs that were captured elsewhere, one JSON document per line."""
        with self._gate.entered() as place:
            body = await request.body(MAX_BODY_BYTES, place.hold)
            try:
                given = await asyncio.to_thread(_read, body)  # megabytes, for which no call shall wait
            except UNREADABLE as error:
                raise Refusal(400, "invalid_request_error", f"a line is neither a span nor a reward: {error}") from None
            new = [one for one in given if not (isinstance(one, SpanRow) and self._recorded_here(one))]
            await self._recorder.take(new)
        return {"taken": len(new), "recorded_here": len(given) - len(new)}

    def _recorded_here(self, span: SpanRow) -> bool:
        id = span.attributes.get(TRAJECTORY_ID)
        return isinstance(id, str) and self._recorder.trajectories.knows(id)

    async def _carry_out(self, order: _Order, wanted: TrainRequest) -> list[TrainedStep]:
        async with self._turn:
            self._current = order
            if self._blocks and wanted.log is None:
                self._gate.pause(reason="training")
            try:
                assert self.trainer is not None
                if wanted.log is not None:
                    await self.trainer.log(wanted.log, wanted.settings)
                    return []
                if wanted.batches is not None:
                    steps = await self.trainer.imitate(wanted.batches, wanted.settings)
                else:
                    steps = await self.trainer.order(await self._rewarded(wanted.groups), wanted.settings)
            except ArttraceError as error:
                self._say(Problem(f"an order failed: {error.message}"))
                raise
            except Exception as error:
                self._say(Problem(f"an order failed: {error_line(error)}"))
                raise
            finally:
                self._gate.resume(reason="training")
                self._current = None
            for step in steps:
                self._say(f"{step.version} is served, its checkpoint is in {step.adapter}")
            return steps

    async def _rewarded(self, groups: tuple[SubmittedGroup, ...] | None) -> list[OrderedGroup] | None:
        """The groups as the trainer takes them, their runs ended and their rewards stored."""
        if groups is None:
            return None
        for group in groups:
            for run in group.trajectories:
                if self._recorder.trajectories.knows(run.id):
                    metadata = {**run.metadata, **({"metrics": run.metrics} if run.metrics else {})}
                    await self._recorder.end(run.id, EndOrder(group=group.key, metadata=metadata))
                if run.reward is not None:
                    await self._recorder.reward(run.id, RewardOrder(run.reward, id=f"{run.id}:trajectory"))
        return [OrderedGroup(one.key, tuple(run.id for run in one.trajectories)) for one in groups]


def _read(body: bytes) -> list[SpanRow | Reward]:
    """The records of an upload. Raises ValueError or RecursionError for what is none."""
    given = _uploaded.decode_lines(body)
    for one in given:
        checked(one)
    return given


def _require_sound(request: TrainRequest) -> None:
    """Raises Refusal (400) for groups on which no step can be made, with the reason, for groups beside batches, and for
    ids that are none."""
    for id in {id for batch in request.batches or () for id in batch.ids}:
        trajectory_owner(id)
    if request.groups is None:
        return
    runs = [run for group in request.groups for run in group.trajectories]
    problem: tuple[str, str] | None = None
    if request.batches is not None:
        problem = "the order has both groups and batches", "Order a step on the groups, and another on the batches."
    elif not any(len(group.trajectories) > 1 for group in request.groups):
        problem = (
            "no group has two runs: the reward of one run compares nothing",
            "Put several runs of each scenario into a group.",
        )
    elif len({run.id for run in runs}) < len(runs):
        problem = "a run is submitted twice", "Each run belongs to one group, once."
    for run in runs:
        trajectory_owner(run.id)
        if run.reward is not None and not math.isfinite(run.reward):
            problem = f"the reward of trajectory {run.id} is not a finite number", "Give it a number, or leave it out."
    if problem is not None:
        raise Refusal(400, "invalid_request_error", problem[0], hint=problem[1])
