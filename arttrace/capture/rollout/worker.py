"""The process that runs the user's entry point on job after job: `python -m arttrace.capture.rollout.worker ENTRY N`.

ENTRY is `module:function`, `path/to/file.py:function`, `run PROGRAM` for a script or a module that `arttrace run`
recorded, or `command NAME` where each job has the command to run.

Jobs come as JSON lines on standard input, results leave as JSON lines on standard output; whatever the user's code
prints goes to standard error. Up to N jobs run at once, coroutine functions as tasks of one loop, others in threads.
A result is written when its spans are on disk. The end of standard input, also by the death of whoever started this,
ends the process and what its code has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import inspect
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from arttrace.capture.api import flush, run_entry, shutdown
from arttrace.capture.base.remote_context import VARIABLE
from arttrace.capture.base.values import json_text
from arttrace.capture.context.recorded_tools import RecordedTools
from arttrace.capture.export.lifecycle import counts
from arttrace.capture.rollout import stdin
from arttrace.capture.rollout.entries import bind, load_entry, run_command, run_program
from arttrace.records.rollout import COMMAND, PROGRAM, RolloutJob, RolloutResult, WorkerReady
from arttrace.records.values.lenient_json import well_formed
from arttrace.records.values.users_text import error_line
from arttrace.system import native_threads

MAX_RESULT_BYTES = 16 << 20
_FLUSH_TIMEOUT_S = 60.0
_LEAVE_WITHIN_S = 5.0
_MAX_ERROR_TEXT = 2000


class _Worker:
    """Runs jobs and answers them; results that finish while others are being flushed share the next flush."""

    def __init__(self, entry: Callable[..., Any] | str, concurrency: int, answers: BinaryIO) -> None:
        self._entry = entry  # a program's by its name
        self._answers = answers
        self._is_async = inspect.iscoroutinefunction(entry) or inspect.isasyncgenfunction(entry)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="rollout")
        self._leaving = False
        self._done: asyncio.Queue[tuple[RolloutResult, int]] = asyncio.Queue()  # with what was refused before
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self, jobs: asyncio.Queue[bytes | None]) -> None:
        """Run what comes until None comes; then what is under way is dropped."""
        answering = asyncio.create_task(self._answer())
        while (line := await jobs.get()) is not None:
            task = asyncio.create_task(self._run(msgspec.json.decode(line, type=RolloutJob)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        self._leaving = True
        for task in (*self._running, answering):
            task.cancel()
        await asyncio.wait((*self._running, answering), timeout=_LEAVE_WITHIN_S)

    async def _run(self, job: RolloutJob) -> None:
        began, refused_before = time.perf_counter(), counts().refused
        try:
            value = await self._call(job)
        except BaseException as error:  # noqa: BLE001  whatever the user's code raises is the job's result
            if self._leaving:
                return
            traceback.print_exc()
            if isinstance(error, _Stopped) and error.__cause__ is not None:
                error = error.__cause__
            result = RolloutResult(job.trajectory_id, error=error_line(error)[:_MAX_ERROR_TEXT])
        else:
            text, _cut = json_text(value, MAX_RESULT_BYTES)
            result = RolloutResult(job.trajectory_id, result=msgspec.Raw(text.encode()))
        self._done.put_nowait((msgspec.structs.replace(result, seconds=time.perf_counter() - began), refused_before))

    async def _call(self, job: RolloutJob) -> Any:
        if job.command is not None:
            return await self._in_thread(partial(run_command, job))
        if isinstance(self._entry, str):
            return await self._in_thread(partial(run_program, self._entry, job))
        args, kwargs = bind(self._entry, job.arguments) if job.as_recorded else ((), job.arguments)
        run = partial(
            run_entry,
            self._entry,
            kwargs,
            args=args,
            tools=None if job.tools is None else RecordedTools(job.tools),
            trajectory_id=job.trajectory_id,
            scenario=job.scenario,
            group=job.group,
            metadata=job.metadata,
            tags=job.tags,
        )
        if self._is_async:
            outcome = run()
        else:
            outcome = await self._in_thread(partial(contextvars.Context().run, lambda: _consumed(run())))
        if inspect.isawaitable(outcome):
            return await outcome
        if isinstance(outcome, AsyncIterable):
            return [item async for item in outcome]
        return outcome

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _unstopped, call)

    async def _answer(self) -> None:
        while True:
            finished = [await self._done.get()]
            while not self._done.empty():
                finished.append(self._done.get_nowait())
            flushed = await asyncio.to_thread(flush, _FLUSH_TIMEOUT_S)
            refused = counts().refused
            for result, refused_before in finished:
                lost = ""
                if not flushed:
                    lost = f"its spans could not be written within {_FLUSH_TIMEOUT_S:.0f} s"
                elif refused > refused_before:
                    lost = f"records that the spool refused while it ran: {refused - refused_before}; is the disk full?"
                if lost and result.error is None:
                    result = RolloutResult(result.trajectory_id, error=lost, seconds=result.seconds, lost=True)
                _write(self._answers, result)


class _Stopped(Exception):
    """In place of a StopIteration, its cause: a future that is to hold one is never done (up to Python 3.11)."""


def _unstopped(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StopIteration as error:
        raise _Stopped from error


def _consumed(outcome: Any) -> Any:
    """A generator's items as a list: a run is over when its generator is."""
    return list(outcome) if inspect.isgenerator(outcome) and isinstance(outcome, Iterable) else outcome


