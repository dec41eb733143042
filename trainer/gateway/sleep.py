"""Sleep: engines that share a card with the trainer give up its memory during a step, and come back as they were.

Whoever asks for it holds the request open: when that connection ends, by request or because its process died, the
engines wake. No request reaches an engine that sleeps; those that come meanwhile wait at the gate. Level 1 of vLLM's
sleep: weights, adapters' included, go to the machine's memory, the KV cache is dropped and the prefix cache with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from arttrace.system.errors import ServingError
from trainer.gateway.engines.pool import Pool, Replica
from trainer.gateway.engines.upstream import EngineGone
from trainer.gateway.errors import Refusal
from trainer.gateway.gate import Gate
from trainer.gateway.publish import Publisher
from trainer.output.log import Problem

_REASON = "sleep"
_TRIES, _BETWEEN_S = 5, 2.0
"""Of waking: a trainer that was killed may take a while to give the card's memory back."""


class Sleeper:
    """Puts all engines behind one gate to sleep, and wakes them. One step at a time may ask for it."""

    def __init__(
        self,
        pool: Pool,
        publisher: Publisher,
        gate: Gate,
        *,
        say: Callable[[str], None] = print,
        between_s: float = _BETWEEN_S,
    ) -> None:
        self._pool = pool
        self._publisher = publisher
        self._gate = gate
        self._say = say
        self._between_s = between_s
        self._busy = False
        self._waking: asyncio.Task[None] | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._wake_asked = asyncio.Event()

    async def fall_asleep(self, timeout_s: float) -> None:
        """Let the requests under way end, then let every engine sleep. On any failure all are awake again.

        Engines that have failed for good count for nothing. No request passes until those under way have ended, or
        `timeout_s` seconds are over: whoever asks again leaves them time to pass.

        Raises Refusal (503): another step has them asleep, an engine is not ready, or requests did not end in time.
        """
        if self._busy:
            raise Refusal(503, "asleep", "the engines sleep for another step", retry_s=2)
        self._all_ready()
        self._busy = True
        self._wake_asked.clear()
        self._gate.pause(reason=_REASON)
        try:
            if not await self._gate.drained(timeout_s):
                left = "1 request is" if self._gate.passed == 1 else f"{self._gate.passed} requests are"
                self._say(Problem(f"the engines stay awake: {left} still being answered after {timeout_s:g} s"))
                raise Refusal(503, "not_drained", f"{left} still being answered", retry_s=2)
            async with self._publisher.settled():
                outcomes = await asyncio.gather(
                    *(self._put_to_sleep(replica) for replica in self._all_ready()), return_exceptions=True
                )
            for failure in outcomes:
                if failure is not None:
                    raise failure
        except ServingError as error:
            await self.wake()
            raise Refusal(503, "serving_error", error.message, hint=error.hint) from error
        except BaseException:
            self.wake_soon()
            raise

    def _all_ready(self) -> list[Replica]:
        """Every engine that may hold memory of the card. Raises Refusal (503) when one of them could not be asked."""
        living = [replica for replica in self._pool.replicas if replica.state != "failed"]
        away = [f"{replica.name} is {replica.state}" for replica in living if not replica.ready]
        if away or not living:
            raise Refusal(
                503,
                "engine_unavailable",
                f"only engines that are up can be put to sleep: {', '.join(away) or 'all have failed'}",
                hint="Bring it back; one that is gone for good must be left out of `arttrace serve`.",
                retry_s=2,
            )
        return living

    async def until_asked_to_wake(self) -> None:
        """Wait until somebody wakes them."""
        await self._wake_asked.wait()

    def wake_soon(self) -> asyncio.Task[None] | None:
        """Begin to wake them, unless they are awake; who waits for the task may be cancelled without harm."""
        if self._busy and self._waking is None:
            self._wake_asked.set()
            self._waking = asyncio.create_task(self._wake_all())
        return self._waking

    async def wake(self) -> None:
        """Wake every engine, see that it serves what it served, and let the requests pass that waited.

        One that does not come back right is left to its supervisor, and the requests wait for that.
        """
        if (waking := self.wake_soon()) is not None:
            await asyncio.shield(waking)

    async def _wake_all(self) -> None:
        try:
            await asyncio.gather(*(self._wake(replica) for replica in self._pool.replicas if replica.sleeping))
        finally:
            self._busy, self._waking = False, None
            if self._pool.ready():
                self._gate.resume(reason=_REASON)
            else:
                self._reopening = asyncio.create_task(self._reopen())

    async def _reopen(self) -> None:
        while not self._pool.ready() and any(replica.state != "failed" for replica in self._pool.replicas):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        if not self._busy:  # else the next one is under way already
            self._gate.resume(reason=_REASON)

    @staticmethod
    async def _put_to_sleep(replica: Replica) -> None:
        if replica.upstream is None:
            raise EngineGone(f"the serving engine is {replica.state}")
        replica.state = "asleep"  # before it is: what fails half-way must be woken too
        await replica.upstream.sleep()

    async def _wake(self, replica: Replica) -> None:
        replica.state = "waking"
        for left in reversed(range(_TRIES)):
            try:
                if replica.upstream is None:
                    raise EngineGone("it is gone")
                await replica.upstream.wake_up()
                await self._publisher.verify(replica)
            except EngineGone as error:
                self._say(Problem(f"{replica.name} died asleep: {error.message}"))
                break
            except Exception as error:  # noqa: BLE001  whatever it is: nobody else would end this state
                if left:
                    await asyncio.sleep(self._between_s)
                else:
                    self._say(Problem(f"{replica.name} did not wake as it was: {error}"))
            else:
                replica.state = "ready"
                return
        replica.state = "broken"
