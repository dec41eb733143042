"""Limits on requests to the store over the API: how many at a time, for how long, and only while the client is
connected and the server does not end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from arttrace.store.file import cancellation
from arttrace.store.file.cancellation import Stop, Stopped, took_too_long
from arttrace.store.server.responses import RequestRefused

QUERIES = 4
"""Of those, at a time."""
OTHERS = 16
"""Of the other operations, at a time: their number of threads is bounded, too."""
WAIT_S = 60.0
"""How long one waits for its turn."""

_AGAIN_S = 0.2
_ENDS = "the owner of the store ends"

T = TypeVar("T")


class RequestLimits:
    """Runs what is asked in threads, so many at a time, until `ending` is set."""

    def __init__(self, ending: asyncio.Event) -> None:
        self._ending = ending
        self._queries, self._others = asyncio.Semaphore(QUERIES), asyncio.Semaphore(OTHERS)

    async def answer(self, request: Request, run: Callable[[], T], *, is_query: bool) -> T:
        """What `run` returns. Raises what `run` raises, RequestRefused (503) when too many others are asking or the
        server ends, and Stopped when a query took too long. When the client disconnects, what runs is stopped."""
        turns = self._queries if is_query else self._others
        gone, ends = asyncio.create_task(_disconnected(request)), asyncio.create_task(self._ending.wait())
        try:
            await _turn(turns, gone, ends)
            try:
                return await self._run(run, gone, ends, cancellation.QUERY_S if is_query else None)
            finally:
                turns.release()
        finally:
            gone.cancel()
            ends.cancel()

    async def _run(
        self, run: Callable[[], T], gone: asyncio.Task[None], ends: asyncio.Task[Literal[True]], limit_s: float | None
    ) -> T:
        stop = Stop()

        def in_thread() -> T:
            with stop.current():
                return run()

        running = asyncio.ensure_future(run_in_threadpool(in_thread))
        try:
            await asyncio.wait((running, gone, ends), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            while not running.done():
                if gone.done():
                    stop("whoever asked has left")
                elif ends.done():
                    stop(_ENDS)
                else:
                    stop(*took_too_long(limit_s or 0.0))
                await asyncio.wait((running,), timeout=_AGAIN_S)
        except asyncio.CancelledError:  # the server waits no longer
            stop(_ENDS)
            raise
        try:
            return await running
        except Stopped:
            if ends.done():
                raise RequestRefused(503, f"{_ENDS}: ask again") from None
            raise


async def _turn(turns: asyncio.Semaphore, gone: asyncio.Task[None], ends: asyncio.Task[Literal[True]]) -> None:
    turn = asyncio.ensure_future(turns.acquire())
    await asyncio.wait((turn, gone, ends), timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    if turn.done():
        return
    turn.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await turn
        turns.release()  # it came at this very moment
    raise RequestRefused(
        503, f"{_ENDS}: ask again" if ends.done() else "the store is answering as many requests as it may: try again"
    )


async def _disconnected(request: Request) -> None:
    """Returns when whoever asked has left; call it when the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
