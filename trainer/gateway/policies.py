"""Which versions of the policy are served, which one the aliases mean, and how many requests each is answering."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trainer.gateway.errors import Refusal

SHARED_ALIASES = ("policy:latest", "lora:latest")


@dataclass(slots=True)
class Version:
    """One version of the policy, made by step `step` (0: the base model itself).

    `engine_model` is its name inside the engine, `path` its adapter (None for the base model), `digest` identifies
    the adapter's weights ("" when they change nothing).
    """

    step: int
    name: str
    engine_model: str
    path: Path | None = None
    digest: str = ""
    requests: int = 0
    _idle: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    def __post_init__(self) -> None:
        self._idle.set()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A request is being answered by this version."""
        self.requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.requests -= 1
            if not self.requests:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is being answered by this version."""
        await self._idle.wait()


class Policies:
    """The served versions of one policy over one base model; version 0 is the base model itself.

    Used from one event loop, so that resolving a name and counting the request cannot be torn apart by a switch. Where
    `engines_outlive_us` an earlier server may have given them other weights under the same name and path, by which
    their prefix caches go: there an adapter's name holds what distinguishes its weights.
    """

    def __init__(self, policy: str, base_model: str, *, engines_outlive_us: bool = False) -> None:
        self.policy = policy
        self.base_model = base_model
        self._engines_outlive_us = engines_outlive_us
        self.base = Version(0, self.version_name(0), base_model)
        self.current = self.base
        self._versions = {self.base.name: self.base}
        self.passed_over = 0
        """The newest version there was when an older one was asked for, which is served until a newer one is made."""

    def version_name(self, step: int) -> str:
        """`policy@step`."""
        return f"{self.policy}@{step}"

    def made(self, step: int, path: Path, digest: str) -> Version:
        """The version of an adapter, not yet loaded."""
        name = self.version_name(step)
        return Version(step, name, self.engine_model(name, digest), path, digest)

    def engine_model(self, name: str, digest: str) -> str:
        """What engines know the adapter with these weights by."""
        return f"{name}+{digest[:8] or '0'}" if self._engines_outlive_us else name

    def get(self, name: str) -> Version | None:
        """The loaded version of that name."""
        return self._versions.get(name)

    def resolve(self, model: str) -> Version:
        """The version that a request for `model` means. Raises Refusal (404) with the names that exist."""
        if model in SHARED_ALIASES or model in (self.policy, f"{self.policy}:latest"):
            return self.current
        if model == self.base_model:
            return self.base
        version = self._versions.get(model) or next((v for v in self.versions() if v.engine_model == model), None)
        if version is None:
            known = ", ".join(self.names())
            raise Refusal(404, "model_not_found", f"no model {model!r} is served here; models: {known}")
        return version

    def names(self) -> list[str]:
        """Every model name that is answered, aliases first."""
        aliases = dict.fromkeys([self.policy, f"{self.policy}:latest", *SHARED_ALIASES])
        return [*aliases, *self._versions, self.base_model]

    def versions(self) -> list[Version]:
        """Every loaded version, the base first."""
        return list(self._versions.values())

    def switch(self, version: Version) -> Version:
        """Make `version` what the aliases mean; returns the one they meant before, which goes on existing."""
        previous, self.current = self.current, version
        self._versions[version.name] = version
        return previous

    def forget(self, version: Version) -> None:
        """No new request reaches `version`; the base and the current version are never forgotten."""
        if version is not self.base and version is not self.current:
            self._versions.pop(version.name, None)
