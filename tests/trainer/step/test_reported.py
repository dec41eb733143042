"""Which versions a tracker hears of, over several starts of which some were killed before they reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from arttrace.records.policy import PolicyStep
from arttrace.store import Store
from arttrace.system.errors import TrainingError
from arttrace.system.paths import DataDir
from trainer.daemon.state import DaemonState, reported_steps, write_state
from trainer.policies.checkpoints import Checkpoints
from trainer.step import reporters
from trainer.step.example import ExampleTable
from trainer.step.reported import Reporting


class Told:
    """A tracker that keeps which versions it heard of, in `steps`, and further numbers of a step as less than 0."""

    held_s = 0.0

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    def step(self, done: PolicyStep, adapter: Path | None, example: ExampleTable | None) -> None:
        self.steps.append(done.step)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.steps.append(-step)

    def close(self) -> None:
        pass


class Holding(Told):
    """One that writes late, as W&B does: all that a test tells it is lost unless it is closed."""

    held_s = 60.0

    def __init__(self, steps: list[int]) -> None:
        super().__init__([])
        self.written = steps

    def close(self) -> None:
        self.written += self.steps
        self.steps = []


class Site:
    """A policy, and what the trackers `one` and `two` heard of it."""

    def __init__(self, root: Path, store: Store) -> None:
        self.checkpoints = Checkpoints(root, "policy")
        self.store = store
        self.shown: dict[str, list[int]] = {"one": [], "two": []}

    def make(self, step: int) -> None:
        self.checkpoints.write(step, lambda _: None, PolicyStep("policy", step, "", (), metrics={}, time_ns=step))

    def start(self, *names: str, makes: int | None = None, killed: bool = False) -> None:
        reported = reported_steps(self.checkpoints, self.store)
        with Reporting(names, reported, self.checkpoints, {}, lambda line: None) as reporting:
            reporting.catch_up()
            reporting.begin()
            if makes is not None:
                self.make(makes)
            if not killed:
                reporting.catch_up()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        made = Site(tmp_path / "policies", store)

        def kind(name: str) -> Any:
            return lambda folder, policy, config: Told(made.shown[name])

        monkeypatch.setattr(reporters, "_KINDS", {name: kind(name) for name in made.shown})
        yield made


def test_a_new_tracker_begins_with_the_starts_own_step_also_beside_one_that_missed_some(site: Site) -> None:
    site.start("one", makes=1)
    site.start("one", makes=2, killed=True)
    site.start("one", "two", makes=3)
    assert site.shown == {"one": [1, 2, 3], "two": [3]}


def test_a_version_made_again_in_place_of_one_that_was_moved_away_is_reported(site: Site) -> None:
    site.start("one", makes=1)
    site.start("one", makes=2)
    shutil.move(site.checkpoints.path(2), site.checkpoints.directory.parent / "kept")
    site.start("one", makes=2)
    site.start("one", makes=3)
    assert site.shown["one"] == [1, 2, 2, 3]


def test_a_state_of_a_daemon_that_kept_no_versions_of_its_trackers_is_taken(site: Site) -> None:
    site.make(1)
    write_state(site.checkpoints.directory, DaemonState(policy="policy"))
    site.start("one", makes=2)
    (site.checkpoints.directory / "reported.json").write_bytes(b'{"one": ')
    site.start("one", makes=3)
    assert site.shown["one"] == [2, 3]


def test_what_was_missed_is_reported_before_further_numbers(site: Site) -> None:
    """W&B takes no numbers of a step before its newest."""
    site.start("one", makes=1)
    site.start("one", makes=2, killed=True)
    reported = reported_steps(site.checkpoints, site.store)
    with Reporting(["one"], reported, site.checkpoints, {}, lambda line: None) as reporting:
        reporting.log({"val/reward": 0.5}, 2)
    assert site.shown["one"] == [1, 2, -2]


def test_a_tracker_that_does_not_exist_is_refused_whether_there_is_something_to_report_or_not(site: Site) -> None:
    with pytest.raises(TrainingError, match="cannot be sent to 'nothing'"):
        Reporting(["one", "nothing"], reported_steps(site.checkpoints, site.store), site.checkpoints, {}, print)


def test_steps_that_a_killed_tracker_had_not_written_are_reported_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B lost the newest steps of a training that was killed, and no later start sent them."""
    written: list[int] = []
    kinds = {"one": lambda *_: Told(site.shown["one"]), "holding": lambda *_: Holding(written)}
    monkeypatch.setattr(reporters, "_KINDS", kinds)
    site.start("one", "holding", makes=1)
    told_before_a_kill(site, 2, 3)
    assert (site.shown["one"], written) == ([1, 2, 3], [1])
    site.start("one", "holding")
    site.start("one", "holding", makes=4)
    assert (site.shown["one"], written) == ([1, 2, 3, 4], [1, 2, 3, 4])


def test_a_step_counts_as_written_a_while_after_the_next(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"one": lambda *_: Told([]), "holding": lambda *_: Holding([])}
    monkeypatch.setattr(reporters, "_KINDS", kinds)
    monkeypatch.setattr("trainer.step.reporters.monotonic", iter([0.0, 50.0, 70.0, 140.0]).__next__)
    told_before_a_kill(site, 1, 2, 3, 4)
    assert json.loads((site.checkpoints.directory / "reported.json").read_bytes()) == {"one": 4, "holding": 2}


def told_before_a_kill(site: Site, *steps: int) -> None:
    reported = reported_steps(site.checkpoints, site.store)
    killed = Reporting(["one", "holding"], reported, site.checkpoints, {}, lambda line: None)
    killed.begin()
    for step in steps:
        site.make(step)
        killed.catch_up()
