"""What an AutoRL run has done so far, in one file that is replaced after each stage, so that it can be resumed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from arttrace.loop.scenarios import Scenario
from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.errors import ArttraceError
from arttrace.system.files import not_written, replace_file
from arttrace.system.journal.lock import acquire
from arttrace.system.private_files import make_directory

_LOCK = "run.lock"
_ANOTHER = "Name another data directory with --dir"


class Plan(msgspec.Struct, frozen=True):
    """The options of a run. `steps` may be raised when a run is resumed; all others decide what is compared with
    what."""

    task: str
    base_model: str
    policy: str
    mcp: str | None
    writer: str
    judge: str
    rubric: str
    scenarios: int
    held_out: int
    group_size: int
    groups: int
    steps: int
    max_turns: int
    max_tokens: int


class TrainingStep(msgspec.Struct, frozen=True):
    """One training step. `version` is None where no group's rewards differed, and nothing was trained."""

    number: int
    version: str | None
    runs: int
    mean_reward: float | None


class HeldOutScores(msgspec.Struct, frozen=True):
    """The judge's scores, 0 to 1, of a held-out scenario's runs before and after; None where it could not be judged."""

    task: str
    before: float | None
    after: float | None
    explanation: str = ""


class State(msgspec.Struct):
    """The whole state. Runs and rewards are in the store, by the names of their groups. `steps_begun` is the number of
    the last step whose training began."""

    plan: Plan
    scenarios: list[Scenario] = []
    steps: list[TrainingStep] = []
    steps_begun: int = 0
    comparisons: list[HeldOutScores] = []


class StateFile:
    """The file of one run, in the data directory.

    Args:
        directory: `autorl/POLICY` in the data directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / "state.json"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """In the body no other process goes on with the run: each would put its scenarios in the place of the other's.

        Raises:
            ArttraceError: Another process does, or the directory cannot be written.
        """
        with contextlib.ExitStack() as opened:
            try:
                make_directory(self.directory)
                lock = opened.enter_context((self.directory / _LOCK).open("w"))
            except OSError as error:
                raise not_written(self.directory, error, other=_ANOTHER) from error
            if not acquire(lock.fileno()):
                raise ArttraceError(
                    f"another process goes on with {self.directory.name}",
                    "Wait for it or stop it, or name another policy with --policy.",
                )
            yield

    def load(self, plan: Plan) -> State:
        """The state of this plan, empty if it has not begun.

        Raises:
            ArttraceError: There is a run of another plan by this name, or the file is damaged.
        """
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=State)
        except FileNotFoundError:
            return State(plan)
        except UNREADABLE as error:
            raise ArttraceError(f"{self._path} is damaged: {error}", "Remove its folder to start over.") from None
        before, now = _fixed(state.plan), _fixed(plan)
        if changed := [name for name in now if before[name] != now[name]]:
            raise ArttraceError(
                f"{plan.policy} was begun with another {', '.join(changed)}",
                f"Go on with what it was begun with, or name another with --policy ({self._path} says it all).",
            )
        state.plan = plan
        return state

    def save(self, state: State) -> None:
        """Replace the file by this state.

        Raises:
            ArttraceError: The file cannot be written.
        """
        try:
            make_directory(self.directory)
            replace_file(self._path, msgspec.json.format(msgspec.json.encode(state)))
        except OSError as error:
            raise not_written(self._path, error, other=_ANOTHER) from error


def policy_name(task: str) -> str:
    """A policy's name from the first words of a task."""
    words = re.findall(r"[a-z0-9]+", task.casefold())
    return "-".join(words)[:40].strip("-") or "autorl"


def _fixed(plan: Plan) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(plan).items() if name != "steps"}
