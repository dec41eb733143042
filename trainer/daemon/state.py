"""The daemon's state file: what it does now, for others to see, and what it must still know after a kill.

`<policies>/<policy>/daemon.json` is replaced whole, so that a reader or a restart sees the state before a change or
after it. What was trained on is not in it: the checkpoints' manifests decide that.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from arttrace.records.policy import Consumed
from arttrace.records.values.nesting import UNREADABLE
from arttrace.store import AnyStore
from arttrace.system.errors import TrainingError
from arttrace.system.files import replace_file
from trainer.grpo.metrics import GroupReward
from trainer.policies.checkpoints import Checkpoints
from trainer.step.reported import ReportedSteps

_FILE = "daemon.json"
_DAMAGED = "daemon.json.damaged"

STARTING, STOPPED, FAILED = "starting", "stopped", "failed"
"""States beside those of trainer.step.phases.Phase."""
ROUND_SKIPPED = "round skipped: "
"""How the reason of a daemon begins that waits after such a round."""


class DamagedState(TrainingError):
    """The daemon's state file holds something else than a state."""


class PlannedGroup(msgspec.Struct, frozen=True):
    """A group as it was chosen: its key and the ids of its runs."""

    key: str
    ids: tuple[str, ...]


class StepPlan(msgspec.Struct, frozen=True):
    """What version `step` is to be made from; chosen once, so that whoever starts again trains on the same runs."""

    step: int
    groups: tuple[PlannedGroup, ...]

    @property
    def ids(self) -> list[str]:
        """The ids of all its runs."""
        return [id for group in self.groups for id in group.ids]


class Queue(msgspec.Struct, frozen=True):
    """What lies before the daemon: groups that are ready, groups that wait for more runs, groups of scenarios that are
    skipped for a while, groups that wait since the judge failed for them, and runs that do not count, by the reason. To
    `late` runs spans came after a version took them: trained on them, or set them aside."""

    ready: int = 0
    waiting: int = 0
    left_out: dict[str, int] = {}
    paused: int = 0
    unscored: int = 0
    late: int = 0


class Pause(msgspec.Struct, frozen=True):
    """The scenario of group `key` taught nothing `times` times in a row: its runs wait until `until_ns`."""

    key: str
    times: int
    until_ns: int


class Unscored(msgspec.Struct, frozen=True):
    """The judge failed for group `key`, the last time for `reason`, and answered about others, `times` times in a row:
    it is asked again after `until_ns`."""

    key: str
    times: int
    until_ns: int
    reason: str


class DaemonState(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the daemon of a policy.

    `state` is a Phase or one of the states above, entered at `since_ns`. `reason` and `hint` say why it waits for
    something that is out of order, skipped the round, stopped, or failed. `set_aside` are runs that taught nothing; the
    next version's manifest names them as consumed. Of many, `aside` in number, the last are here: the others are looked
    at again by the next start. `skips` counts rounds in a row without a version, `pauses` are the scenarios that are
    skipped for a while, `unscored` the groups that the judge is asked about later. `reported` is by reporter the last
    step that was reported to it, `idle` the share of the time from one version to the last in which "engine" and
    "learner" did nothing. `metrics` is where Prometheus finds its numbers, "" when nowhere. A step takes `min_groups`
    groups whose runs are at most `max_staleness` versions old (None: however old).
    """

    policy: str
    base_model: str = ""
    pid: int = 0
    state: str = STARTING
    since_ns: int = 0
    started_ns: int = 0
    step: int = 0
    queue: Queue = Queue()
    plan: StepPlan | None = None
    set_aside: tuple[Consumed, ...] = ()
    aside: int = 0
    skips: int = 0
    pauses: tuple[Pause, ...] = ()
    unscored: tuple[Unscored, ...] = ()
    reason: str = ""
    hint: str = ""
    last: dict[str, float] = {}
    last_groups: tuple[GroupReward, ...] = ()
    reported: dict[str, int] = {}
    idle: dict[str, float] = {}
    metrics: str = ""
    min_groups: int = 1
    max_staleness: int | None = None

    @property
    def in_trouble(self) -> bool:
        """Whether something is out of order; a round that was skipped is not."""
        return bool(self.reason) and self.state != STOPPED and not self.reason.startswith(ROUND_SKIPPED)


def read_state(directory: Path) -> DaemonState | None:
    """The state in a policy's directory, None when no daemon ever ran there. Raises TrainingError when damaged."""
    path = directory / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=DaemonState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TrainingError(
            f"The daemon's state {path} cannot be read: {error}.", "Let the daemon's user read it, and start again."
        ) from error
    except UNREADABLE as error:
        raise DamagedState(
            f"The daemon's state {path} cannot be read: {error}.",
            f"Start the daemon again: it keeps the file as {_DAMAGED} and begins another; which runs were trained on "
            "is kept in the checkpoints.",
        ) from error


def kept_or_begun(directory: Path, policy: str, say: Callable[[str], None]) -> DaemonState:
    """The state to go on from. A damaged file is kept under another name, and `say` is told so, before another state is
    written. Raises TrainingError when it cannot be read or kept."""
    try:
        return read_state(directory) or DaemonState(policy=policy)
    except DamagedState as error:
        kept = directory / _DAMAGED
        try:
            (directory / _FILE).replace(kept)
        except OSError as failure:
            raise TrainingError(f"{error.message} It cannot be kept as {kept}: {failure}.", error.hint) from failure
        say(
            f"{error.message} It is kept as {kept}. Which runs were trained on is kept in the checkpoints; groups that "
            "were chosen, set aside or paused are looked at again."
        )
        return DaemonState(policy=policy)


def started(known: DaemonState, step: int, **terms: Any) -> DaemonState:
    """What this process goes on from with version `step` the newest, under its own terms: a plan whose version is not
    there yet is kept."""
    plan = known.plan if known.plan and known.plan.step == step + 1 else None
    return msgspec.structs.replace(
        known, pid=os.getpid(), started_ns=time.time_ns(), step=step, plan=plan, skips=0, unscored=(), **terms
    )


def reported_steps(checkpoints: Checkpoints, store: AnyStore) -> ReportedSteps:
    """Which versions of a policy were reported to each tracker, including reports that an earlier daemon noted only in
    its state."""
    known = None
    with contextlib.suppress(TrainingError):  # a daemon says so
        known = read_state(checkpoints.directory)
    return ReportedSteps(checkpoints, store, known.reported if known else None)


def note_look(directory: Path) -> None:
    """Show that the daemon looked for runs: the file gets the time, and stays as it is."""
    with contextlib.suppress(OSError):
        os.utime(directory / _FILE)


def last_look(directory: Path) -> float:
    """When the state was written, or the daemon last looked for runs, in Unix time. Raises TrainingError."""
    try:
        return (directory / _FILE).stat().st_mtime
    except OSError as error:
        raise TrainingError(f"The daemon's state in {directory} cannot be read: {error}.") from error


def write_state(directory: Path, state: DaemonState) -> None:
    """Replace it, durably. Raises OSError."""
    replace_file(directory / _FILE, msgspec.json.encode(state))
