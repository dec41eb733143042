"""The states of the daemon in order, and which groups it takes: with a real store and real checkpoints."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from daemon_site import Site, until
from recorded_runs import recorded_group

from arttrace.records import semconv
from arttrace.records.reward import Judgement, Reward
from arttrace.records.span import SpanRow
from arttrace.rewards import judgement_key, to_store
from arttrace.rewards.judgements import rubric_hash
from arttrace.system.errors import TrainingError
from arttrace.trajectories.groups import group_trajectories
from trainer.daemon.scoring import JudgeTerms
from trainer.daemon.state import DaemonState, PlannedGroup, StepPlan, last_look, read_state, write_state
from trainer.output.log import Problem


def test_the_states_of_one_step_in_order_and_the_oldest_groups_first(site: Site) -> None:
    site.group("late", 0.0, 1.0, at=5000)
    site.group("early", 0.0, 1.0)
    site.group("waiting", 0.5)
    daemon = site.run(max_steps=1)
    made = ["batch", "step", "checkpoint", "publish", "checkpoint", "record"]
    assert site.states == ["starting", "wait", *made, "stopped"]
    assert site.learner.trained == [{"early-0", "early-1"}]
    assert (daemon.state.step, daemon.state.queue.ready, daemon.state.queue.waiting) == (1, 1, 1)
    assert read_state(site.checkpoints.directory) == daemon.state
    assert [group.key for group in daemon.state.last_groups] == ["early"]


def test_a_group_waits_for_its_runs_and_what_does_not_count_is_reported(site: Site) -> None:
    site.group("a", 0.0, 1.0)
    site.group("few", 0.0)
    site.group("unrewarded", None, None)
    site.store.append(recorded_group("foreign", (0.0, 1.0), policy="other@3"))
    daemon = site.daemon(min_groups=2)
    runner = threading.Thread(target=daemon.run)
    runner.start()
    try:
        until(lambda: daemon.state.queue.waiting == 1)
        assert daemon.state.queue.ready == 1
        assert daemon.state.queue.left_out == {"no reward": 2, "no tokens of this policy": 2}
        assert daemon.state.state == "wait"
        site.store.append(recorded_group("few", (0.0, 1.0)))
        until(lambda: daemon.state.step == 1)
    finally:
        site.stop.set()
        runner.join(120)
    assert sorted(site.consumed()) == ["a-0", "a-1", "few-0", "few-1"]


def test_spans_that_come_after_their_run_was_trained_on_are_counted(site: Site) -> None:
    site.group("a", 0.0, 1.0)
    assert site.run(max_steps=1).state.queue.late == 0
    late = msgspec.structs.replace(site.store.spans("a-0")[0], span_id="f" * 16)
    site.store.append([late])
    daemon = site.daemon()
    runner = threading.Thread(target=daemon.run)
    runner.start()
    try:
        until(lambda: daemon.state.queue.late == 1)
    finally:
        site.stop.set()
        runner.join(120)


def test_runs_whose_rewards_no_step_can_compare_are_left_out_with_that_reason(site: Site) -> None:
    """They are finite, and their sums and differences are not."""
    site.group("huge", 1e308, -1e308, 1e308)
    site.store.append(recorded_group("agents", (0.0, 1.0)))
    site.store.append([Reward("own", "agents-0", 1e308, agent_id="a")])
    site.group("good", 0.0, 1.0, at=2000)
    daemon = site.run()
    assert site.consumed() == ["good-0", "good-1"]
    assert daemon.state.queue.left_out == {"a reward beyond 1e12": 4}


def test_a_reward_that_no_step_can_compare_and_comes_when_its_group_was_chosen_ends_nothing(site: Site) -> None:
    site.group("g", 0.0, 1.0)
    site.group("waiting", 0.5)
    site.store.append([Reward(f"late-{n}", f"g-{n}", 1.5e308) for n in range(2)])
    plan = StepPlan(1, (PlannedGroup("g", ("g-0", "g-1")),))
    write_state(site.checkpoints.directory, DaemonState(policy="policy", plan=plan))
    state = site.run().state
    assert (state.step, state.plan) == (0, None)
    assert "2 a reward beyond 1e12" in site.said[-1]


def test_stale_runs_are_left_out(site: Site) -> None:
    site.group("a", 0.0, 1.0)
    site.group("b", 0.0, 1.0, at=2000)
    daemon = site.run(max_staleness=0)
    assert site.consumed() == ["a-0", "a-1"]
    assert daemon.state.queue.left_out == {"too stale": 2}


def test_calls_that_a_step_does_not_train_on_are_said(site: Site) -> None:
    records = recorded_group("cut", (0.0, 1.0))
    calls = [one for one in records if isinstance(one, SpanRow) and semconv.TOKEN_IDS in one.attributes]
    calls[0].attributes[semconv.TRUNCATED] = [semconv.OUTPUT_MESSAGES]
    site.store.append(records)
    site.run(max_steps=1)
    assert site.learner.trained == [{"cut-0", "cut-1"}]
    assert site.said == ["quarantined: 1 call (truncated)"]


def test_each_look_is_shown_by_the_time_of_the_state_file(site: Site) -> None:
    site.group("waiting", 0.5)
    daemon = site.daemon()
    runner = threading.Thread(target=daemon.run)
    runner.start()
    try:
        until(lambda: daemon.state.queue.waiting == 1)
        os.utime(site.checkpoints.directory / "daemon.json", (1, 1))
        until(lambda: last_look(site.checkpoints.directory) > 1)
    finally:
        site.stop.set()
        runner.join(120)


def test_a_store_that_takes_long_to_look_at_is_looked_at_less_often(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one with a hundred thousand runs that nobody rewarded: a look every two seconds is half a core or more."""
    waits: list[float] = []
    summaries = site.store.summaries

    def slow(**wanted: Any) -> Any:
        time.sleep(0.05)
        return summaries(**wanted)

    def wait(seconds: float | None = None) -> bool:
        waits.append(seconds or 0.0)
        site.stop.set()
        return True

    monkeypatch.setattr(site.store, "summaries", slow)
    monkeypatch.setattr(site.stop, "wait", wait)
    site.group("only", 0.5)
    site.daemon(min_groups=4).run()
    assert waits[0] >= 4 * 0.05


