"""The engines behind the gateway, and which of them answers a request."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

from trainer.gateway.engines.upstream import Upstream
from trainer.gateway.errors import EngineDown, engine_down
from trainer.gateway.policies import Version

MAX_HOMES = 50_000
"""Trajectories whose engine is remembered; the one that has been quiet for longest goes first."""


class Replica:
    """One engine. Requests reach it while `state` is "ready"; others are "starting", "restarting", "lost", "failed";
    "asleep" and "waking"; and "broken", which is one that did not wake as it was.

    `processed` says that its log-probabilities are of the distribution that it samples from, temperature included.
    `loaded` are the names of the versions it holds beside the base. `digests` and `probes` are of every name that
    the running engine has served: the adapter's digest, and the log-probabilities it gave on the probe prompts.
    `death` is how the engine before it ended, with its last words.
    """

    def __init__(self, name: str = "engine") -> None:
        self.name = name
        self.upstream: Upstream | None = None
        self._state = "starting"
        self.on_change: Callable[[], None] = lambda: None
        self.restarts = 0
        self.death = ""
        self.requests = 0
        self.loaded: set[str] = set()
        self.processed = False
        self.digests: dict[str, str] = {}
        self.probes: dict[str, tuple[float, ...]] = {}

    @property
    def state(self) -> str:
        """One of the words above."""
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self._state = state
        self.on_change()

    @property
    def ready(self) -> bool:
        """Whether requests may reach it."""
        return self.state == "ready" and self.upstream is not None

    @property
    def sleeping(self) -> bool:
        """Whether it sleeps, or is being woken: only that may end it."""
        return self.state in ("asleep", "waking")

    @property
    def away(self) -> bool:
        """Whether it neither serves nor sleeps: it has to be adopted."""
        return not self.ready and not self.sleeping

    def lose(self) -> None:
        """It did not answer: no further request reaches it until it is adopted again."""
        if self.state == "ready":
            self.state = "lost"

    def renew(self) -> None:
        """The engine is a new one, which has served nothing yet."""
        self.loaded.clear()
        self.digests.clear()
        self.probes.clear()

    def holds(self, version: Version) -> bool:
        """Whether it can answer for that version."""
        return version.path is None or version.name in self.loaded

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A request is with it."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1


class Pool:
    """All replicas. Requests of one trajectory go to one of them, whose prefix cache knows its history."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = list(replicas)
        self._homes: OrderedDict[str, Replica] = OrderedDict()
        self._turns = count()
        self._news = asyncio.Event()
        for replica in self.replicas:
            replica.on_change = self._tell

    def ready(self) -> list[Replica]:
        """Those that requests may reach."""
        return [replica for replica in self.replicas if replica.ready]

    async def one_ready(self, until: float) -> bool:
        """Wait while no engine is ready and one may still become so; False when none was by then (event loop time)."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while not self.ready() and any(replica.state != "failed" for replica in self.replicas):
                    await self._news.wait()
        return bool(self.ready())

    def down(self) -> EngineDown:
        """The refusal that says in what state each engine is."""
        states = ", ".join(replica.state for replica in self.replicas)
        return engine_down(f"it is {states}" if len(self.replicas) == 1 else f"the engines are {states}")

    def _without(self, version: Version) -> EngineDown:
        """The refusal of a version that those which are ready do not hold: it goes, or comes with one that is not."""
        others = [f"{replica.name} is {replica.state}" for replica in self.replicas if not replica.ready]
        away = f"; {', '.join(others)}" if others else ""
        return EngineDown(503, "engine_unavailable", f"{version.name} is on no engine that is ready{away}", retry_s=2)

    def cannot_publish(self) -> EngineDown:
        """The refusal of a version while none is ready, with the last words of those that died."""
        words = "".join(f"\n{replica.name} died: {replica.death}" for replica in self.replicas if replica.death)
        return engine_down(f"no version can be published{words}")

    def _tell(self) -> None:
        waited_for, self._news = self._news, asyncio.Event()
        waited_for.set()

    def pick(self, version: Version, trajectory: str | None = None) -> tuple[Replica, Upstream]:
        """The trajectory's replica, else the one with the fewest requests, in turns where several have as few.

        Raises EngineDown when none that holds the version is ready.
        """
        able = [replica for replica in self.ready() if replica.holds(version)]
        if not able:
            raise self._without(version) if self.ready() else self.down()
        home = None if trajectory is None else self._homes.get(trajectory)
        if home is None or home not in able:
            turn = next(self._turns)
            home = min(enumerate(able), key=lambda item: (item[1].requests, (item[0] - turn) % len(able)))[1]
        if trajectory is not None:
            self._homes[trajectory] = home
            self._homes.move_to_end(trajectory)
            if len(self._homes) > MAX_HOMES:
                self._homes.popitem(last=False)
        if home.upstream is None:
            raise engine_down(f"it is {home.state}")
        return home, home.upstream
