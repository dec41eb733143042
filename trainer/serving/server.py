"""`arttrace serve` itself: one engine kept alive, the gateway in front of it, and serving.json while both answer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvicorn

from arttrace.errors import ServingError
from arttrace.journal.lock import acquire
from arttrace.paths import DataDir
from trainer.checkpoints import Checkpoints
from trainer.gateway.app import Gateway
from trainer.gateway.policies import Policies, Version
from trainer.gateway.publish import Publisher, read_adapter
from trainer.gateway.upstream import Upstream
from trainer.serving.client import find_serving
from trainer.serving.engine import EngineAddress, EngineOptions, VllmProcess
from trainer.serving.model import make_probe
from trainer.serving.report import ServingFile

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_READY_WITHIN_S = 900.0
_RESTARTS, _RESTARTS_WITHIN_S = 3, 600.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `arttrace serve` was asked for. `vllm_url` names an engine that is already there instead of a new one."""

    data: DataDir
    engine: EngineOptions
    policy: str = "policy"
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    vllm_url: str | None = None


def serve(options: ServeOptions, *, say: Say, ready: Callable[[ServingFile, Policies], None]) -> None:
    """Serve until SIGINT or SIGTERM. `say` gets one line per stage of the start, `ready` is called once it answers.

    Raises ServingError: another server runs for this directory, the port is taken, vLLM failed or fails for good.
    """
    if options.host not in _LOOPBACK and not options.api_key:
        raise ServingError(
            f"listening on {options.host} lets others in without asking who they are",
            "Give a token with --api-key or $ARTTRACE_API_KEY, or leave --host at 127.0.0.1.",
        )
    with (
        _only_one(options.data),
        _listening_socket(options.host, options.port) as listener,
        # uvicorn knows the fastest event loop that is installed.
        asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner,
    ):
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
        self._policies = Policies(options.policy, shape.name)
        self._publisher = Publisher(self._policies, make_probe(shape))
        self._gateway = Gateway(self._policies, self._publisher, api_key=options.api_key)
        self._log = options.data.root / "logs" / "vllm.log"
        self._process: VllmProcess | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        self._load_newest_version()
        work = asyncio.create_task(self._serve())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                self._say("stopping")
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
        finally:
            stopped.cancel()
            self._options.data.serving.unlink(missing_ok=True)
            if self._gateway.upstream is not None:
                await self._gateway.upstream.close()
            await self._stop_engine()

    async def _stop_engine(self) -> None:
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    def _load_newest_version(self) -> None:
        checkpoints = Checkpoints(self._options.data.policies, self._options.policy)
        step = checkpoints.latest()
        if step:
            name, path = self._policies.version_name(step), checkpoints.path(step)
            self._policies.switch(Version(step, name, name, path, read_adapter(path).digest))
            self._say(f"newest version: {name}")

    async def _serve(self) -> None:
        await self._start_engine()
        server = _QuietServer(
            uvicorn.Config(
                self._gateway.app(),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=75,  # longer than the idle time after which OpenAI's clients drop a connection
                timeout_graceful_shutdown=3,
            )
        )
        answering = asyncio.create_task(server.serve(sockets=[self._listener]))
        try:
            while not server.started and not answering.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            record = self._record()
            _write_atomically(self._options.data.serving, msgspec.json.encode(record))
            self._ready(record, self._policies)
            watching = asyncio.create_task(self._keep_engine_alive())
            try:
                await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
            finally:
                watching.cancel()
        finally:
            server.should_exit = True
            await asyncio.wait((answering,))

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
        )

    async def _start_engine(self) -> None:
        """Bring one engine up: alive, its own, warmed by a first completion, with the current version loaded."""
        if self._options.vllm_url is None:
            self._process = VllmProcess(self._options.engine, self._log)
            address = self._process.address
            self._say(f"starting vLLM with {self._options.engine.base_model} (log: {self._log})")
        else:
            address = EngineAddress(
                self._options.vllm_url.rstrip("/").removesuffix("/v1"), os.environ.get("VLLM_API_KEY")
            )
            self._say(f"using the engine at {address.url}")
        upstream = Upstream(address)
        try:
            await self._until_healthy(upstream)
            await self._check_identity(upstream)
            self._say("warming up (vLLM compiles on first use)")
            warming = asyncio.create_task(self._publisher.adopt(upstream))
            while not warming.done():
                await asyncio.wait((warming,), timeout=0.5)
                self._raise_if_dead()
            warming.result()
        except BaseException:
            await upstream.close()
            raise
        self._gateway.upstream, self._gateway.engine_state = upstream, "ready"

    def _raise_if_dead(self) -> None:
        if self._process is not None and not self._process.alive:
            raise self._process.failure()

    async def _until_healthy(self, upstream: Upstream) -> None:
        deadline = time.monotonic() + (_READY_WITHIN_S if self._process else 10.0)
        while not await upstream.healthy():
            self._raise_if_dead()
            if time.monotonic() > deadline:
                raise ServingError(
                    f"the engine at {upstream.address.url} does not answer /health",
                    f"See {self._log}." if self._process else "Start it, or leave --vllm-url out.",
                )
            await asyncio.sleep(0.2)

    async def _check_identity(self, upstream: Upstream) -> None:
        served = await upstream.models()
        expected = self._policies.base_model if self._process is None else self._process.marker
        if expected not in served:
            raise ServingError(
                f"the server at {upstream.address.url} is not the expected engine: it serves {sorted(served)}",
                "Start it with --served-model-name and the base model's directory name."
                if self._process is None
                else "Another program took vLLM's port; start again.",
            )

    async def _keep_engine_alive(self) -> None:
        """Restart vLLM when it dies, with the current version. Raises its failure when it dies too often."""
        deaths: list[float] = []
        while True:
            await asyncio.sleep(0.2)
            try:
                self._raise_if_dead()
                continue
            except ServingError as error:
                failure = error
            upstream, self._gateway.upstream = self._gateway.upstream, None
            self._gateway.engine_state = "restarting"
            if upstream is not None:
                await upstream.close()
            await self._stop_engine()
            now = time.monotonic()
            deaths = [*(at for at in deaths if now - at < _RESTARTS_WITHIN_S), now]
            if len(deaths) > _RESTARTS:
                raise ServingError(f"vLLM died {len(deaths)} times; the last time: {failure.message}", failure.mend)
            self._gateway.restarts += 1
            self._say(f"vLLM died ({failure.message.splitlines()[0]}); restart {len(deaths)} of {_RESTARTS}")
            try:
                await self._start_engine()
                self._say(f"serving {self._policies.current.name} again")
            except ServingError as error:
                self._say(f"the restart failed: {error.message}")
                await self._stop_engine()


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours to handle: vLLM must be stopped as well."""
        yield


@contextlib.contextmanager
def _only_one(data: DataDir) -> Iterator[None]:
    """Hold the directory's serving lock, which the system frees when this process dies."""
    data.root.mkdir(parents=True, exist_ok=True)
    with (data.root / "serve.lock").open("w") as lock:
        if not acquire(lock.fileno()):
            running = find_serving(data)
            where = f" at {running.url} (process {running.pid})" if running else " (it is still starting)"
            raise ServingError(
                f"{data.root} is already served{where}", "Stop that one, or use another --dir."
            ) from None
        data.serving.unlink(missing_ok=True)
        yield


def _listening_socket(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With its protocol named: asyncio switches Nagle's algorithm off only for sockets that say they are TCP.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise ServingError(
            f"port {port} on {host} is taken by another program"
            if taken
            else f"cannot listen on {host}:{port}: {error}",
            "Choose another with --port, or --port 0 for any free one." if taken else None,
        ) from None
    return listener


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
