"""A tiny model for any agent: it starts out playing as a script does, which answers the agent's calls in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.demo import stand_in
from trainer.demo.model.demonstrations import Demonstration

if TYPE_CHECKING:
    from trainer.demo.model.build import BuiltModel


@dataclass
class Scripted:
    """A script that is served, and what it was asked and answered.

    `url` is its base URL, ending with /v1, as long as it is served.
    """

    script: stand_in.Script
    url: str = ""
    demonstrations: list[Demonstration] = field(default_factory=list)

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = self.script(body)
        self.demonstrations.append(Demonstration(body["messages"], body.get("tools") or (), reply))
        return reply

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the script on 127.0.0.1; gives the base URL."""
        with stand_in.serve(self._answer, "stand-in") as self.url:
            yield self.url

    def build(
        self, path: Path, steps: int, seed: int = 0, progress: Callable[[str], None] = lambda line: None
    ) -> BuiltModel:
        """Train a tiny model from scratch on what was answered, for `steps` steps, and save it as `path`."""
        from trainer.demo.model.build import build_base_model  # torch, which to serve a script does not take

        return build_base_model(self.demonstrations, seed, path, steps=steps, progress=progress)
