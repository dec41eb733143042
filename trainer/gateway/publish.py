"""Publishing: load a new version, make sure that the served model changed, switch the aliases, unload the old one."""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from arttrace.errors import ServingError
from trainer.gateway.policies import Policies, Version
from trainer.gateway.upstream import Upstream
from trainer.serving.model import Probe
from trainer.serving.report import PublishReport


class Adapter(msgspec.Struct, frozen=True):
    """An adapter directory as far as serving must know it. `digest` is "" when it changes nothing (all zero)."""

    path: Path
    digest: str


def read_adapter(path: Path) -> Adapter:
    """Identify the weights of a PEFT adapter directory. Raises ServingError when it is not a whole one."""
    weights = path / "adapter_model.safetensors"
    if not (path / "adapter_config.json").is_file() or not weights.is_file():
        raise ServingError(
            f"{path} is no adapter: it lacks adapter_config.json or adapter_model.safetensors",
            "Publish the directory that PEFT's save_pretrained wrote, by a path that this machine can read.",
        )
    data = weights.read_bytes()
    try:
        (header_length,) = struct.unpack_from("<Q", data)
        start = 8 + header_length
        header: dict[str, Any] = msgspec.json.decode(data[8:start])
        tensors = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
        zero = not any(
            data.count(0, start + first, start + last) < last - first
            for name, (first, last) in tensors.items()
            if "lora_B" in name
        )
        if max((last for _, last in tensors.values()), default=0) + start != len(data):
            raise ValueError("its length does not fit its header")
    except (struct.error, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise ServingError(f"{weights} is damaged: {error}") from None
    return Adapter(path, "" if zero else hashlib.blake2b(data[start:], digest_size=16).hexdigest())


def max_abs_diff(new: Sequence[float], old: Sequence[float]) -> float:
    """The largest absolute difference of two probes of equal length."""
    return max((abs(a - b) for a, b in zip(new, old, strict=True)), default=0.0)


class Publisher:
    """Publishes one version at a time to the engine behind `policies`."""

    def __init__(self, policies: Policies, probe: Probe) -> None:
        self._policies = policies
        self._probe = probe
        self._lock = asyncio.Lock()
        self._drains: set[asyncio.Task[None]] = set()
        self._digests: dict[str, str] = {}  # of every name the running engine has served

    async def adopt(self, upstream: Upstream) -> None:
        """Bring a fresh engine to the state of the policies: the base's probe, and the current version loaded."""
        current, base = self._policies.current, self._policies.base
        base.probe = await upstream.probe(base.engine_model, self._probe, timeout_s=600.0)
        self._digests.clear()
        for version in self._policies.versions():
            self._policies.forget(version)
        if current.path is not None:
            await self._ensure_loaded(upstream, current)
            current.probe = await upstream.probe(current.engine_model, self._probe)

    async def publish(self, upstream: Upstream, step: int, path: Path) -> PublishReport:
        """Serve the adapter in `path` as version `step`. On ServingError the version before goes on being served."""
        async with self._lock:
            return await self._publish(upstream, step, path)

    async def _publish(self, upstream: Upstream, step: int, path: Path) -> PublishReport:
        began = time.perf_counter()
        previous = self._policies.current
        name = self._policies.version_name(step)
        if step < 1:
            raise ServingError("versions are counted from 1; version 0 is the base model")
        adapter = await asyncio.to_thread(read_adapter, path)
        if (served := self._policies.get(name)) is not None:
            if served is previous and served.digest == adapter.digest:
                return PublishReport(name, name, 0.0, time.perf_counter() - began, already_served=True)
            raise ServingError(f"{name} is already served", "Publish under a number that was not served before.")
        if self._digests.get(name, adapter.digest) != adapter.digest:
            # The engine's prefix cache goes by the name: it would mix the two policies.
            raise ServingError(
                f"{name} was served with other weights before",
                "Publish under another number, or restart `arttrace serve`.",
            )
        version = Version(step, name, name, path, adapter.digest)
        await self._ensure_loaded(upstream, version)
        loaded = time.perf_counter()
        unchanged = adapter.digest == previous.digest
        try:
            version.probe = await upstream.probe(name, self._probe)
            difference = max_abs_diff(version.probe, previous.probe)
            if difference == 0.0 and not unchanged:
                raise ServingError(
                    f"the served policy did not change: {name} gives the same log-probabilities as {previous.name}",
                    "The adapter's weights differ, so the engine does not apply them. See vLLM's log; "
                    "an adapter whose target modules are not those of the base model does this.",
                )
        except ServingError:
            await self._unload(upstream, version)
            raise
        self._policies.switch(version)
        if previous.path is not None:
            self._drain(upstream, previous)
        seconds = time.perf_counter() - began
        return PublishReport(name, previous.name, difference, seconds, loaded - began, unchanged)

    async def _ensure_loaded(self, upstream: Upstream, version: Version) -> None:
        # An engine that outlived an earlier gateway may still hold it.
        if (await upstream.models()).get(version.engine_model) != str(version.path):
            try:
                await upstream.load_adapter(version.engine_model, str(version.path))
            except ServingError as error:
                mend = "Serve with --vllm-arg=--max-lora-rank=N." if "max_lora_rank" in error.message else None
                raise ServingError(f"{version.name} could not be loaded: {error.message}", mend) from error
        self._digests[version.name] = version.digest

    async def _unload(self, upstream: Upstream, version: Version) -> None:
        try:
            await upstream.unload_adapter(version.engine_model)
        except ServingError:
            # The engine is gone, and the adapter with it; or it never took it.
            return

    def _drain(self, upstream: Upstream, version: Version) -> None:
        async def unload_when_idle() -> None:
            while version.requests:
                await version.idle()
            self._policies.forget(version)
            await self._unload(upstream, version)

        task = asyncio.create_task(unload_when_idle())
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)
