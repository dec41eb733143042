"""Run the user's entry point again, in processes of its own, on chosen inputs and under the current policy."""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from arttrace.records.rollout import RolloutJob, RolloutResult, WorkerReady
from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.units import quantity
from arttrace.system.errors import RolloutError
from arttrace.system.exit_status import how_ended
from arttrace.system.paths import DataDir
from arttrace.system.private_files import users_umask
from trainer.output.log import make_room

__all__ = ["RolloutJob", "RolloutResult", "RolloutWorkers"]

_GRACE_S = 6.0
_READ_OUT_S = 2.0
"""How long what a worker has said before its end is read for."""
_RESTARTS_PER_RUN = 3
_ASKED_AGAIN_S = 0.5
_SAID_AFTER_S = 30.0
"""How long an entry point is imported before it is said that it still is."""

Admits = Callable[[RolloutJob, Sequence[RolloutJob]], bool]

_Message = RolloutResult | WorkerReady
_messages: msgspec.json.Decoder[_Message] = msgspec.json.Decoder(_Message)


class RolloutWorkers:
    """Worker processes that have imported one entry point and run it on job after job.

    `entry` is `module:function`, `path/to/file.py:function`, or `run PROGRAM` for a script or a module. `env` is added
    to the environment and leads the user's client to the gateway (OPENAI_BASE_URL and the like). Each of `workers`
    processes runs up to `concurrency` jobs at once. A run that takes longer than `timeout_s` is ended with its worker
    and all that this runs. Traces go to the spool of `data`, prints to `logs/rollouts.log` in it. Stop it with `close`
    or use it in a `with` block; workers also end when this process dies. `say` is told of an entry point that does not
    come to the end of its import.
    """

    def __init__(
        self,
        entry: str,
        data: DataDir,
        *,
        env: Mapping[str, str] | None = None,
        workers: int = 1,
        concurrency: int = 16,
        timeout_s: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._entry = entry
        self._say = say
        self._concurrency = concurrency
        self._env = {**os.environ, **(env or {}), "ARTTRACE_DIR": str(data.root)}
        self._count = workers
        self._timeout_s = timeout_s
        self._workers: list[_WorkerProcess] = []
        self._inbox: queue.SimpleQueue[tuple[_WorkerProcess, _Message | None]] = queue.SimpleQueue()
        self.log = data.root / "logs" / "rollouts.log"

    def start(self) -> None:
        """Start the workers that are not running and wait until they have imported the entry point.

        Raises RolloutError with the traceback when it cannot be imported.
        """
        self._workers = [worker for worker in self._workers if worker.alive]
        if not self._workers:
            make_room(self.log)
        while len(self._workers) < self._count:
            self._workers.append(self._spawn())
        said_at: float | None = time.monotonic() + _SAID_AFTER_S
        while not all(worker.ready for worker in self._workers):
            received = self._receive(said_at)
            if received is None:
                said_at = None
                self._say(
                    f"{self._entry} is still being imported after {_SAID_AFTER_S:g} s. If it runs something then, put "
                    f'that under `if __name__ == "__main__":`. Its output is in {self.log}'
                )
            elif received[1] is None:
                cause = received[0].cause()
                self.close()
                raise self._not_loaded(cause)

    def run(
        self,
        jobs: Sequence[RolloutJob],
        *,
        on_result: Callable[[RolloutResult], None] | None = None,
        admits: Admits | None = None,
    ) -> list[RolloutResult]:
        """Run every job; results are in the order of the jobs, `on_result` gets each as it comes. `admits` is asked,
        with the job and those that run, whether it may begin now; while it may not, it is asked again.

        A job whose entry point raised is a result with `error`; one that took too long, or whose worker died, also has
        `lost`. Raises RolloutError when the
        entry point cannot be loaded or workers keep dying.
        """
        self.start()
        jobs = [job if job.trajectory_id else _with_id(job) for job in jobs]
        if len({job.trajectory_id for job in jobs}) < len(jobs):
            raise ValueError("two jobs have the same trajectory id")
        todo = collections.deque(jobs)
        results: dict[str, RolloutResult] = {}
        deaths = 0

        def finish(result: RolloutResult) -> None:
            results[result.trajectory_id] = result
            if on_result is not None:
                on_result(result)

        for worker in self._workers:
            worker.under_way.clear()  # what an interrupted run has left there is nobody's any more
        while len(results) < len(jobs):
            deferred = self._hand_out(todo, admits)
            deadlines = [self._deadline(), time.monotonic() + _ASKED_AGAIN_S if deferred else None]
            received = self._receive(min((one for one in deadlines if one is not None), default=None))
            if received is None:
                self._end_late()
                continue
            worker, message = received
            if isinstance(message, RolloutResult):
                if worker.under_way.pop(message.trajectory_id, None) is not None:
                    finish(message)
            elif message is None:
                self._workers.remove(worker)
                if worker.ended_because is None:
                    deaths += 1
                if deaths > _RESTARTS_PER_RUN:
                    self.close()
                    raise RolloutError(
                        f"the worker that runs {self._entry} died {quantity(deaths, 'time')} ({worker.cause()})",
                        f"Its output is in {self.log}.",
                    )
                self._workers.append(self._spawn())
                why = worker.ended_because or f"the rollout worker died ({worker.cause()})"
                for lost, (_, began) in worker.under_way.items():
                    finish(RolloutResult(lost, error=why, seconds=time.monotonic() - began, lost=True))
        return [results[job.trajectory_id] for job in jobs]

    def close(self) -> None:
        """End the workers; what they run is dropped."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.stop()

    def __enter__(self) -> RolloutWorkers:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawn(self) -> _WorkerProcess:
        return _WorkerProcess(self._entry, self._concurrency, self._env, self.log, self._inbox)

    def _deadline(self) -> float | None:
        """When the run that began first has had its time."""
        if self._timeout_s is None:
            return None
        timed = [worker for worker in self._workers if worker.ended_because is None]
        began = [began for worker in timed for _, began in worker.under_way.values()]
        return min(began) + self._timeout_s if began else None

    def _end_late(self) -> None:
        """End the workers of runs that have had their time; what else they run ends with them."""
        if self._timeout_s is None:
            return
        for worker in self._workers:
            began = [began for _, began in worker.under_way.values()]
            if began and time.monotonic() >= min(began) + self._timeout_s:
                worker.end(f"it took longer than {self._timeout_s:g} s")

    def _receive(self, deadline: float | None) -> tuple[_WorkerProcess, _Message | None] | None:
        """The next message of a worker of ours; None for its death, or in place of both when the deadline has passed.
        Raises RolloutError when it could not load."""
        while True:
            try:
                wait = None if deadline is None else max(deadline - time.monotonic(), 0)
                worker, message = self._inbox.get(timeout=wait)
            except queue.Empty:
                return None
            if worker not in self._workers:
                continue
            if isinstance(message, WorkerReady):
                worker.ready = True
                if message.error is not None:
                    self.close()
                    raise self._not_loaded(message.error.strip())
            return worker, message

    def _not_loaded(self, reason: str) -> RolloutError:
        return RolloutError(
            f"the entry point {self._entry} could not be loaded:\n{reason}",
            f"It is imported in {Path.cwd()} by {sys.executable}; its output is in {self.log}.",
        )

    def _hand_out(self, todo: collections.deque[RolloutJob], admits: Admits | None) -> bool:
        """Whether a worker is free and the next job may not begin yet."""
        # One at a time to whoever has least to do, so that all workers are as busy. A run's time does not begin before
        # its worker is ready.
        ready = [worker for worker in self._workers if worker.ready and worker.ended_because is None]
        while todo and ready:
            worker = min(ready, key=lambda candidate: len(candidate.under_way))
            if len(worker.under_way) >= self._concurrency:
                return False
            if admits is not None:
                under_way = [job for one in self._workers for job, _ in one.under_way.values()]
                if not admits(todo[0], under_way):
                    return True
            worker.give(todo.popleft())
        return False


class _WorkerProcess:
    """One worker: its process, the jobs it has, and threads that pass its messages on (None: it is gone)."""

    def __init__(
        self,
        entry: str,
        concurrency: int,
        env: Mapping[str, str],
        log: Path,
        inbox: queue.SimpleQueue[tuple[_WorkerProcess, _Message | None]],
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.ready = False
        self.under_way: dict[str, tuple[RolloutJob, float]] = {}  # with when each began, in monotonic seconds
        self.ended_because: str | None = None
        self._inbox = inbox
        with log.open("ab") as prints:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "arttrace.capture.rollout.worker", entry, str(concurrency)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=prints,
                env=dict(env),
                umask=users_umask(),
                start_new_session=True,  # Ctrl-C in the terminal is ours to handle
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs: IO[bytes] = self._process.stdin
        listening = threading.Thread(
            target=self._listen, args=(self._process.stdout,), daemon=True, name="rollout results"
        )
        listening.start()
        threading.Thread(target=self._watch, args=(listening,), daemon=True, name="rollout worker").start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def cause(self) -> str:
        """How it ended, in words. What it started ends with it, and it itself where it has only closed the pipe."""
        try:
            how = how_ended(self._process.wait(_GRACE_S))
        except subprocess.TimeoutExpired:
            how = "it closed the pipe of its results"
        self._kill()
        return how

    def give(self, job: RolloutJob) -> None:
        self.under_way[job.trajectory_id] = job, time.monotonic()
        # A worker that is gone shows as the end of its messages.
        with contextlib.suppress(OSError):
            self._jobs.write(msgspec.json.encode(job) + b"\n")
            self._jobs.flush()

    def end(self, why: str) -> None:
        """End it now, and what it has started; that shows as the end of its messages."""
        if self.ended_because is None:
            self.ended_because = why
            self._kill()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._jobs.close()

    def stop(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S if self.ready else 0.0)
        self._kill()
        self._process.wait()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _listen(self, messages: IO[bytes]) -> None:
        has_begun = False
        with contextlib.suppress(OSError, *UNREADABLE):
            for line in messages:
                try:
                    message = _messages.decode(line)
                except UNREADABLE:
                    if has_begun:
                        raise
                    continue  # what Python itself starts here, as a sitecustomize, prints
                has_begun = True
                self._inbox.put((self, message))
        self._inbox.put((self, None))

    def _watch(self, listening: threading.Thread) -> None:
        """It is gone when it has ended, though what its code forked and left may hold the pipe open for ever."""
        self._process.wait()
        listening.join(_READ_OUT_S)
        self._inbox.put((self, None))


def _with_id(job: RolloutJob) -> RolloutJob:
    return msgspec.structs.replace(job, trajectory_id=secrets.token_hex(16))
