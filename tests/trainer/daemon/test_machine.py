"""The state machine with a real store, real checkpoints and a real judge call over HTTP; the learner stands in.

What it does when something is out of order: waits, skips, stops, always with a reason; nothing trained twice or lost.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from recorded_runs import recorded_group

from arttrace.errors import TrainingError
from arttrace.paths import DataDir
from arttrace.rewards.judge_prompt import parse_prompt
from arttrace.store import Store
from trainer.daemon.config import DaemonConfig
from trainer.daemon.machine import Daemon
from trainer.daemon.prometheus import render, serving_metrics
from trainer.daemon.scoring import JudgeTerms
from trainer.daemon.state import DaemonState, Queue, read_state, write_state
from trainer.gateway.status import EngineStatus
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import NotFinite, Sample, StepMetrics
from trainer.policies.checkpoints import STATE, Checkpoints
from trainer.policies.export import fork
from trainer.policies.retention import Keep, states_to_drop
from trainer.serving import GatewayStatus, PublishReport
from trainer.serving.client import GatewayGone
from trainer.step.phases import Phase
from trainer.step.signals import stop_on_signals

Step = Callable[[], StepMetrics]


@dataclass
class StandInLearner:
    """`script` says what the next steps do; `full` how many saves meet a full disk."""

    script: list[Step] = field(default_factory=list)
    full: int = 0
    config: LearnerConfig = field(default_factory=LearnerConfig)
    trained: list[set[str]] = field(default_factory=list)

    def step(self, samples: Sequence[Sample], *, current_version: str | None = None) -> StepMetrics:
        made = self.script.pop(0)() if self.script else StepMetrics(loss=1.0)
        self.trained.append({one.trajectory_id for sample in samples for one in sample.sequences})
        return made

    def save(self, directory: Path) -> None:
        if self.full:
            self.full -= 1
            (directory / "half").write_text("x")
            raise OSError(errno.ENOSPC, "No space left on device")
        (directory / "adapter_model.safetensors").write_text(str(len(self.trained)))

    def load(self, directory: Path) -> None: ...


@dataclass
class StandInGateway:
    """Gone for the next `gone` calls."""

    gone: int = 0
    step: int = 0

    def publish(self, step: int, path: Path) -> PublishReport:
        self.answer()
        self.step = step
        return PublishReport(f"policy@{step}", "", max_logprob_change=0.1, seconds=0.0)

    def status(self) -> GatewayStatus:
        self.answer()
        return GatewayStatus("policy", f"policy@{self.step}", self.step, "", {}, EngineStatus("ready", None, 0))

    def answer(self) -> None:
        if self.gone:
            self.gone -= 1
            raise GatewayGone("the gateway does not answer")


@dataclass
class Site:
    data: DataDir
    store: Store
    learner: StandInLearner = field(default_factory=StandInLearner)
    gateway: StandInGateway = field(default_factory=StandInGateway)
    stop: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.data.policies, "policy")

    def group(self, key: str, *rewards: float | None, at: int = 0) -> None:
        self.store.append(recorded_group(key, rewards, at=at))

    def daemon(self, judge: JudgeTerms | None = None, **config: Any) -> Daemon:
        config = {"group_size": 2, "min_groups": 1, "poll": 0.01, **config}
        daemon = Daemon(
            DaemonConfig.model_validate(config),
            policy="policy",
            base_model=self.data.root,
            store=self.store,
            learner=lambda: self.learner,  # type: ignore[arg-type]
            gateway=self.gateway,
            judge=judge,
            stop=self.stop,
            say=self.said.append,
        )
        enter = daemon._enter

        def watched(state: str, *rest: Any, **more: Any) -> None:
            self.states.append(str(state))
            enter(state, *rest, **more)

        daemon._enter = watched  # type: ignore[method-assign]
        return daemon

    def run(self, judge: JudgeTerms | None = None, **config: Any) -> Daemon:
        """Runs one to its end, which is when nothing is ready any more unless `max_steps` says otherwise."""
        daemon = self.daemon(judge, **config)
        if "max_steps" not in config:
            note = daemon._note

            def last_look(**changes: Any) -> None:
                note(**changes)
                if daemon.state.state == Phase.WAIT and "queue" in changes and not changes["queue"].ready:
                    self.stop.set()

            daemon._note = last_look  # type: ignore[method-assign]
        daemon.run()
        return daemon

    def consumed(self) -> list[str]:
        steps = self.checkpoints.all_steps()
        return [one.trajectory_id for step in steps for one in self.checkpoints.manifest(step).consumed]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("trainer.step.retry.FIRST_PAUSE_S", 0.01)
    data = DataDir(tmp_path)
    with Store.open(data, create=True) as store, Checkpoints(data.policies, "policy").only_writer():
        yield Site(data, store)


def test_the_states_of_one_step_in_order_and_the_oldest_groups_first(site: Site) -> None:
    site.group("late", 0.0, 1.0, at=5000)
    site.group("early", 0.0, 1.0)
    site.group("waiting", 0.5)
    daemon = site.run(max_steps=1)
    assert site.states == ["starting", "wait", "batch", "step", "checkpoint", "publish", "record", "stopped"]
    assert site.learner.trained == [{"early-0", "early-1"}]
    assert (daemon.state.step, daemon.state.served, daemon.state.queue.ready, daemon.state.queue.waiting) == (
        1,
        "policy@1",
        1,
        1,
    )
    assert read_state(site.checkpoints.directory) == daemon.state
    assert [group.key for group in daemon.state.last_groups] == ["early"]


def test_a_group_waits_for_its_runs_and_what_does_not_count_is_told(site: Site) -> None:
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
        runner.join(30)
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
        runner.join(30)


def test_stale_runs_are_left_out(site: Site) -> None:
    site.group("a", 0.0, 1.0)
    site.group("b", 0.0, 1.0, at=2000)
    daemon = site.run(max_staleness=0)
    assert site.consumed() == ["a-0", "a-1"]
    assert daemon.state.queue.left_out == {"too stale": 2}


def test_equal_rewards_are_set_aside_and_named_by_the_next_manifest(site: Site) -> None:
    site.group("equal", 1.0, 1.0)
    site.group("good", 0.0, 1.0, at=2000)
    site.run(max_steps=1)
    assert site.learner.trained == [{"good-0", "good-1"}]
    assert sorted(site.consumed()) == ["equal-0", "equal-1", "good-0", "good-1"]
    assert site.said == ["skipped: all rewards within each group are equal"]


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
    again = site.run()
    assert (again.state.step, again.state.queue.paused, again.state.queue.ready) == (0, 1, 0)
    assert "arttrace_train_groups_paused" in render(again.state).decode()
    [pause] = again.state.pauses
    assert (pause.key, pause.times) == ("solved", 1)
    state = msgspec.structs.replace(again.state, pauses=(msgspec.structs.replace(pause, until_ns=1),))
    write_state(site.checkpoints.directory, state)
    site.stop.clear()
    site.run(solved_pause=0.001)
    state = read_state(site.checkpoints.directory)
    assert state is not None
    assert [one.times for one in state.pauses] == [2], "equal again: it waits twice as long"


def test_numbers_that_are_never_finite_end_it_with_a_reason(site: Site) -> None:
    def nan() -> StepMetrics:
        raise NotFinite("The loss is not a finite number.")

    site.learner.script += [nan] * 4
    for n in range(4):
        site.group(f"g{n}", 0.0, 1.0)
    with pytest.raises(TrainingError, match="3 rounds in a row had numbers that are not finite") as stopped:
        site.run(max_skips=3)
    state = read_state(site.checkpoints.directory)
    assert state is not None
    assert (state.state, state.reason, state.hint) == ("failed", stopped.value.message, stopped.value.hint)


def test_a_step_takes_fewer_groups_when_no_more_come(site: Site) -> None:
    site.group("only", 0.0, 1.0)
    site.run(max_steps=1, min_groups=4, max_wait=0.05)
    assert site.learner.trained == [{"only-0", "only-1"}]


def test_old_versions_lose_their_optimizer_state_but_not_what_is_served_or_a_base(site: Site) -> None:
    def save(directory: Path) -> None:
        for name in ("adapter_model.safetensors", STATE):
            (directory / name).write_text("x")

    site.learner.save = save  # type: ignore[method-assign]
    for n in range(7):
        site.group(f"g{n}", 0.0, 1.0, at=n * 2000)
    site.run(max_steps=2)
    fork(site.checkpoints, 1, Checkpoints(site.data.policies, "other"))
    site.stop.clear()
    site.run(max_steps=7)

    def whole() -> list[int]:
        return [n for n in site.checkpoints.steps() if (site.checkpoints.path(n) / STATE).exists()]

    assert site.checkpoints.steps() == [1, 2, 3, 4, 5, 6, 7]
    assert whole() == [1, 5, 6, 7], "the base of a fork, and the newest three"
    site.checkpoints.roll_back(5)
    assert site.checkpoints.kept() == {1, 5}
    assert site.checkpoints.drop_states([5]) == []
    assert states_to_drop(site.checkpoints.steps(), Keep(), {2, 4}) == [1, 3]
    assert states_to_drop(site.checkpoints.steps(), Keep(states=0)) == []
    assert site.checkpoints.drop_states([6, 7]) == [6], "never the newest"


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


def test_a_gateway_that_restarts_is_waited_for_and_told_once(site: Site) -> None:
    site.group("g", 0.0, 1.0)
    site.gateway.gone = 3
    daemon = site.run(max_steps=1)
    assert site.said == ["starting: waiting, because the gateway does not answer", "starting: going on"]
    site.gateway.gone = 0
    assert (site.gateway.step, daemon.state.reason) == (1, "policy@1 is there, as was asked for")


def test_a_version_that_could_not_be_published_is_published_by_the_next_start(site: Site) -> None:
    site.group("g", 0.0, 1.0)
    daemon = site.daemon()
    runner = threading.Thread(target=daemon.run)

    def dead(step: int, path: Path) -> PublishReport:
        raise GatewayGone("the gateway does not answer")

    site.gateway.publish = dead  # type: ignore[method-assign]
    runner.start()
    until(lambda: daemon.state.state == "publish" and "does not answer" in daemon.state.reason)
    site.stop.set()
    runner.join(30)
    assert site.store.policy_steps("policy") == []
    site.stop.clear()
    site.gateway = StandInGateway()
    site.run(max_steps=1)
    assert site.gateway.step == 1
    assert [step.step for step in site.store.policy_steps("policy")] == [1]
    assert site.learner.trained == [{"g-0", "g-1"}]


def test_a_full_disk_is_waited_for_with_the_step_in_memory(site: Site) -> None:
    site.learner.full = 2
    site.group("g", 0.0, 1.0)
    site.run(max_steps=1)
    assert site.learner.trained == [{"g-0", "g-1"}]
    assert len(site.said) == 2
    assert "No space left on device" in site.said[0]
    assert [path.name for path in site.checkpoints.path(1).iterdir() if path.name == "half"] == []


def test_a_judge_that_is_down_is_waited_for_and_asked_once_per_group(
    site: Site, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_server.script += [judge_server.fails(503, "overloaded")] * 5
    site.group("g", None, None)
    scores = iter([0.25, 0.75])

    def scored(request: dict[str, Any]) -> list[dict[str, Any]]:
        ids = parse_prompt(request["messages"][1]["content"])
        return [{"trajectory_id": id, "explanation": "", "score": next(scores)} for id in ids]

    monkeypatch.setattr(type(judge_server), "scores", staticmethod(scored))
    site.run(JudgeTerms("openai/stand-in", judge_server.url), max_steps=1)
    assert site.said[0].startswith("score: waiting, because the judge openai/stand-in")
    assert site.said[1] == "score: going on"
    assert len(judge_server.requests) == 6
    [step] = site.store.policy_steps("policy")
    assert step.metrics["reward_mean"] == 0.5
    assert step.metrics["judge_tokens"] == 110
    assert site.states.count("score") == 1


def test_a_judge_without_a_key_ends_it_and_nothing_is_consumed(site: Site, judge_server: Any) -> None:
    judge_server.script += [judge_server.fails(401, "no key")]
    site.group("g", None, None)
    daemon = site.daemon(JudgeTerms("openai/stand-in", judge_server.url), max_steps=1)
    with pytest.raises(Exception, match="needs a key"):
        daemon.run()
    assert (daemon.state.state, site.consumed()) == ("failed", [])
    assert daemon.state.plan is not None


def test_the_first_stop_finishes_the_step_and_the_second_drops_it(site: Site) -> None:
    for n in range(3):
        site.group(f"g{n}", 0.0, 1.0, at=n * 2000)

    def first_press() -> StepMetrics:
        site.stop.set()
        return StepMetrics(loss=1.0)

    site.learner.script.append(first_press)
    site.daemon().run()
    assert site.checkpoints.latest() == site.gateway.step == 1
    site.stop.clear()

    def second_press() -> StepMetrics:
        raise KeyboardInterrupt

    site.learner.script.append(second_press)
    daemon = site.daemon()
    with pytest.raises(KeyboardInterrupt):
        daemon.run()
    assert daemon.state.state == "stopped"
    assert "dropped" in daemon.state.reason
    assert site.checkpoints.latest() == 1
    site.run(max_steps=2)
    assert site.learner.trained == [{"g0-0", "g0-1"}, {"g1-0", "g1-1"}]


def test_a_stop_while_requests_end_leaves_the_step_to_the_next_start(site: Site) -> None:
    site.group("g", 0.0, 1.0)
    ended = threading.Event()

    class Busy(StandInGateway):
        def status(self) -> GatewayStatus:
            return msgspec.structs.replace(super().status(), sleeps=True)

        def fall_asleep(self) -> Callable[[], None]:
            ended.wait()
            return lambda: None

    site.gateway = Busy()
    daemon = site.daemon()
    runner = threading.Thread(target=daemon.run)
    runner.start()
    try:
        until(lambda: daemon.state.state == Phase.STEP)
        site.stop.set()
        runner.join(30)
        assert not runner.is_alive(), "it does not wait for them"
    finally:
        ended.set()
    assert (daemon.state.state, daemon.state.reason, site.consumed()) == ("stopped", "asked to stop", [])
    site.stop.clear()
    site.run(max_steps=1)
    assert site.learner.trained == [{"g-0", "g-1"}]


def test_old_versions_lose_their_weights_and_what_they_consumed_stays_known(site: Site) -> None:
    for n, best in enumerate((0.1, 0.9, 0.2, 0.3, 0.1)):
        site.group(f"g{n}", 0.0, best, at=n * 2000)
    site.run(max_steps=5, keep={"best": 1, "latest": 2})
    assert site.checkpoints.steps() == [1, 4, 5]  # the runs after version 1 were rewarded best
    assert len(site.consumed()) == 10
    site.stop.clear()
    site.group("g9", 0.0, 1.0)
    site.run(max_steps=6)
    assert site.learner.trained[-1] == {"g9-0", "g9-1"}


def test_one_trainer_per_policy(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "policy")
    with checkpoints.only_writer():
        assert checkpoints.writer() == os.getpid()
        with pytest.raises(TrainingError, match=rf"by process {os.getpid()}\."), checkpoints.only_writer():
            pass
    assert checkpoints.writer() is None


def test_the_first_signal_asks_and_the_second_interrupts() -> None:
    stop, said = threading.Event(), []
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals(stop, said.append):
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert said == ["stopping when the running step is done; once more drops the step"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_metrics_for_prometheus() -> None:
    last = {"loss": 0.5, "reward_mean": 0.25, "staleness_mean": 1.5, "step_s": 2.0, "publish_s": 0.125}
    state = DaemonState(policy="policy", state="wait", step=3, queue=Queue(2, 1, {"too stale": 4}), last=last)
    with serving_metrics(lambda: render(state), 0) as port:
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 404
        with pytest.raises(TrainingError, match="cannot be used"), serving_metrics(bytes, port):
            pass
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert values['arttrace_train_step{policy="policy"}'] == "3"
    assert values['arttrace_train_state{policy="policy",state="wait"}'] == "1"
    assert values['arttrace_train_state{policy="policy",state="step"}'] == "0"
    assert values['arttrace_train_groups_ready{policy="policy"}'] == "2"
    assert values['arttrace_train_runs_left_out{policy="policy",reason="too stale"}'] == "4"
    assert values['arttrace_train_last_reward_mean{policy="policy"}'] == "0.25"
    assert values['arttrace_train_last_staleness_mean{policy="policy"}'] == "1.5"
    assert values['arttrace_train_last_phase_seconds{policy="policy",phase="step"}'] == "2.0"
    assert values['arttrace_train_last_phase_seconds{policy="policy",phase="publish"}'] == "0.125"
    kinds = [line for line in answer.text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)), "one head for all samples of a name"


def until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to that")
