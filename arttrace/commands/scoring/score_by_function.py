"""`arttrace score --reward`: a function of the user's rewards stored runs, each once per version of the function."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import statistics
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import click
from msgspec.structs import replace

from arttrace.capture.rollout.entries import load_entry
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.progress import Progress
from arttrace.records.reward import Reward, reward_clock
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.records.values.users_text import error_line
from arttrace.rewards.langfuse_scores import LangfuseScores
from arttrace.store import AnyStore, TrajectorySummary
from arttrace.system.errors import ArttraceError, StoreError
from arttrace.views.labels import short_id
from arttrace.views.run_filter import RunFilter, matching_pages

_AT_ONCE = 100
_SHOWN_ERRORS = 5
_BATCHES = ("completions", "prompts")
_State = Literal["due", "done", "incomplete"]


@dataclass(frozen=True, slots=True)
class Rewarder:
    """The function, the name that its rewards have, and its version."""

    name: str
    function: Callable[[Trajectory], Any]
    version: str

    def name_for(self, run: TrajectorySummary | Trajectory) -> str:
        """The name of its reward for a run: that of an earlier one, as a later version's reward replaces it.

        `package.rewards:f` and `package/rewards.py:f` are one function: a reward of the one replaces the other's.
        """
        given = {one.name for one in run.rewards if one.name and one.id == reward_id(one.name, run.id)}
        if self.name in given:
            return self.name
        return min((name for name in given if _file_and_module(name, self.name)), default=self.name)

    def version_for(self, revision: str) -> str:
        """The mark of its reward for a run of this revision."""
        return f"{self.version} {revision}"

    def done(self, run: TrajectorySummary) -> bool:
        """Whether this version has rewarded this revision of the run."""
        id, version = reward_id(self.name_for(run), run.id), self.version_for(run.revision)
        return any(one.id == id and one.version == version for one in run.rewards)


def reward_id(name: str, trajectory_id: str) -> str:
    """The id of the reward for a run that the function of this name gave."""
    return "code-" + hashlib.sha256(f"{name}\n{trajectory_id}".encode()).hexdigest()[:32]


def _file_and_module(one: str, other: str) -> bool:
    """Whether one names a function by its file, and the other the same one by a module of that file's name."""
    (source, _, function), (other_source, _, other_function) = one.rpartition(":"), other.rpartition(":")
    if function != other_function or source.endswith(".py") == other_source.endswith(".py"):
        return False
    return source.removesuffix(".py").rpartition(".")[2] == other_source.removesuffix(".py").rpartition(".")[2]


@dataclass
class _Outcome:
    values: list[float] = field(default_factory=list)
    none: int = 0
    taken_back: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


def load_rewarder(given: str, version: str | None) -> Rewarder:
    """The function that `module:function` or `file.py:function` names. Its version is by default a hash of its source.

    Raises ArttraceError when it cannot be loaded, or has no source and no version.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            function = load_entry(given)
    except (Exception, SystemExit) as error:
        raise ArttraceError(
            f"The reward function {given} cannot be loaded: {error_line(error)}",
            "Name it as module:function, importable from here, or as path/to/file.py:function.",
        ) from error
    if inspect.iscoroutinefunction(function):
        raise ArttraceError(f"{given} is a coroutine function.", "Give a plain one: def reward(run) -> float | None.")
    if why := _takes_no_run(function):
        raise ArttraceError(
            f"{given} {why}; a reward function is called with one run.",
            "Write def reward(run) -> float | None. One of TRL's form is called by the agent, with what it said: "
            "arttrace.reward(function(completions=[messages], ...)[0]).",
        )
    if version is None:
        try:
            source = textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError):
            raise ArttraceError(
                f"The source of {given} cannot be read, so that its version is not known.", "Pass --reward-version."
            ) from None
        version = hashlib.sha256(source.encode()).hexdigest()[:12]
    return Rewarder(given.rpartition("/")[2], function, version)


def _takes_no_run(function: Callable[..., Any]) -> str:
    """Why a function cannot be called with a run alone; empty where it can, or does not say what it takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    first = next(iter(signature.parameters), "")
    if first in _BATCHES:
        return f"takes {first}, as TRL's reward functions do"
    try:
        signature.bind(None)
    except TypeError as error:
        return f"cannot be called with one argument ({error})"
    return ""


