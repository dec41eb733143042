"""Publishing: load a new version, make sure that the served model changed, switch the aliases, unload the old one."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mmap
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.errors import ServingError
from trainer.gateway.engines.pool import Pool, Replica
from trainer.gateway.engines.upstream import EngineGone, Upstream
from trainer.gateway.engines.vllm.model import Probe
from trainer.gateway.policies import Policies, Version
from trainer.gateway.status import PublishReport


class Adapter(msgspec.Struct, frozen=True):
    """An adapter directory as far as serving must know it. `digest` is "" when it changes nothing (all zero)."""

    path: Path
    digest: str


class _Tensor(msgspec.Struct):
    data_offsets: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]


_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_adapter(path: Path) -> Adapter:
    """Identify the weights of a PEFT adapter directory. Raises ServingError when it is not a whole one."""
    weights = path / "adapter_model.safetensors"
    if not (path / "adapter_config.json").is_file() or not weights.is_file():
        raise ServingError(
            f"{path} is no adapter: it lacks adapter_config.json or adapter_model.safetensors",
            "Publish the directory that PEFT's save_pretrained wrote, by a path that this machine can read.",
        )
    hint = f"Restore {path}, or serve another version: `arttrace policies` lists them."
    try:
        with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            (header_length,) = struct.unpack_from("<Q", data)
            start = 8 + header_length
            if start > len(data):
                raise ValueError("its length does not fit its header")
            header = _HEADER.decode(data[8:start])
            header.pop("__metadata__", None)
            tensors = {name: msgspec.json.decode(entry, type=_Tensor).data_offsets for name, entry in header.items()}
            if not all(first <= last for first, last in tensors.values()):
                raise ValueError("a tensor ends before it begins")
            if max((last for _, last in tensors.values()), default=0) + start != len(data):
                raise ValueError("its length does not fit its header")
            changing = [span for name, span in tensors.items() if "lora_B" in name]
            zero = all(_is_zero(data, start + first, start + last) for first, last in changing)
            return Adapter(path, "" if zero else _digest(data, start))
    except OSError as error:
        raise ServingError(f"{weights} cannot be read: {error.strerror}", hint) from None
    except (struct.error, *UNREADABLE) as error:
        raise ServingError(f"{weights} is damaged: {error}", hint) from None


_BLOCK = 1 << 15


def _is_zero(data: mmap.mmap, first: int, last: int) -> bool:
    """Whether there is nothing but zeros; most often the first block says that there is."""
    return not any(any(data[at : min(at + _BLOCK, last)]) for at in range(first, last, _BLOCK))


def _digest(data: mmap.mmap, start: int) -> str:
    """What distinguishes weights: a hash of the sums over blocks of 32 KiB, since whoever waits for a version waits for
    this. A cryptographic hash of all of it takes forty times as long (0.4 s for the adapter of a 4B model)."""
    import numpy

    words = numpy.frombuffer(data, dtype="<u8", count=(len(data) - start) // 8, offset=start)
    whole = len(words) * 8 // _BLOCK * (_BLOCK // 8)
    summed = numpy.add.reduce(words[:whole].reshape(-1, _BLOCK // 8), axis=1)
    found = hashlib.blake2b(summed.tobytes(), digest_size=16)
    found.update(words[whole:].tobytes())
    del words  # the map cannot be closed before
    found.update(data[start + (len(data) - start) // 8 * 8 :])
    return found.hexdigest()


def max_abs_diff(new: Sequence[float], old: Sequence[float]) -> float:
    """The largest absolute difference of two probes of equal length."""
    return max((abs(a - b) for a, b in zip(new, old, strict=True)), default=0.0)


_NOISE, _MOST = 0.01, 0.1


def require_same(name: str, now: Sequence[float], before: Sequence[float], base: Sequence[float]) -> None:
    """Raises ServingError unless a probe shows the policy that it showed `before`.

    Kernels in bfloat16 need not repeat themselves exactly: within 0.01 nats nothing is distinguished, and beyond 0.1
    nothing is excused. Between them, what is nearer to the base model than to itself has lost its adapter.
    """
    moved = max_abs_diff(now, before)
    if not moved <= _MOST or (moved > _NOISE and max_abs_diff(now, base) < moved):  # a NaN is no policy either
        raise ServingError(
            f"the served {name} is not what it was: its log-probabilities moved by {moved:.3g}",
            "The engine's memory may be damaged: restart it.",
        )


class Publisher:
    """Publishes one version at a time to every engine behind `policies`."""

    def __init__(
        self, policies: Policies, probe: Probe, pool: Pool, *, tell: Callable[[PublishReport], None] = lambda _: None
    ) -> None:
        """`tell` is called in a thread when the aliases mean another version."""
        self._policies = policies
        self._probe = probe
        self._pool = pool
        self._tell = tell
        # Publishing and adopting take turns: an engine that joined between the loading of a version and the switch
        # to it would be asked for what it does not hold.
        self._lock = asyncio.Lock()
        self._drains: dict[str, asyncio.Task[None]] = {}

    async def adopt(self, replica: Replica, upstream: Upstream) -> None:
        """Bring an engine to the state of the policies, and let requests reach it."""
        base = self._policies.base
        if await upstream.sleeps():  # for a gateway that died meanwhile
            await upstream.wake_up()
        probe = await upstream.probe(base.engine_model, self._probe, timeout_s=600.0)  # it may compile
        replica.processed = await upstream.gives_processed_logprobs(base.engine_model, self._probe)
        async with self._lock:
            current = self._policies.current
            before = replica.probes.get(base.name, probe)
            require_same(base.name, probe, before, before)
            await self._unload_strangers(replica, upstream)
            if current.path is not None:
                await self._load(replica, upstream, current)
                now = await upstream.probe(current.engine_model, self._probe)
                require_same(current.name, now, replica.probes.get(current.name, now), probe)
                replica.probes[current.name] = now
            replica.probes[base.name] = probe
            replica.upstream, replica.state = upstream, "ready"
            for version in self._policies.versions():
                if not any(each.holds(version) for each in self._pool.ready()):
                    self._policies.forget(version)

    @asynccontextmanager
    async def settled(self) -> AsyncIterator[None]:
        """Nothing is being published or unloaded meanwhile."""
        async with self._lock:
            if self._drains:
                await asyncio.wait(set(self._drains.values()))  # who gives up waiting does not end them
            yield

    async def verify(self, replica: Replica) -> None:
        """Raises ServingError unless an engine that is to serve again gives on the probe what it gave before."""
        current, base = self._policies.current, self._policies.base
        if replica.upstream is None:
            raise EngineGone(f"the serving engine is {replica.state}")
        for version in dict.fromkeys((base.name, current.name)):
            before = replica.probes[version]
            model = base.engine_model if version == base.name else current.engine_model
            now = await replica.upstream.probe(model, self._probe)
            require_same(version, now, before, replica.probes[base.name])

    async def publish(self, step: int, path: Path) -> PublishReport:
        """Serve the adapter in `path` as version `step`, which may be older than the one served now; 0 is the base
        model, without an adapter. On ServingError the version before goes on being served.

        Raises Refusal (503) when no engine is ready.
        """
        async with self._lock:
            report = await self._publish(step, path)
            if report.version != report.previous:
                await asyncio.to_thread(self._tell, report)
            return report

    async def _publish(self, step: int, path: Path) -> PublishReport:
        began = time.perf_counter()
        previous = self._policies.current
        name = self._policies.version_name(step)
        if step < 0:
            raise ServingError("versions are counted from 1; version 0 is the base model")
        adapter = await asyncio.to_thread(read_adapter, path) if step else Adapter(path, "")
        if (draining := self._drains.get(name)) is not None and self._policies.get(name) is None:
            await asyncio.wait((draining,))  # it is being unloaded
        if (served := self._policies.get(name)) is not None:
            if served.digest != adapter.digest:
                raise ServingError(f"{name} is already served", "Publish under a number that was not served before.")
            if served is not previous:  # it answers requests still, or is the base model
                if draining is not None:
                    draining.cancel()
                self._switch(served)
            took = time.perf_counter() - began
            return PublishReport(name, previous.name, 0.0, took, already_served=True)
        replicas = self._pool.ready()
        if not replicas:
            raise self._pool.cannot_publish()
        if any(replica.digests.get(name, adapter.digest) != adapter.digest for replica in replicas):
            # The engine's prefix cache goes by the name: it would mix the two policies.
            raise ServingError(
                f"{name} was served with other weights before",
                "Publish under another number, or restart `arttrace serve`.",
            )
        version = self._policies.made(step, path, adapter.digest)
        outcomes = await asyncio.gather(
            *(self._bring(replica, version, previous) for replica in replicas), return_exceptions=True
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        failed = failures and (
            len(failures) == len(replicas) or not all(isinstance(each, EngineGone) for each in failures)
        )
        for replica, outcome in zip(replicas, outcomes, strict=True):
            if isinstance(outcome, EngineGone) and not (failed and await _is_only_busy(replica)):
                replica.lose()
        if failed:
            await asyncio.gather(*(self._unload(replica, version) for replica in replicas))
            raise next((each for each in failures if not isinstance(each, EngineGone)), failures[0])
        self._switch(version)
        brought = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        return PublishReport(
            name,
            previous.name,
            max(each.difference for each in brought),
            time.perf_counter() - began,
            max(each.load_seconds for each in brought),
            adapter.digest == previous.digest,
        )

    def _switch(self, version: Version) -> None:
        """Make a loaded version what the aliases mean; the one before is unloaded when it is idle."""
        previous = self._policies.switch(version)
        if previous.path is not None:
            self._drain(previous)

    async def _bring(self, replica: Replica, version: Version, previous: Version) -> _Brought:
        """Load a version on one engine, and make sure that it changes what the engine answers."""
        upstream, began = replica.upstream, time.perf_counter()
        if upstream is None:
            raise EngineGone(f"the serving engine is {replica.state}")
        await self._load(replica, upstream, version)
        loaded = time.perf_counter()
        probe = replica.probes[version.name] = await upstream.probe(version.engine_model, self._probe)
        difference = max_abs_diff(probe, replica.probes[previous.name])
        if difference == 0.0 and version.digest != previous.digest:
            raise ServingError(
                f"the served policy did not change: {version.name} gives the same log-probabilities as {previous.name}",
                "The adapter's weights differ, so the engine does not apply them. See vLLM's log; "
                "an adapter whose target modules are not those of the base model does this.",
            )
        return _Brought(difference, loaded - began)

    async def _load(self, replica: Replica, upstream: Upstream, version: Version) -> None:
        try:
            await self._load_anew(upstream, version.engine_model, str(version.path))
        except EngineGone:
            raise
        except ServingError as error:
            hint = "Serve with --vllm-arg=--max-lora-rank=N." if "max_lora_rank" in error.message else None
            raise ServingError(f"{version.name} could not be loaded: {error.message}", hint) from error
        replica.digests[version.name] = version.digest
        replica.loaded.add(version.name)

    @staticmethod
    async def _load_anew(upstream: Upstream, model: str, path: str) -> None:
        """Load an adapter, be the engine one that outlived an earlier gateway and holds it: it takes no name twice."""
        try:
            await upstream.load_adapter(model, path)
        except EngineGone:
            raise
        except ServingError:
            held = (await upstream.models()).get(model)
            if held is None:
                raise
            if held != path:  # where it was is nothing any more, or another's
                await upstream.unload_adapter(model)
                await upstream.load_adapter(model, path)

    async def _unload_strangers(self, replica: Replica, upstream: Upstream) -> None:
        """Versions that the engine was given before it was lost: those that are not served any more go."""
        served = await upstream.models()
        names = {name: self._policies.engine_model(name, digest) for name, digest in replica.digests.items()}
        there = {name: model for name, model in names.items() if model in served}
        replica.loaded = {name for name in there if self._policies.get(name) is not None}
        for model in [model for name, model in there.items() if name not in replica.loaded]:
            await self._forget(upstream, model)

    async def _unload(self, replica: Replica, version: Version) -> None:
        replica.loaded.discard(version.name)
        replica.probes.pop(version.name, None)
        if replica.upstream is not None:
            await self._forget(replica.upstream, version.engine_model)

    @staticmethod
    async def _forget(upstream: Upstream, name: str) -> None:
        with contextlib.suppress(ServingError):  # it is gone, and the adapter with it; or it never took it
            await upstream.unload_adapter(name)

    def _drain(self, version: Version) -> None:
        async def unload_when_idle() -> None:
            while version.requests:
                await version.idle()
            self._policies.forget(version)
            holding = [replica for replica in self._pool.replicas if version.name in replica.loaded]
            await asyncio.gather(*(self._unload(replica, version) for replica in holding))

        task = self._drains[version.name] = asyncio.create_task(unload_when_idle())

        def done(task: asyncio.Task[None]) -> None:
            if self._drains.get(version.name) is task:
                del self._drains[version.name]

        task.add_done_callback(done)


async def _is_only_busy(replica: Replica) -> bool:
    """Whether an engine that did not do in time what was ordered goes on serving what it holds."""
    return replica.upstream is not None and await replica.upstream.healthy()


class _Brought(NamedTuple):
    difference: float
    load_seconds: float