def _write(answers: BinaryIO, message: RolloutResult | WorkerReady) -> None:
    answers.write(msgspec.json.encode(message) + b"\n")
    answers.flush()


def _take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Our ends of the two pipes; the user's code finds an empty standard input, and its prints go to standard error."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    stdin.install()
    return jobs, answers


def _leave() -> None:
    """End this process without waiting for the user's threads, and what its code has started with it."""
    sys.stderr.flush()
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _leave_amid_the_import(jobs: int, is_loaded: native_threads.Event) -> None:
    """What the user's code does when it is imported may last for ever, as a server's loop does: nobody reads then that
    the jobs have ended."""
    if sys.platform != "win32":
        poll = select.poll()
        poll.register(jobs, select.POLLHUP)
        if any(event & select.POLLHUP for _, event in poll.poll()) and not is_loaded.is_set():
            _leave()


def _in_users_code(error: BaseException) -> str:
    """The error, with the frames of the user's code that it came through, where there are any."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_LOADERS):
        frames = frames.tb_next
    if frames is None:
        return "".join(traceback.format_exception_only(error))
    return "".join(traceback.format_exception(type(error), error, frames, limit=-5))


_LOADERS = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen importlib")


def main(entry: str, concurrency: int) -> None:
    """Load the entry point, say so, and run jobs until standard input ends."""
    os.environ.pop("ARTTRACE_ENDPOINT", None)  # whoever asked for these runs reads them from the data directory
    os.environ["ARTTRACE_OTLP"] = "0"
    job_lines, answers = _take_standard_streams()
    is_loaded = native_threads.Event()
    if sys.platform != "win32":
        native_threads.Thread(partial(_leave_amid_the_import, job_lines.fileno(), is_loaded)).start()
    try:
        program = entry.removeprefix(PROGRAM)
        run = program if entry.startswith((PROGRAM, COMMAND)) else load_entry(entry)
    except BaseException as error:  # noqa: BLE001  importing the user's code may raise anything, SystemExit too
        _write(answers, WorkerReady(error=well_formed(_in_users_code(error))))
        return
    is_loaded.set()
    _write(answers, WorkerReady())

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        jobs: asyncio.Queue[bytes | None] = asyncio.Queue()

        def read() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                for line in job_lines:
                    loop.call_soon_threadsafe(jobs.put_nowait, line)
                loop.call_soon_threadsafe(jobs.put_nowait, None)
            # The user's code may hold the loop: leave all the same.
            time.sleep(2 * _LEAVE_WITHIN_S)
            _leave()

        threading.Thread(target=read, daemon=True, name="jobs").start()
        await _Worker(run, concurrency, answers).serve(jobs)

    asyncio.run(serve())


if __name__ == "__main__":
    os.environ.pop(VARIABLE, None)  # its trajectories are its own, whoever started it
    try:
        main(sys.argv[1], int(sys.argv[2]))
        shutdown(_LEAVE_WITHIN_S)
    finally:
        _leave()
