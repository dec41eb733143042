"""`arttrace serve` itself: engines kept alive, the gateway in front of them, and serving.json while they answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

import msgspec
import uvicorn

from arttrace.store.server.owner import listen
from arttrace.system.addresses import is_http, is_loopback, without_login
from arttrace.system.errors import ServingError, TrainingError
from arttrace.system.files import replace_file
from arttrace.system.journal.lock import acquire
from arttrace.system.paths import DataDir
from arttrace.system.private_files import make_directory, tighten_data
from trainer.gateway.app import Gateway
from trainer.gateway.engines.pool import Pool, Replica
from trainer.gateway.engines.vllm.cards import cards, first_is_free, share
from trainer.gateway.engines.vllm.engine import (
    EngineOptions,
    cards_of_engine,
    max_lora_rank,
    serves_on_cpu,
    told_precision,
)
from trainer.gateway.engines.vllm.memory import card_bytes, share_of_card
from trainer.gateway.engines.vllm.model import make_probe, require_utf8
from trainer.gateway.errors import Refusal
from trainer.gateway.gate import Gate
from trainer.gateway.http.open_files import requests_at_once
from trainer.gateway.http.server import gateway_server
from trainer.gateway.policies import Policies
from trainer.gateway.publish import Publisher, read_adapter
from trainer.gateway.recording.recorder import recorder_of
from trainer.gateway.sleep import Sleeper
from trainer.gateway.status import PublishReport, ServingFile
from trainer.learner.machine.needs import learner_needs
from trainer.output.log import Problem, same_level
from trainer.policies.checkpoints import Checkpoints
from trainer.serving.base_models import require_base
from trainer.serving.client import find_serving
from trainer.serving.supervisor import Say, Supervisor
from trainer.serving.training import TrainingDesk

_LOCK_WITHIN_S = 0.5
_ROOM_BYTES = 1 << 20
"""For serving.json, and for what engines log while they start."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `arttrace serve` was asked for.

    `version` is the one to begin with (0: the base model), None the newest, or the one that was rolled back to.
    `vllm_urls` name engines that are already there instead of `replicas` new ones. Trajectories that are recorded here
    end by themselves after `trajectory_idle_s` quiet seconds, or never when it is None. With `trains` it trains on what
    clients submit, and records the runs that they name in their requests, which wait meanwhile unless it `overlaps`.
    """

    data: DataDir
    engine: EngineOptions
    policy: str = "policy"
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    vllm_urls: tuple[str, ...] = ()
    replicas: int = 1
    max_requests: int = 1024
    trajectory_idle_s: float | None = None
    record_traceparent: bool = False
    version: int | None = None
    policy_sampling: bool = False
    trains: bool = False
    overlaps: bool = False


def serve(options: ServeOptions, *, say: Say, ready: Callable[[ServingFile, Policies], None]) -> None:
    """Serve until SIGINT or SIGTERM. `say` gets one line per stage of the start, `ready` is called once it answers.

    Raises ServingError: another server runs for this directory, the port is taken, an address is none, vLLM failed or
    fails for good.
    """
    if not is_loopback(options.host) and not options.api_key:
        raise ServingError(
            f"listening on {options.host} lets others in without asking who they are",
            "Give a key with --api-key-file or $ARTTRACE_API_KEY, or leave --host at 127.0.0.1.",
        )
    require_utf8(options.data.root)
    for url in options.vllm_urls:
        if not is_http(url) and not url.lower().startswith("unix:"):
            raise ServingError(
                f"{without_login(url)} is no address of an engine",
                "Write http://HOST:PORT, or unix:PATH for a socket in the file system.",
            )
    with (
        _only_one(options.data),
        listen(options.host, options.port) as listener,
        # uvicorn knows the fastest event loop that is installed.
        asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner,
    ):
        # Calls are decoded in a thread, for which the event loop shall not wait long.
        sys.setswitchinterval(0.001)
        runner.run(_Server(options, listener, say, ready).run())


class _Server:
    def __init__(
        self, options: ServeOptions, listener: socket.socket, say: Say, ready: Callable[[ServingFile, Policies], None]
    ) -> None:
        self._options = options
        self._listener = listener
        self._say = say
        self._ready = ready
        shape = options.engine.shape
        self._policies = Policies(options.policy, shape.name, engines_outlive_us=bool(options.vllm_urls))
        urls: list[str | None] = list(options.vllm_urls) or [None] * options.replicas
        names = ["the engine"] if len(urls) == 1 else [f"engine {number}" for number in range(1, len(urls) + 1)]
        pool = Pool([Replica(name) for name in names])
        publisher = self._publisher = Publisher(self._policies, make_probe(shape), pool, tell=self._tell_version)
        self._log = options.data.root / "logs" / "vllm.log"
        found = cards(os.environ)
        if not options.vllm_urls and not serves_on_cpu() and options.engine.memory_share is None:
            options = replace(options, engine=_beside_a_learner(options.engine, found, options.replicas, say))
        self._supervisors = [
            Supervisor(
                replica,
                publisher,
                replace(options.engine, cards=share(found, len(urls), number, cards_of_engine(options.engine))),
                self._log if number == 0 else self._log.with_stem(f"vllm-{number + 1}"),
                say if len(urls) == 1 else partial(_say_for, say, replica.name),
                url,
                self._serve_newest,
            )
            for number, (replica, url) in enumerate(zip(pool.replicas, urls, strict=True))
        ]
        self._recorder = recorder_of(options.data.spool, say)
        gate = Gate(max_requests=requests_at_once(options.max_requests))
        if gate.max_requests < options.max_requests:
            say(Problem(f"only {gate.max_requests} requests at once, for want of files (`ulimit -Hn`)"))
        self._training: TrainingDesk | None = None
        if options.trains:
            self._training = TrainingDesk(self._recorder, gate, say, blocks=not options.overlaps)
        self._gateway = Gateway(
            self._policies,
            publisher,
            pool,
            api_key=options.api_key,
            gate=gate,
            recorder=self._recorder,
            joins_traceparents=options.record_traceparent,
            policy_sampling=options.policy_sampling,
            reads_run_names=self._training is not None,
            max_lora_rank=0 if options.vllm_urls else max_lora_rank(options.engine),
            end_token=shape.end_token,
            routes=None if self._training is None else self._training.routes(),
        )
        if options.engine.sleep:
            self._gateway.sleeper = Sleeper(pool, publisher, self._gateway.gate, say=say)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        self._take_up_version()
        work = asyncio.create_task(self._serve())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                await self._finish_training()
                self._say("stopping")
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
        finally:
            stopped.cancel()
            if self._training is not None:
                await self._training.close()
            self._options.data.serving.unlink(missing_ok=True)
            if self._options.vllm_urls and self._gateway.sleeper is not None:
                with contextlib.suppress(TimeoutError):  # engines that outlive us shall not be left asleep
                    async with asyncio.timeout(10.0):
                        await self._gateway.sleeper.wake()
            await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))
            await asyncio.to_thread(self._recorder.close)

    async def _finish_training(self) -> None:
        """Let the step under way be made, saved and served, unless a second signal says that it is not to be."""
        if self._training is None:
            return
        self._stop.clear()
        if self._training.busy:
            self._say("stopping when the running step is done and saved; once more drops the step")
        finishing, again = asyncio.create_task(self._training.finish()), asyncio.create_task(self._stop.wait())
        await asyncio.wait((finishing, again), return_when=asyncio.FIRST_COMPLETED)
        for task in (finishing, again):
            task.cancel()
        newest = Checkpoints(self._options.data.policies, self._options.policy).latest()
        if newest is not None:
            self._say(f"the latest checkpoint is {self._policies.version_name(newest)}")

    def _take_up_version(self) -> None:
        checkpoints = Checkpoints(self._options.data.policies, self._options.policy)
        newest, asked = checkpoints.latest(), self._options.version
        step = checkpoints.served() if asked is None else asked
        if asked and asked not in checkpoints.steps():
            raise ServingError(
                f"there is no version {self._policies.version_name(asked)} to serve",
                "`arttrace policies` lists those with weights.",
            )
        if step:
            manifest = None
            with contextlib.suppress(TrainingError):  # a damaged one is for who trains: the adapter can be served
                manifest = checkpoints.manifest(step)
            if manifest is not None:
                require_base(manifest, self._options.engine.base_model)
            path = checkpoints.path(step)
            self._policies.switch(self._policies.made(step, path, read_adapter(path).digest))
        if asked is not None:
            self._policies.passed_over = newest or 0
        if newest is not None and step is not None:
            name = self._policies.version_name(step)
            why = "newest version" if step == newest else "version asked for" if asked is not None else "rolled back to"
            self._say(
                f"{why}: {name}" + ("" if step == newest else f" (newest: {self._policies.version_name(newest)})")
            )

    async def _serve_newest(self) -> None:
        """Serve the version that was made while no engine could take it, or nobody could find this server."""
        checkpoints = Checkpoints(self._options.data.policies, self._options.policy)
        step = checkpoints.served() or 0
        if step <= max(self._policies.current.step, self._policies.passed_over):
            return
        try:
            await self._publisher.publish(step, checkpoints.path(step))
        except (ServingError, Refusal) as error:
            self._say(Problem(f"{self._policies.version_name(step)} is not served yet: {error}"))
        else:
            self._say(f"{self._policies.version_name(step)} was made while no engine was there")

    async def _serve(self) -> None:
        await self._bring_up_engines()
        if self._training is not None:  # before the first request can order anything
            base_model = str(self._options.engine.base_model)
            await self._training.begin(self._options.data, self._options.policy, base_model, self._options.api_key)
        server = gateway_server(self._gateway.app())
        answering = asyncio.create_task(server.serve(sockets=[self._listener]))
        watching = [asyncio.create_task(self._keep_engines_alive())]
        if (idle_s := self._options.trajectory_idle_s) is not None:
            watching.append(asyncio.create_task(self._recorder.end_idle_ones(idle_s)))
        try:
            while not server.started and not answering.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            self._write_record(self._record())
            await self._serve_newest()  # who made a version before that file was there has handed it to nobody
            self._ready(self._record(), self._policies)
            await asyncio.wait((answering, *watching), return_when=asyncio.FIRST_COMPLETED)
            for task in watching:
                if task.done():
                    task.result()
        finally:
            for task in watching:
                task.cancel()
            server.should_exit = True
            await asyncio.wait((answering, *watching))

    async def _bring_up_engines(self) -> None:
        starting = [asyncio.create_task(supervisor.bring_up()) for supervisor in self._supervisors]
        try:
            await asyncio.wait(starting, return_when=asyncio.FIRST_EXCEPTION)
            for task in starting:
                if task.done():
                    task.result()
        finally:
            for task in starting:
                task.cancel()
            await asyncio.wait(starting)

    async def _keep_engines_alive(self) -> None:
        """Raises the last engine's failure when every one has failed for good."""
        watched = {asyncio.create_task(supervisor.keep_alive()) for supervisor in self._supervisors}
        try:
            while True:
                failed, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                for task in failed:
                    error = task.exception()
                    if not watched or not isinstance(error, ServingError):
                        task.result()
                    self._say(Problem(f"given up: {error}"))
        finally:
            for task in watched:
                task.cancel()

    def _record(self) -> ServingFile:
        host, port = self._listener.getsockname()[:2]
        if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
            host = "127.0.0.1"
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return ServingFile(
            url=url,
            base_model=str(self._options.engine.base_model),
            policy=self._options.policy,
            pid=os.getpid(),
            log=str(self._log),
            version=self._policies.current.name,
            dtype=told_precision(self._options.engine),
        )

    def _write_record(self, record: ServingFile) -> None:
        """Put what it says into serving.json. That says nothing once this process is gone, and whoever publishes waits
        for it: not for the disk."""
        replace_file(self._options.data.serving, msgspec.json.encode(record), durably=False)

    def _tell_version(self, report: PublishReport) -> None:
        """Say which version answers now, and put it into serving.json, for those who only read."""
        self._say(f"{report.previous} -> {report.version}")
        record = self._record()
        try:
            self._write_record(record)
        except OSError as error:
            why = error.strerror or error
            self._say(Problem(f"{self._options.data.serving} does not say that {record.version} answers: {why}"))


