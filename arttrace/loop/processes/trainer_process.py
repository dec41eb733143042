"""TrainerProcess: `arttrace train --orders` as a child, which keeps the learner in memory between steps.

Orders and answers are lines of JSON; trainer/commands/train/orders.py is the other side. Its messages, progress above
all, are printed to standard error, as `arttrace train` does.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import msgspec

from arttrace.loop.processes.child import Child
from arttrace.records.group import Group
from arttrace.system.errors import TrainingError
from arttrace.system.exit_status import how_ended

REGISTER_AGAIN = "Close a backend after the last step, or register the model again: await model.register(backend)"
_TURN_S = 0.02
"""How often an order looks whether that of another event loop is done."""


class TrainedStep(msgspec.Struct, frozen=True):
    """One optimisation step: the version it made, its adapter's directory, its numbers (seconds end in `_s`), and how
    many runs of its groups it was not trained on, by reason."""

    version: str
    adapter: str
    metrics: dict[str, float] = {}
    left_out: dict[str, int] = {}


class TrainedSteps(list[TrainedStep]):
    """The steps of one call of `train`, none where all rewards within each group are equal: `[step] = await
    backend.train(...)`. What ART's programs read of its result is that of the last one.

    Args:
        steps: The steps.
        served: Asks for the step of the version that is served now.
    """

    def __init__(self, steps: Iterable[TrainedStep], served: Callable[[], int]) -> None:
        super().__init__(steps)
        self._served = served

    @property
    def step(self) -> int:
        """The number of the last step's version; where nothing was learned, of the one that is served now. Raises
        ServingError where the gateway does not report that one."""
        return int(self[-1].version.rpartition("@")[2]) if self else int(self._served())

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers of the last step; empty where nothing was learned."""
        return dict(self[-1].metrics) if self else {}

    @property
    def checkpoint_path(self) -> str | None:
        """The directory of the last step's adapter; None where nothing was learned."""
        return self[-1].adapter if self else None


class OrderedGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The runs to compare: exactly these, by their ids."""

    key: str
    ids: tuple[str, ...]


class OrderedBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The runs to imitate in one optimizer step, by their ids, and its learning rate."""

    ids: tuple[str, ...]
    learning_rate: Annotated[float, msgspec.Meta(ge=0)]


class LoggedNumbers(msgspec.Struct, frozen=True):
    """Numbers of a step that nothing is trained for, by name."""

    step: int
    numbers: dict[str, float]


class _OrderResult(msgspec.Struct, frozen=True):
    id: int
    steps: list[TrainedStep] = []
    error: str = ""
    hint: str | None = None
    said: str = ""


class TrainerProcess:
    """Started by `begin` or the first order, and started again by the next order if it died. One order at a time.

    A call that is cancelled cancels its order: the step is dropped if it has not changed the weights yet, else it is
    completed, and the next order waits for that.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda line: print(f"arttrace: {line}", file=sys.stderr, flush=True),
    ) -> None:
        self._command = command
        self._env = env
        self._say = say
        self._child: Child | None = None
        self._orders = 0
        self._works = False
        self._closed = False
        self._busy = threading.Lock()
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @property
    def works(self) -> bool:
        """Whether an order has not been answered yet, even if its caller is gone."""
        return self._works

    @property
    def closed(self) -> bool:
        """Whether it takes no order any more."""
        return self._closed

    async def begin(self) -> None:
        """Start it before it is needed: it imports what takes seconds, and loads no model until the first order."""
        async with self._turn():
            self._started()

    async def train(self, groups: Sequence[Group] | None, settings: Mapping[str, Any]) -> list[TrainedStep]:
        """Order a step on these groups, or steps on what waits. Raises TrainingError."""
        ordered = None
        if groups is not None:
            ordered = [OrderedGroup(one.key, tuple(run.id for run in one.trajectories)) for one in groups]
        return await self.order(ordered, settings)

    async def order(self, groups: Sequence[OrderedGroup] | None, settings: Mapping[str, Any]) -> list[TrainedStep]:
        """As `train`, for groups whose runs are named by their ids."""
        return (await self._carried_out({"settings": settings, **({} if groups is None else {"groups": groups})})).steps

    async def imitate(self, batches: Sequence[OrderedBatch], settings: Mapping[str, Any]) -> list[TrainedStep]:
        """Order a version by SFT, in an optimizer step for each of these batches. Raises TrainingError, also where the
        settings name another method."""
        return (await self._carried_out({"settings": {"method": "sft", **settings}, "batches": batches})).steps

    async def log(self, numbers: LoggedNumbers, settings: Mapping[str, Any]) -> None:
        """Send these numbers to the trackers of the settings. Raises TrainingError."""
        await self._carried_out({"settings": settings, "log": numbers})

    async def _carried_out(self, wanted: Mapping[str, Any]) -> _OrderResult:
        async with self._turn():
            if self._closed:
                raise TrainingError("the backend was closed while this step waited for its turn", REGISTER_AGAIN)
            self._orders += 1
            order = {"id": self._orders, **wanted}
            line = _encoded(order)
            child = self._started()
            self._works = True  # also when this is cancelled: a step that has changed the weights goes on
            try:
                child.send(line)
                answer = await self._answer(child)
            except asyncio.CancelledError:
                child.send(msgspec.json.encode({"cancel": order["id"]}))
                raise
            self._works = False
        if answer.error:
            raise TrainingError(answer.error, answer.hint)
        return answer

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One order at a time, over all event loops and threads; within an event loop, in their order."""
        async with self._waiting.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            while not self._busy.acquire(blocking=False):  # noqa: ASYNC110  an event belongs to one loop
                await asyncio.sleep(_TURN_S)
            try:
                yield
            finally:
                self._busy.release()

    async def finish(self) -> None:
        """Wait until it has ended by itself, after the running step, however long that takes; it takes no order any
        more."""
        self._closed = True
        if self._child is not None:
            await self._child.ended()

    async def stop(self) -> None:
        """Stop it: it may finish its step within half a minute; then it is killed and the step is dropped. It takes no
        order any more."""
        self._closed = True
        child, self._child = self._child, None
        if child is not None:
            await child.stop()

    def _started(self) -> Child:
        self._child = self._child or Child.start(*self._command, env=self._env)
        return self._child

    async def _answer(self, child: Child) -> _OrderResult:
        """The answer to the newest order; answers to orders whose caller was cancelled are skipped."""
        while line := await child.line():
            answer = msgspec.json.decode(line, type=_OrderResult)
            if answer.said:
                self._say(answer.said)
            elif answer.id == self._orders:
                return answer
        self._child, self._works = None, False
        code = await child.wait()
        output = child.last_lines()
        await child.stop()
        if self._closed:
            raise TrainingError("the backend was closed, and this step was dropped", REGISTER_AGAIN)
        raise TrainingError(f"the trainer ended ({how_ended(code)}): {output}")


def _encoded(order: Mapping[str, Any]) -> bytes:
    for name, value in order["settings"].items():
        if isinstance(value, float) and not math.isfinite(value):  # JSON has none, and would say that it was left out
            raise TrainingError(f"{name} is {value}, no finite number", "Pass a large one, or leave it out.")
    try:
        return msgspec.json.encode(order, enc_hook=os.fspath)
    except (TypeError, UnicodeEncodeError) as error:
        raise TrainingError(
            f"the settings cannot be passed on: {error}",
            "Use numbers, text, lists and paths: float(x) of a tensor.",
        ) from error
