"""The demo's scenarios: what is asked of the agent in training and what is held out, and the right answers.

The right answers are the demo's own knowledge, for its closing table and the rewards of held-out runs; the judge
never gets them. They come from the world of the example, which is loaded as a file: `examples/` is no package. A wheel
brings the example's files along, to `share/arttrace/examples/market` of the environment.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import random
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import ModuleType

from arttrace.records.rollout import RolloutJob
from arttrace.system.errors import ArttraceError


def find_market() -> Path:
    """The directory of the example: that of the repository, else that of the installed distribution."""
    market = Path(__file__).resolve().parents[2] / "examples" / "market"
    if not market.is_dir():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files("arttrace") or ():
                if file.parts[-3:] == ("examples", "market", "agent.py"):
                    return Path(str(file.locate())).resolve().parent
    return market


MARKET = find_market()
"""The example: `agent.py` and its `world.py`."""

_DAYS = 10_000
_HELD_OUT_ONE_IN = 4


@dataclass(frozen=True, slots=True)
class MarketScenario:
    """One question to the agent on one day: the arguments of its entry function."""

    question: str
    day: int

    @property
    def name(self) -> str:
        """A name to group rollouts by."""
        return f"{self.question}, day {self.day}"

    def job(self, *, group: str, temperature: float = 1.0, tags: tuple[str, ...] = ()) -> RolloutJob:
        """One run of the agent on it."""
        arguments = {"question": self.question, "day": self.day, "temperature": temperature}
        return RolloutJob(arguments=arguments, scenario=self.name, group=group, tags=tags)


def load_world(market: Path = MARKET) -> ModuleType:
    """The example's world. Raises ArttraceError when the example is not there."""
    path = market / "world.py"
    if not path.is_file():
        raise ArttraceError(
            f"The demo's example agent is not in {market}.",
            "Install arttrace again: its wheel brings the example along, and a clone has it in examples/market.",
        )
    spec = importlib.util.spec_from_file_location("market_world", path)
    assert spec is not None
    assert spec.loader is not None
    world = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(world)
    return world


def draw(world: ModuleType, count: int, seed: str, *, held_out: bool, evenly: bool = False) -> list[MarketScenario]:
    """`count` scenarios, all held out or all for training; every pair of kinds comes up equally often, and `evenly` in
    an order in which each three, from the first on, ask for all six kinds."""
    rng = random.Random(seed)
    place = {kind: n for n, kind in enumerate(world.SERVICE_OF_KIND)}
    scenarios: list[MarketScenario] = []
    kind_pairs: list[tuple[str, str]] = []
    while len(scenarios) < count:
        if not kind_pairs:
            kind_pairs = list(combinations(place, 2))
            rng.shuffle(kind_pairs)
            if evenly:
                kind_pairs.sort(key=lambda pair: _round(place[pair[0]], place[pair[1]], len(place)))
        kinds = kind_pairs.pop()
        while True:
            items = [f"{kind} {good}" for kind, good in zip(kinds, rng.sample(world.GOODS, 2), strict=True)]
            if is_held_out(items) == held_out:
                break
        rng.shuffle(items)
        scenarios.append(MarketScenario(" and ".join(items), rng.randrange(_DAYS)))
    return scenarios


def _round(first: int, second: int, count: int) -> int:
    """In which round two of an even count meet, if each meets each once and all meet somebody in every round, as in a
    round-robin tournament; `first` < `second`."""
    return (first + (first if second == count - 1 else second)) % (count - 1)


def is_held_out(items: list[str]) -> bool:
    """Whether this pair of items, in either order, is kept for evaluation: one in four is, and is never trained on."""
    digest = hashlib.blake2b(" and ".join(sorted(items)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _HELD_OUT_ONE_IN == 0


def truth(world: ModuleType, scenario: MarketScenario) -> str:
    """The right answer: both items with the prices that are valid on that day."""
    return " and ".join(f"{item} {world.price(item, scenario.day)}" for item in scenario.question.split(" and "))