def _say_for(say: Say, name: str, line: str) -> None:
    say(same_level(line, f"{name}: {line}"))


@contextlib.contextmanager
def _only_one(data: DataDir) -> Iterator[None]:
    """Hold the directory's serving lock, which the system frees when this process dies."""
    make_directory(data.root)
    tighten_data(data.root)
    with data.serving_lock.open("wb") as lock:
        until = time.monotonic() + _LOCK_WITHIN_S
        while not acquire(lock.fileno()):
            if time.monotonic() < until:  # somebody may be asking just now whether it is held
                time.sleep(0.02)
                continue
            running = find_serving(data)
            where = f" at {running.url} (process {running.pid})" if running else " (it is still starting)"
            raise ServingError(
                f"{data.root} is already served{where}", "Stop that one, or use another --dir."
            ) from None
        _require_room(data, lock)
        data.serving.unlink(missing_ok=True)
        yield


def _require_room(data: DataDir, lock: BinaryIO) -> None:
    """Raise OSError on a full disk now: engines start for a minute, after which serving.json could not be written."""
    try:
        lock.write(bytes(_ROOM_BYTES))
        lock.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(data.root)) from None
    finally:
        lock.truncate(0)


def _beside_a_learner(engine: EngineOptions, found: Sequence[str], replicas: int, say: Say) -> EngineOptions:
    """With the share of a card that a learner leaves which trains on the first one."""
    each = cards_of_engine(engine)
    taken = share_of_card(
        card_bytes(found[0] if found else None),
        learner_needs(engine.base_model),
        sleeps=engine.sleep,
        alone=first_is_free(found, replicas, each),
    )
    say(f"vLLM takes {'its default' if taken.value is None else f'{taken.value:.0%}'} of a card: {taken.reason}")
    return replace(engine, memory_share=taken.value)