def score_by_function(
    store: AnyStore,
    rewarder: Rewarder,
    wanted: RunFilter,
    scores: LangfuseScores,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Reward every complete run that this version has not rewarded. Raises ArttraceError when some could not be."""
    found: dict[str, tuple[int, _State]] = {}
    for page in matching_pages(store, wanted):
        found.update((one.id, (one.start_ns, _state(one, rewarder))) for one in page)
    states = Counter(state for _, state in found.values())
    if states["incomplete"] == len(found):
        raise StoreError(
            f"There is nothing to reward: of {quantity(len(found), 'trajectory')} in {where_of(wanted)}, none "
            "is complete.",
            "`arttrace ls` shows what the store holds.",
        )
    due = [id for _, id in sorted((start_ns, id) for id, (start_ns, state) in found.items() if state == "due")]
    outcome = _Outcome()
    if not dry_run:
        _score(store, rewarder, due, outcome, scores)
    _tell(rewarder, outcome, len(due), states["done"], states["incomplete"], dry_run=dry_run, as_json=as_json)
    if outcome.failed:
        raise ArttraceError(
            f"{len(outcome.failed)} of {quantity(len(due), 'run')} could not be rewarded; {outcome.failed[0][1]}",
            "Fix the function and run again: the others are stored.",
        )


def where_of(wanted: RunFilter) -> str:
    """Where matching runs were looked for, in words."""
    if not wanted:
        return "the store"
    return f"group {wanted.group!r}" if wanted == RunFilter(group=wanted.group) else "the store that match"


def _state(run: TrajectorySummary, rewarder: Rewarder) -> _State:
    if run.incomplete:
        return "incomplete"
    return "done" if rewarder.done(run) else "due"


def _score(store: AnyStore, rewarder: Rewarder, due: Sequence[str], outcome: _Outcome, scores: LangfuseScores) -> None:
    progress = Progress(len(due), "runs")
    for first in range(0, len(due), _AT_ONCE):
        some = due[first : first + _AT_ONCE]
        made: list[Reward] = []
        try:
            for number, reward in enumerate(_rewards(store.trajectories(ids=some), rewarder, outcome), start=first + 1):
                made += [reward] if reward is not None else []
                progress(number)
        finally:
            scores.append(store, made)  # also at Ctrl-C: what is done is kept


def _rewards(runs: Sequence[Trajectory], rewarder: Rewarder, outcome: _Outcome) -> Iterator[Reward | None]:
    for run in runs:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is ours
                value = rewarder.function(run)
            number = None if value is None else float(value)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{number} is not a finite number")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's function raises; unittest.main exits
            outcome.failed.append((run.id, error_line(error)))
            if len(outcome.failed) <= _SHOWN_ERRORS:
                click.echo(f"not rewarded: {short_id(run.id)}: {outcome.failed[-1][1]}", err=True)
            yield None
            continue
        id = reward_id(name := rewarder.name_for(run), run.id)
        earlier = max((one for one in run.rewards if one.id == id), key=lambda one: one.time_ns, default=None)
        time_ns = reward_clock.now_ns(0 if earlier is None else earlier.time_ns)
        if number is None:
            outcome.none += 1
            outcome.taken_back += earlier is not None
            yield None if earlier is None else replace(earlier, counts=False, explanation="", time_ns=time_ns)
            continue
        outcome.values.append(number)
        yield Reward(
            id=id,
            trajectory_id=run.id,
            value=number,
            name=name,
            version=rewarder.version_for(run.revision),
            time_ns=time_ns,
        )


def _tell(
    rewarder: Rewarder,
    outcome: _Outcome,
    due: int,
    before: int,
    incomplete: int,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    values = outcome.values
    document = {
        "reward": rewarder.name,
        "version": rewarder.version,
        "due": due,
        "rewarded_now": len(values),
        "rewarded_before": before,
        "no_reward": outcome.none,
        "taken_back": outcome.taken_back,
        "incomplete": incomplete,
        "failed": [{"trajectory_id": id, "error": error} for id, error in outcome.failed],
        "mean": statistics.fmean(values) if values else None,
    }
    if as_json:
        print_json(document)
        return
    if dry_run:
        head = f"{quantity(due, 'run')} would be rewarded by {rewarder.name} (version {rewarder.version})"
    else:
        head = f"{quantity(len(values), 'run')} rewarded by {rewarder.name} (version {rewarder.version})"
        if values:
            head += f", mean {statistics.fmean(values):.3f}, {min(values):.2f} to {max(values):.2f}"
    notes = [f"{before} before"]
    taken_back = f", and the earlier version's taken back from {outcome.taken_back}" if outcome.taken_back else ""
    notes += [f"{outcome.none} given none{taken_back}"] if outcome.none else []
    notes += [f"{quantity(incomplete, 'incomplete run')} left out"] if incomplete else []
    click.echo("; ".join([head, *notes]) + ".")
