"""`arttrace serve --sleep-while-training`, a process before a stand-in for vLLM that can sleep: who dies when?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from stand_in_engine import StandInEngine, engine_in_a_thread, write_adapter

from arttrace.system.errors import ServingError
from arttrace.system.paths import DataDir
from trainer.daemon.gateway import FoundGateway
from trainer.gateway.engines.vllm.engine import EngineOptions, VllmProcess, engine_command, engine_environment
from trainer.gateway.engines.vllm.model import read_model
from trainer.serving import Serving, start_serving
from trainer.serving.client import GatewayGone
from trainer.step.engines import engines_asleep
from trainer.step.retry import no_retry

CHAT = {"model": "policy:latest", "messages": []}


@pytest.fixture
def engine() -> Iterator[StandInEngine]:
    with engine_in_a_thread() as engine:
        engine.can_sleep = True
        yield engine


@pytest.fixture
def options(engine: StandInEngine) -> list[str]:
    return ["--vllm-url", engine.url, "--sleep-while-training"]


@pytest.fixture
def served(tmp_path: Path, base_model: Path, options: list[str]) -> Iterator[Serving]:
    with start_serving(DataDir(tmp_path / "data"), base_model, options=options) as serving:
        serving.client().publish(1, write_adapter(tmp_path / "1", b"w1"))
        yield serving


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_engine_sleeps_exactly_while_the_learner_steps(
    served: Serving, engine: StandInEngine, tmp_path: Path
) -> None:
    gateway = FoundGateway(DataDir(tmp_path / "data"), "policy")
    with ThreadPoolExecutor(1) as agent:
        with engines_asleep(gateway, no_retry):
            assert engine.asleep
            assert served.client().status().engine.state == "asleep"
            waiting = agent.submit(httpx.post, f"{served.url}/v1/chat/completions", json=CHAT, timeout=60)
            until(lambda: served.client().status().gate.waiting)
        assert not engine.asleep
        assert waiting.result().headers["x-arttrace-policy-version"] == "policy@1"
    with pytest.raises(ZeroDivisionError), engines_asleep(gateway, no_retry):
        1 / 0  # noqa: B018 - a step that fails
    assert not engine.asleep
    assert served.client().status().engine.state == "ready"
    assert engine.asked_asleep == 0


def test_a_trainer_killed_in_its_step_leaves_an_engine_that_serves(served: Serving, engine: StandInEngine) -> None:
    program = (
        "import os, sys\nfrom trainer.serving import GatewayClient\n"
        "wake = GatewayClient(sys.argv[1]).fall_asleep()\nprint('asleep', flush=True)\nos.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program, served.url], capture_output=True, text=True, timeout=300)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "asleep\n")
    until(lambda: served.client().status().engine.state == "ready")
    assert not engine.asleep
    assert httpx.post(f"{served.url}/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_gateway_that_dies_leaves_no_engine_asleep(
    tmp_path: Path, base_model: Path, options: list[str], engine: StandInEngine, how: signal.Signals
) -> None:
    data = DataDir(tmp_path / "data")
    with start_serving(data, base_model, options=options) as first:
        gateway = FoundGateway(data, "policy")
        with engines_asleep(gateway, no_retry):  # its end is no failure of the step
            assert engine.asleep
            os.kill(first.record.pid, how)
            until(lambda: not _alive(first))
    assert engine.asleep == (how == signal.SIGKILL)
    with start_serving(data, base_model, options=options) as again:
        assert not engine.asleep
        assert httpx.post(f"{again.url}/v1/chat/completions", json=CHAT).status_code == 200


def test_an_engine_that_dies_asleep_comes_back_and_who_waited_is_answered(
    tmp_path: Path, base_model: Path, engine: StandInEngine
) -> None:
    with engine_in_a_thread() as second:
        second.can_sleep = True
        port = int(second.url.rsplit(":", 1)[1])
        options = ["--vllm-url", second.url, "--sleep-while-training"]
        serving = start_serving(DataDir(tmp_path / "data"), base_model, options=options)
        client = serving.client()
        client.publish(1, write_adapter(tmp_path / "1", b"w1"))
        wake = client.fall_asleep()
    try:
        with ThreadPoolExecutor(1) as agent:
            waiting = agent.submit(httpx.post, f"{serving.url}/v1/chat/completions", json=CHAT, timeout=60)
            until(lambda: client.status().gate.waiting)
            wake()
            assert client.status().engine.state == "broken"
            with pytest.raises(GatewayGone):
                client.fall_asleep()
            with engine_in_a_thread(port=port) as third:
                third.can_sleep = True
                assert waiting.result().headers["x-arttrace-policy-version"] == "policy@1"
                assert client.status().engine.state == "ready"
    finally:
        serving.stop()


def test_an_engine_that_cannot_sleep_is_reported_at_the_start(
    tmp_path: Path, base_model: Path, options: list[str], engine: StandInEngine
) -> None:
    engine.can_sleep = False
    with pytest.raises(ServingError, match="cannot sleep"):
        start_serving(DataDir(tmp_path / "data"), base_model, options=options)
    assert "VLLM_SERVER_DEV_MODE=1" in (tmp_path / "data" / "logs" / "serve-output.log").read_text()


def test_without_the_option_the_learner_steps_beside_an_engine_that_serves(
    tmp_path: Path, base_model: Path, engine: StandInEngine
) -> None:
    data = DataDir(tmp_path / "data")
    with (
        start_serving(data, base_model, options=["--vllm-url", engine.url]),
        engines_asleep(FoundGateway(data, "policy"), no_retry),
    ):
        assert engine.log == []
    with engines_asleep(FoundGateway(data, "policy"), no_retry), engines_asleep(None, no_retry):
        pass


def test_it_is_passed_to_vllm_on_a_card_and_refused_without_one(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = EngineOptions(base_model, read_model(base_model), sleep=True, extra=("--gpu-memory-utilization", "0.3"))
    command = engine_command(options, 1, "m", cpu=False)
    assert "--enable-sleep-mode" in command
    assert command.index("0.3") > command.index("0.6")  # the user's word comes last
    assert engine_environment(options, {}, "k", cpu=False)["VLLM_SERVER_DEV_MODE"] == "1"
    awake = EngineOptions(base_model, read_model(base_model))
    assert "--enable-sleep-mode" not in engine_command(awake, 1, "m", cpu=False)
    assert "VLLM_SERVER_DEV_MODE" not in engine_environment(awake, {}, "k", cpu=False)
    monkeypatch.setattr("trainer.gateway.engines.vllm.engine.serves_on_cpu", lambda: True)
    with pytest.raises(ServingError, match="CUDA") as refused:
        VllmProcess(options, tmp_path / "log")
    assert "--sleep-while-training" in (refused.value.hint or "")


def _alive(serving: Serving) -> bool:
    try:
        serving.check()
    except ServingError:
        return False
    return True
