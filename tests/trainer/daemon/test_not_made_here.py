"""Runs that a version from elsewhere sampled: how old they are is not known, nor can they be compared with it."""

from __future__ import annotations

import pytest
from daemon_site import Site
from recorded_runs import recorded_group

from arttrace.system.errors import TrainingError
from arttrace.trajectories.groups import group_trajectories
from trainer.grpo.shares import choose_groups
from trainer.grpo.trainer import PolicyTrainer, require_trainable
from trainer.output.log import Problem

REASON = "sampled by a version not made here"
REMEDY = "Train with the --dir in which that version was made"


def test_they_are_left_out_and_counted_and_said_once_with_the_remedy(site: Site) -> None:
    """They were trained on as if the newest version had sampled them, 0 steps old, and no check looked at them."""
    site.group("elsewhere", 0.0, 1.0, version=9)
    site.group("here", 0.0, 1.0, at=2000)
    state = site.run().state
    assert site.learner.trained == [{"here-0", "here-1"}]
    assert (state.step, state.queue.left_out) == (1, {REASON: 2})
    [line] = site.said
    assert line.startswith(f"left out: 2 trajectories ({REASON}): {REMEDY}")
    assert isinstance(line, Problem)
    site.group("more", 0.0, 1.0, at=4000)
    site.stop.clear()
    site.run()
    assert site.said == [line, line], "by each start once"
    assert site.consumed() == ["here-0", "here-1", "more-0", "more-1"], "none of them is consumed"


def test_a_group_is_compared_without_them(site: Site) -> None:
    site.group("g", 0.0, 1.0)
    given = recorded_group("g", (None, None, 1.0), policy="policy@9")
    site.store.append(given[2 * (len(given) - 1) // 3 :])  # the third run
    assert site.run().state.queue.left_out == {REASON: 1}
    assert site.consumed() == ["g-0", "g-1"]


def test_once_that_version_is_here_they_are_trained_on(site: Site) -> None:
    site.group("g", 0.0, 1.0)
    site.group("next", 0.0, 1.0, at=2000, version=1)
    assert site.run(max_steps=2).state.step == 2
    assert site.learner.trained == [{"g-0", "g-1"}, {"next-0", "next-1"}]


def test_versions_of_which_the_weights_are_gone_were_made_here(site: Site) -> None:
    for number in range(4):
        site.group(f"g{number}", 0.0, 1.0, at=number * 2000, version=number)
    site.run(max_steps=4)
    assert site.checkpoints.prune([1, 2]) == [1, 2]
    site.group("late", 0.0, 1.0, version=1)
    site.stop.clear()
    site.said.clear()
    assert site.run().state.step == 5
    assert site.said == []


def test_what_an_engine_was_given_by_a_step_that_was_killed_is_trained_on(site: Site) -> None:
    """The engine goes on serving it, so that all runs are its until the next version is made."""
    site.checkpoints.hand_over(lambda folder: (folder / "adapter_model.safetensors").write_text("x"))
    assert site.checkpoints.latest() is None
    site.group("g", 0.0, 1.0, version=1)
    assert site.run().state.queue.left_out == {}
    assert site.learner.trained == [{"g-0", "g-1"}]


def test_training_leaves_them_out_and_says_what_to_do_without_a_daemon_too(site: Site) -> None:
    site.group("elsewhere", 0.0, 1.0, version=9)
    choice = choose_groups(site.store, site.checkpoints, None, ())
    assert (choice.groups, choice.left_out) == ((), {REASON: 2})
    trainer = PolicyTrainer("policy", "base", site.store, site.learner, site.checkpoints)  # type: ignore[arg-type]
    batch = trainer.batch(group_trajectories(site.store.trajectories()))
    assert (batch.samples, batch.left_out) == ((), {REASON: 2})
    with pytest.raises(TrainingError, match=f"Trajectories left out: 2 {REASON}") as raised:
        require_trainable(batch)
    assert REMEDY in (raised.value.hint or "")
