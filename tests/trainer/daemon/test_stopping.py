"""The daemon asked to stop: after the running step, at once, and while requests end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest
from daemon_site import Site, StandInGateway, until

from trainer.learner.interface import StepMetrics
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
        runner.join(30)
        assert not runner.is_alive(), "it does not wait for them"
    finally:
        ended.set()
    assert (daemon.state.state, daemon.state.reason, site.consumed()) == ("stopped", "asked to stop", [])
    site.stop.clear()
    site.run(max_steps=1)
    assert site.learner.trained == [{"g-0", "g-1"}]
