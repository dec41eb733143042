"""The daemon asked to stop: after the running step, at once, while requests end, and while it starts."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from daemon_site import Site, StandInGateway, until
from tiny_model import make_base_model

from arttrace.system.paths import DataDir
from trainer.daemon.state import read_state
from trainer.learner.interface import StepMetrics
from trainer.policies.checkpoints import Checkpoints
from trainer.serving import GatewayStatus
from trainer.step.phases import Phase


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
        runner.join(120)
        assert not runner.is_alive(), "it does not wait for them"
    finally:
        ended.set()
    assert (daemon.state.state, daemon.state.reason, site.consumed()) == ("stopped", "asked to stop", [])
    site.stop.clear()
    site.run(max_steps=1)
    assert site.learner.trained == [{"g-0", "g-1"}]


STARTING = """
import sys, time
from trainer.commands.train import daemon_options

def load(base_model, config):
    print("loading", flush=True)
    for _ in range(600):
        time.sleep(0.1)

daemon_options.make_learner = load
from arttrace.commands import main
main()
"""


def test_one_that_still_loads_the_model_ends_at_once(tmp_path: Path) -> None:
    base_model = make_base_model(tmp_path / "base")
    arguments = ["train", "--daemon", "--dir", str(tmp_path / "data"), "--base-model", str(base_model)]
    with subprocess.Popen(
        [sys.executable, "-c", STARTING, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)  # of the 60 that it would load for
    assert process.returncode == 0, said
    assert [line.split(maxsplit=2)[2] for line in said.splitlines()[-2:]] == [
        "stopping: no step is running",
        "stopped: asked to stop",
    ]
    state = read_state(Checkpoints(DataDir(tmp_path / "data").policies, "policy").directory)
    assert state is not None
    assert (state.state, state.reason) == ("stopped", "asked to stop")


def test_the_line_at_a_stop_says_whether_a_step_runs(site: Site) -> None:
    daemon = site.daemon()
    seen: dict[str, bool] = {}
    enter = daemon._enter

    def watched(state: str, *rest: object, **more: object) -> None:
        enter(state, *rest, **more)  # type: ignore[arg-type]
        seen[str(state)] = daemon.makes_a_version

    daemon._enter = watched  # type: ignore[method-assign]
    site.group("g", 0.0, 1.0)
    site.learner.script.append(lambda: site.stop.set() or StepMetrics(loss=1.0))
    daemon.run()
    assert {"wait", "step", "checkpoint", "publish", "stopped"} <= seen.keys()
    assert [state for state, makes in seen.items() if not makes] == ["wait", "stopped"]
