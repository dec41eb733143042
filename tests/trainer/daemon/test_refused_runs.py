"""Runs that a step was refused for: left out by the next start, as long as the reason holds, and said as it is."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from daemon_site import Site
from one_thread import one_thread as one_thread
from tiny_model import make_base_model

from arttrace.system.errors import TrainingError
from trainer.grpo.shares import choose_groups
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import OtherWeights, StepMetrics
from trainer.output.log import Problem
from trainer.policies.refused_runs import REFUSED_RUNS, refused_runs

LEFT_OUT = "sampled by other weights than their version's"


def refused() -> StepMetrics:
    raise OtherWeights("The log-probabilities captured from policy@0 are those of the base model.", "Restart.")


def again(site: Site) -> Any:
    site.stop.clear()
    return site.run().state


def chosen(site: Site) -> Any:
    found = refused_runs(site.checkpoints.directory, 1.0, site.said.append)
    return choose_groups(site.store, site.checkpoints, None, found)


def test_runs_that_other_weights_sampled_are_left_out_by_the_next_start(site: Site) -> None:
    site.learner.script += [refused]
    site.group("g0", 0.0, 1.0)
    with pytest.raises(OtherWeights) as raised:
        site.run()
    assert raised.value.hint == "Restart. The version's runs in this step are left out from now on."
    site.group("g1", 0.0, 1.0, at=2000)
    state = again(site)
    assert site.learner.trained == [{"g1-0", "g1-1"}]
    assert state.plan is None
    assert site.consumed() == ["g1-0", "g1-1"]
    assert state.queue.left_out == {LEFT_OUT: 2}, "as `status` says"
    site.group("g2", 0.0, 1.0)
    choice = chosen(site)
    assert [one.key for one in choice.groups] == ["g2"], "by `arttrace train` too"
    assert choice.left_out == {LEFT_OUT: 2}
    [line] = site.said
    assert line.startswith(f"left out: 2 trajectories ({LEFT_OUT}): Restart `arttrace serve`, and run the agent again")
    assert isinstance(line, Problem)


@pytest.mark.usefixtures("one_thread")
def test_runs_beyond_the_bound_are_left_out_by_the_next_start_until_the_bound_is_larger(
    site: Site, tmp_path: Path
) -> None:
    """The same runs were gathered again, and the same step was refused at every start."""
    base_model = make_base_model(tmp_path / "base")

    def learner(bound: float | None) -> Any:
        return make_learner(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=bound))

    site.learner = learner(None)
    site.group("g0", 0.0, 1.0)
    with pytest.raises(TrainingError, match=r"the bound is 0\.01, and 20 of 20 tokens are beyond it") as raised:
        site.run()
    hint = raised.value.hint or ""
    assert "Restart serving from the newest version" in hint
    assert "left out from now on" in hint
    state = again(site)
    assert (state.step, state.plan, state.queue.left_out) == (0, None, {LEFT_OUT: 2})
    site.learner = learner(100.0)
    state = again(site)
    assert (state.step, state.queue.left_out, site.consumed()) == (1, {}, ["g0-0", "g0-1"])


@pytest.mark.parametrize("content", [b'{"g0-0": null, "g0', b'["g0-0"]', b'{"g0-0": "far"}', b"null", b"\xff\x00", b""])
def test_a_damaged_list_of_them_is_said_and_they_are_looked_at_again(site: Site, content: bytes) -> None:
    site.group("g0", 0.0, 1.0)
    path = site.checkpoints.directory / REFUSED_RUNS
    path.write_bytes(content)
    assert site.run().state.step == 1
    [line] = site.said
    assert line.startswith(f"{path} cannot be read: ")
    assert "The runs that it names are looked at again" in line
    assert isinstance(line, Problem)
    chosen(site)
    assert site.said == [line, line], "by `arttrace train` too"


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_where_the_disk_does_not_take_them_the_hint_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.policies.refused_runs.replace_file", full)
    site.learner.script += [refused]
    site.group("g0", 0.0, 1.0)
    with pytest.raises(OtherWeights) as raised:
        site.run()
    hint = raised.value.hint or ""
    assert "left out from now on" not in hint
    path = site.checkpoints.directory / REFUSED_RUNS
    assert f"could not be noted in {path} (No space left on device): free disk space, or " in hint
    monkeypatch.undo()
    assert again(site).step == 1, "they are looked at once more"