def test_a_damaged_state_file_is_kept_under_another_name_and_training_goes_on(site: Site) -> None:
    site.checkpoints.directory.mkdir(parents=True, exist_ok=True)
    file = site.checkpoints.directory / "daemon.json"
    file.write_bytes(b'{"policy": "policy", "set_as')
    site.group("a", 0.0, 1.0)
    assert site.run(max_steps=1).state.step == 1
    [said] = site.said
    assert isinstance(said, Problem)
    kept = site.checkpoints.directory / "daemon.json.damaged"
    assert f"{file} cannot be read" in said
    assert f"It is kept as {kept}" in said
    assert kept.read_bytes() == b'{"policy": "policy", "set_as'
    state = read_state(site.checkpoints.directory)
    assert state is not None
    assert state.step == 1


def test_a_state_file_that_cannot_be_read_is_left_as_it_is(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.checkpoints.directory.mkdir(parents=True, exist_ok=True)
    file = site.checkpoints.directory / "daemon.json"
    file.write_bytes(b'{"policy": "policy"}')

    def unreadable(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as disk:
        disk.setattr(Path, "read_bytes", unreadable)
        with pytest.raises(TrainingError, match=r"cannot be read.*Input/output error"):
            site.run()
    assert file.read_bytes() == b'{"policy": "policy"}'


def test_a_step_takes_fewer_groups_when_no_more_come(site: Site) -> None:
    site.group("only", 0.0, 1.0)
    site.run(max_steps=1, min_groups=4, max_wait=0.05)
    assert site.learner.trained == [{"only-0", "only-1"}]


def test_what_its_judge_said_counts_where_another_rubric_was_tried_since(site: Site) -> None:
    """It is not asked again, and the step was made of the other rubric's scores."""
    site.group("g", None, None)
    [group] = group_trajectories(site.store.trajectories())
    terms = JudgeTerms("openai/stand-in", "http://127.0.0.1:9/v1")
    for time_ns, rubric, scores in ((1, terms.rubric, (0.0, 1.0)), (2, "Prefer plums.", (0.3, 0.3))):
        key = judgement_key(group, terms.model, rubric)
        by_run = {run.id: score for run, score in zip(group.trajectories, scores, strict=True)}
        site.store.append(
            to_store(Judgement(rubric, key, group.key, terms.model, rubric_hash(rubric), by_run, time_ns=time_ns))
        )
    assert site.run(terms).state.step == 1
    rewards = [[one.value for one in run.rewards] for run in site.store.trajectories()]
    assert sorted(rewards) == [[0.0], [1.0]]
