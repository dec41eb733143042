"""Rounds that teach nothing or have no sound numbers: skipped with a reason, nothing lost or trained twice."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from daemon_site import Site
from recorded_runs import recorded_group

from arttrace.records.reward import Reward
from arttrace.system.errors import TrainingError
from trainer.daemon.prometheus import render
from trainer.daemon.scoring import JudgeTerms
from trainer.daemon.state import DaemonState, PlannedGroup, StepPlan, read_state, write_state
from trainer.learner.interface import NoRoom, NotFinite, StepMetrics
from trainer.output.log import Problem


def test_equal_rewards_are_set_aside_and_named_by_the_next_manifest(site: Site) -> None:
    site.group("equal", 1.0, 1.0)
    site.group("good", 0.0, 1.0, at=2000)
    site.run(max_steps=1)
    assert site.learner.trained == [{"good-0", "good-1"}]
    assert sorted(site.consumed()) == ["equal-0", "equal-1", "good-0", "good-1"]
    trained = "SELECT trajectory_id FROM trained_on ORDER BY 1"
    assert site.store.sql(trained)[1] == [("good-0",), ("good-1",)]
    assert site.said == [
        "1 scenario skipped for 10 min 0 s or more: rewards are all equal",
        "skipped: all rewards within each group are equal",
    ]


def test_what_was_set_aside_stays_so_over_a_restart(site: Site) -> None:
    site.group("equal", 1.0, 1.0)
    first = site.run()
    assert first.state.reason == "asked to stop"
    assert [one.trajectory_id for one in first.state.set_aside] == ["equal-0", "equal-1"]
    site.stop.clear()
    site.said.clear()
    site.group("good", 0.0, 1.0)
    site.run(max_steps=1)
    assert site.said == []
    assert sorted(site.consumed()) == ["equal-0", "equal-1", "good-0", "good-1"]


def test_of_many_that_were_set_aside_the_state_file_has_the_last_and_the_manifest_all(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.daemon.state_machine._KEPT_ASIDE", 3)
    for n in range(4):
        site.group(f"equal{n}", 1.0, 1.0, at=n)
    site.group("good", 0.0, 1.0, at=9000)
    kept: list[int] = []
    daemon = site.daemon(max_steps=1)
    note = daemon._note

    def noted(**changes: Any) -> None:
        note(**changes)
        state = read_state(site.checkpoints.directory)
        assert state is not None
        kept.append(len(state.set_aside))
        assert len(state.set_aside) <= state.aside or not state.aside

    daemon._note = noted  # type: ignore[method-assign]
    daemon.run()
    assert max(kept) == 3
    assert len(site.consumed()) == 10
    assert daemon.state.aside == 0


def test_want_of_signal_never_ends_it(site: Site) -> None:
    for n in range(25):
        site.group(f"equal{n}", 1.0, 1.0, at=n)
    daemon = site.run()
    assert (daemon.state.state, daemon.state.reason, daemon.state.step) == ("stopped", "asked to stop", 0)
    assert (daemon.state.skips, len(daemon.state.pauses), len(daemon.state.set_aside)) == (25, 25, 50)


def test_a_solved_scenario_is_skipped_for_a_while_and_then_looked_at_again(site: Site) -> None:
    site.group("solved", 1.0, 1.0)
    site.run()
    site.stop.clear()
    site.store.append(recorded_group("solved", (0.0, 1.0, 1.0, 1.0)))  # two that were set aside, two new ones
    assert site.said == [
        "1 scenario skipped for 10 min 0 s or more: rewards are all equal",
        "skipped: all rewards within each group are equal",
    ]
    again = site.run()
    assert (again.state.step, again.state.queue.paused, again.state.queue.ready) == (0, 1, 0)
    assert "arttrace_train_groups_paused" in render(again.state).decode()
    [pause] = again.state.pauses
    assert (pause.key, pause.times) == ("solved", 1)
    state = msgspec.structs.replace(again.state, pauses=(msgspec.structs.replace(pause, until_ns=1),))
    write_state(site.checkpoints.directory, state)
    site.stop.clear()
    site.run()
    assert site.said[-2] == "1 scenario skipped for 20 min 0 s or more: rewards are all equal", "twice as long"
    state = read_state(site.checkpoints.directory)
    assert state is not None
    assert [one.times for one in state.pauses] == [2]


def test_a_scenario_whose_agents_alone_differ_teaches_and_is_not_skipped(site: Site) -> None:
    site.group("solved", 1.0, 1.0)
    runs = site.store.trajectories()
    own = [Reward(f"own-{n}", one.id, float(n), agent_id=one.agents[0].id) for n, one in enumerate(runs)]
    site.store.append(own)
    state = site.run().state
    assert (state.step, state.pauses, site.said) == (1, (), [])


@pytest.mark.parametrize("judge", [None, JudgeTerms("openai/stand-in", "http://127.0.0.1:9/v1")])
def test_a_plan_whose_runs_were_removed_meanwhile_is_dropped_with_that_reason(
    site: Site, judge: JudgeTerms | None
) -> None:
    plan = StepPlan(1, (PlannedGroup("gone", ("gone-0", "gone-1")),))
    write_state(site.checkpoints.directory, DaemonState(policy="policy", plan=plan))
    site.group("waiting", 0.5)
    state = site.run(judge).state
    assert site.said == ["skipped: the runs that were chosen are not stored any more"]
    assert (state.plan, state.step) == (None, 0)


@pytest.mark.parametrize(("solved_pause", "is_over"), [(600.0, False), (0.0, True)])
def test_no_pause_is_longer_than_the_settings_say(site: Site, solved_pause: float, is_over: bool) -> None:
    """As after a start with a shorter one, or with a clock that was years ahead when the pause began."""
    site.group("solved", 1.0, 1.0)
    [before] = site.run(solved_pause=1e9).state.pauses
    site.stop.clear()
    site.store.append(recorded_group("solved", (0.0, 1.0, 0.0, 1.0)))
    state = site.run(solved_pause=solved_pause).state
    assert (state.step, state.queue.paused) == ((1, 0) if is_over else (0, 1))
    assert all(time.time_ns() < one.until_ns < before.until_ns for one in state.pauses)
    assert len(state.pauses) == (0 if is_over else 1)


def test_numbers_that_are_never_finite_end_it_with_a_reason(site: Site) -> None:
    def nan() -> StepMetrics:
        raise NotFinite("The loss is not a finite number.")

    site.learner.script += [nan] * 4
    for n in range(4):
        site.group(f"g{n}", 0.0, 1.0)
    with pytest.raises(TrainingError, match="3 rounds in a row could not be computed; the last: The loss") as stopped:
        site.run(max_skips=3)
    state = read_state(site.checkpoints.directory)
    assert state is not None
    assert (state.state, state.reason, state.hint) == ("failed", stopped.value.message, stopped.value.hint)


def test_a_loss_that_is_not_finite_costs_its_round_only(site: Site) -> None:
    def nan() -> StepMetrics:
        raise NotFinite("The loss is not a finite number.")

    site.learner.script.append(nan)
    site.group("bad", 0.0, 1.0)
    site.group("good", 0.0, 1.0, at=2000)
    daemon = site.run(max_steps=1)
    assert site.learner.trained == [{"good-0", "good-1"}]
    assert (daemon.state.step, daemon.state.skips) == (1, 0)
    assert site.said == ["skipped: The loss is not a finite number."]
    assert isinstance(site.said[0], Problem), "its level is WARNING"


def test_a_run_that_does_not_fit_into_memory_costs_its_round_only(site: Site) -> None:
    """It ended the daemon, and each start after that took up the same runs again."""

    def full() -> StepMetrics:
        raise NoRoom("The step needs more memory than there is.", "Lower micro_batch_tokens.")

    site.learner.script.append(full)
    site.group("long", 0.0, 1.0)
    site.group("short", 0.0, 1.0, at=2000)
    assert site.run(max_steps=1).state.step == 1
    assert site.learner.trained == [{"short-0", "short-1"}]
    assert site.said == ["skipped: The step needs more memory than there is."]


def test_a_step_that_the_learner_refuses_ends_it_and_consumes_nothing(site: Site) -> None:
    def refused() -> StepMetrics:
        raise TrainingError("The policy is 2.5 nats per token away from its reference.")

    site.learner.script += [StepMetrics, refused]
    for n in range(3):
        site.group(f"g{n}", 0.0, 1.0, at=n * 2000)
    with pytest.raises(TrainingError, match=r"2\.5 nats per token away"):
        site.run()
    assert site.checkpoints.latest() == site.gateway.step == 1
    assert site.consumed() == ["g0-0", "g0-1"]
