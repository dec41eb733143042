"""Which versions were reported to each tracker. What a killed start had not reported, the next start reports, once.

This is stored in a file of the policy's directory, which the daemon and all others share. What a tracker
may not have written yet counts as not reported there: a start that follows a kill reports it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from arttrace.records.policy import PolicyStep
from arttrace.records.values.nesting import UNREADABLE
from arttrace.store import AnyStore
from arttrace.system.errors import ArttraceError
from arttrace.system.files import replace_file
from trainer.policies.checkpoints import Checkpoints
from trainer.step.reporters import Reporters, open_reporters, require_known

_FILE = "reported.json"
_steps = msgspec.json.Decoder(dict[str, int])


class ReportedSteps:
    """The last version reported to each tracker; `earlier` is what is known from elsewhere. For use by the policy's
    only writer."""

    def __init__(self, checkpoints: Checkpoints, store: AnyStore, earlier: Mapping[str, int] | None = None) -> None:
        self._checkpoints = checkpoints
        self._store = store
        self._path = checkpoints.directory / _FILE
        known = {**(earlier or {}), **_read(self._path)}
        newest = self._newest()  # less where versions were moved away: their numbers come again
        self._last = self._written = {name: min(step, newest) for name, step in known.items()}

    def begin(self, names: Sequence[str]) -> None:
        """Trackers that have had no report yet will get the versions after the newest."""
        newest = self._newest()
        if new := {name: newest for name in names if name not in self._last}:
            self._keep(self._last | new, self._written | new)

    def is_due(self, names: Sequence[str]) -> bool:
        """Whether there are versions that have not been reported to one of these."""
        newest = self._newest()
        return any(self._last.get(name, newest) < newest for name in names)

    def tell(self, reporters: Reporters) -> dict[str, int]:
        """Report to each tracker the versions it has not had, to a new one all of them. Returns the last version
        reported, by name."""
        after = min((self._last.get(name, 0) for name in reporters.names), default=None)
        if after is not None and (steps := [n for n in self._checkpoints.all_steps() if n > after]):
            made = self._made(steps)
            reporters.catch_up(made, self._last, self._checkpoints, self._store, note=self._keep)
        return dict(self._last)

    def _newest(self) -> int:
        return max(self._checkpoints.all_steps(), default=0)

    def _made(self, steps: Sequence[int]) -> list[PolicyStep]:
        """As the store has them, with the numbers of publishing; its records are made from the manifests otherwise."""
        recorded: dict[int, PolicyStep] = {}
        with contextlib.suppress(ArttraceError):
            recorded = {done.step: done for done in self._store.policy_steps(self._checkpoints.policy)}
        return [recorded.get(step) or self._checkpoints.manifest(step) for step in steps]

    def _keep(self, last: Mapping[str, int], written: Mapping[str, int]) -> None:
        self._last, self._written = dict(last), dict(written)
        with contextlib.suppress(OSError):  # on a full disk the next start reports it again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, msgspec.json.encode(self._written))


class Reporting:
    """The trackers of one command, opened when there is something to report. Use it as a context manager.

    Raises TrainingError for an unknown name, whether there will be something to report or not.
    """

    def __init__(
        self,
        names: Sequence[str],
        reported: ReportedSteps,
        checkpoints: Checkpoints,
        config: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        require_known(names)
        self._names = names
        self._reported = reported
        self._checkpoints = checkpoints
        self._config = config
        self._say = say
        self._open: Reporters | None = None

    def __enter__(self) -> Reporting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Open them, before the first step. Raises TrainingError for a missing package."""
        self._reporters()
        self._reported.begin(self._names)

    def catch_up(self) -> None:
        """Report to each tracker the versions it has not had, to a new one none. Raises TrainingError as `begin`."""
        if self._reported.is_due(self._names):
            self.begin()
            self._reported.tell(self._reporters())

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Report further numbers of a step to each tracker, after the versions it has not had. Raises TrainingError as
        `begin`."""
        self.catch_up()
        self._reporters().log(numbers, step)

    def close(self) -> None:
        """Have each write what it has buffered."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _reporters(self) -> Reporters:
        if self._open is None:
            self._open = open_reporters(
                self._names, self._checkpoints.directory, self._checkpoints.policy, self._config, self._say
            )
        return self._open


def _read(path: Path) -> dict[str, int]:
    try:
        return _steps.decode(path.read_bytes())
    except (OSError, *UNREADABLE):
        return {}
