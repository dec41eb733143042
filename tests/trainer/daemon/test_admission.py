"""Rollouts are begun only while a real daemon can still train on them within its bound on staleness."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import msgspec
import pytest
from daemon_site import Site, until

from arttrace.records.rollout import RolloutJob
from arttrace.system.paths import DataDir
from trainer.daemon.state import DaemonState, PlannedGroup, Queue, StepPlan, read_state, write_state
from trainer.rollouts.admission import Admission, room
from trainer.rollouts.workers import RolloutWorkers


def job(group: str) -> RolloutJob:
    return RolloutJob({"x": 1}, group=group)


@pytest.mark.parametrize(
    ("ready", "planned", "under_way", "bound", "begun"),
    [
        (0, 0, 0, 0, True),
        (1, 0, 0, 0, True),  # two a step: the other one of this step
        (2, 0, 0, 0, False),
        (1, 0, 1, 0, False),
        (0, 2, 0, 0, False),
        (0, 2, 1, 1, True),
        (2, 2, 0, 1, False),
        (99, 99, 99, None, True),
    ],
)
def test_what_is_begun_has_its_turn_within_the_bound(
    ready: int, planned: int, under_way: int, bound: int | None, begun: bool
) -> None:
    plan = StepPlan(1, tuple(PlannedGroup(f"g{number}", ()) for number in range(planned))) if planned else None
    state = DaemonState(policy="p", state="step", queue=Queue(ready), plan=plan, min_groups=2, max_staleness=bound)
    assert room(state, under_way) is begun
    assert room(msgspec.structs.replace(state, state="stopped"), under_way)


def test_a_daemon_that_has_enough_holds_further_groups_and_lets_those_that_began_end(site: Site) -> None:
    said: list[str] = []
    admits = Admission(site.checkpoints.directory, os.getpid, said.append)
    assert admits(job("first"), []), "no daemon trains yet"
    daemon = site.daemon(min_groups=2, max_wait=3600, max_staleness=0)
    runner = threading.Thread(target=daemon.run)
    runner.start()
    try:
        site.group("a", 0.0, 1.0)
        until(lambda: (seen := read_state(site.checkpoints.directory)) is not None and seen.queue.ready == 1)
        assert admits(job("second"), []), "the step has room for it"
        assert not admits(job("third"), [job("second")])
        assert admits(job("second"), [job("second")]), "what began shall become whole"
        assert len(said) == 1
        assert "1 group ready for policy, which takes 2 a step" in said[0]
        assert "--max-staleness 0" in said[0]
        site.group("b", 0.0, 1.0)
        until(lambda: admits(job("third"), [job("second")]))
        assert daemon.state.step == 1
        assert said[1:] == ["going on"]
    finally:
        site.stop.set()
        runner.join(120)


@dataclass
class Held:
    """Lets the daemon's state change once something was held, and notes what was begun by then."""

    site: Site
    done: list[str]
    by_then: list[list[str]] = field(default_factory=list)

    def say(self, line: str) -> None:
        if line.startswith("waiting"):
            self.by_then.append([*self.done])
            state = read_state(self.site.checkpoints.directory)
            assert state is not None
            write_state(self.site.checkpoints.directory, msgspec.structs.replace(state, queue=Queue()))


def test_workers_ask_again_until_the_run_may_begin(site: Site) -> None:
    agent = site.store.data.root / "agent.py"
    agent.write_text("def answer(x):\n    return x\n")
    site.checkpoints.directory.mkdir(parents=True, exist_ok=True)
    full = DaemonState(policy="policy", pid=os.getpid(), state="step", queue=Queue(1), min_groups=1, max_staleness=0)
    done: list[str] = []
    held = Held(site, done)
    jobs = [
        RolloutJob({"x": number}, group=f"g{number % 2}", trajectory_id=f"{number:032x}") for number in (1, 3, 2, 4)
    ]
    write_state(site.checkpoints.directory, full)
    with RolloutWorkers(f"{agent}:answer", DataDir(site.store.data.root / "rollouts"), concurrency=2) as workers:
        results = workers.run(
            jobs,
            on_result=lambda one: done.append(one.trajectory_id),
            admits=Admission(site.checkpoints.directory, os.getpid, held.say),
        )
    assert [one.result for one in results] == [1, 3, 2, 4]
    assert held.by_then[0] == [], "nothing was begun while a group was ready for a daemon that takes one a step"
    assert set(done[:2]) == {f"{1:032x}", f"{3:032x}"}, "the second group began when the first was done"
