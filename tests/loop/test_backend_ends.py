"""A backend that is closed, and one whose server is dead: what waits, and what comes after, says so."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from backend_commands import COMMANDS, alive, rewarded, running

from arttrace.loop import LocalBackend, ServerBackend, TrainableModel, Trajectory, gather_trajectories
from arttrace.system.errors import ServingError, TrainingError

INTERRUPTED = """
import asyncio, os, signal, sys
import arttrace.loop as art

program, data = sys.argv[1:]
backend = art.LocalBackend(data)
backend._program = program
model = art.TrainableModel("quiet", "base")

async def interrupted():
    await backend.register(model)
    os.killpg(0, signal.SIGINT)
    await asyncio.sleep(60)

async def go_on():
    await model.log([art.Trajectory(reward=1.0)], step=1, report_to="wandb")
    print("step", model.get_step())
    await backend.close()

try:
    asyncio.run(interrupted())
except KeyboardInterrupt:
    asyncio.run(go_on())
"""


async def begun(backend: LocalBackend, model: TrainableModel) -> asyncio.Task[object]:
    """A step that lasts until `go-on` is there."""
    running = asyncio.create_task(backend.train(model, loss="slow"))
    while not (backend.data.root / "began").exists() and not running.done():
        await asyncio.sleep(0.01)
    return running


async def test_a_step_that_waits_while_the_backend_is_closed_is_not_begun(
    backend: LocalBackend, model: TrainableModel
) -> None:
    await backend.register(model)
    running = await begun(backend, model)
    waiting = asyncio.create_task(backend.train(model))
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(backend.close())
    await asyncio.sleep(0.1)
    (backend.data.root / "go-on").touch()
    await closing
    assert await running == [], "the step under way is finished"
    with pytest.raises(TrainingError, match="the backend was closed while this step waited") as shown:
        await waiting
    assert "await model.register(backend)" in str(shown.value.hint)


async def test_a_step_that_closing_drops_says_so(
    backend: LocalBackend, model: TrainableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arttrace.loop.processes.child._STOP_S", 0.2)
    await backend.register(model)
    running = await begun(backend, model)
    closing = asyncio.create_task(backend.close())
    await asyncio.sleep(0.1)
    closing.cancel()
    await asyncio.wait((closing,))
    with pytest.raises(TrainingError, match="the backend was closed, and this step was dropped"):
        await running


async def test_a_closed_backend_trains_again_once_the_model_is_registered(
    backend: LocalBackend, model: TrainableModel
) -> None:
    await backend.register(model)
    await gather_trajectories([rewarded(), rewarded()])
    await backend.close()
    for order in (backend.train(model), model.log([Trajectory(reward=1.0)], step=1, report_to="wandb")):
        with pytest.raises(TrainingError, match="the backend was closed") as shown:
            await order
        assert "await model.register(backend)" in str(shown.value.hint)
    assert backend._own_trainers == {}, "nothing was started"
    await backend.register(model)
    assert len(await backend.train(model)) == 1
    await backend.close()


async def test_a_server_that_died_is_reported_with_its_last_words_and_started_again_by_register(
    backend: LocalBackend, model: TrainableModel
) -> None:
    async with backend:
        await backend.register(model)
        await gather_trajectories([rewarded(), rewarded()])
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{str(model.inference_base_url).removesuffix('/v1')}/die")
        assert backend._server is not None
        assert await backend._server.death(within_s=60.0) is not None  # a busy system closes its sockets first
        with pytest.raises(ServingError, match=r"(?s)`arttrace serve` ended \(exit code 3\).*CUDA is gone") as shown:
            await backend.train(model)
        assert "await model.register(backend)" in str(shown.value.hint)
        await backend.register(model)
        assert len(await backend.train(model)) == 1


async def test_a_server_that_is_slow_to_answer_is_not_started_twice(
    backend: LocalBackend, model: TrainableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend:
        await backend.register(model)
        server = backend._server
        assert server is not None
        os.kill(pid := server._process.pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr("arttrace.loop.processes.served._ANSWERS_WITHIN_S", 0.2)
            with pytest.raises(ServingError, match=rf"does not answer: ReadTimeout(.|\n)*kill {pid}"):
                await backend.register(model)
        os.kill(pid, signal.SIGCONT)
        await backend.register(model)
        assert backend._server is server
    assert not alive(pid), "closing stops what was started first"


async def test_a_server_elsewhere_that_is_silent_is_reported_with_what_it_kept_waiting_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("arttrace.loop.remote.connection._TIMEOUT_S", 0.1)
    monkeypatch.setattr("arttrace.loop.remote.connection._PATIENCE_S", 0.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ServingError, match="does not answer: ReadTimeout"),
    ):
        await ServerBackend(f"http://127.0.0.1:{silent.getsockname()[1]}").status()


async def test_a_server_that_dies_during_a_step_is_the_cause_of_its_failure(
    backend: LocalBackend, model: TrainableModel
) -> None:
    async with backend:
        await backend.register(model)
        with pytest.raises(ServingError, match=r"(?s)`arttrace serve` ended \(signal SIGKILL") as shown:
            await backend.train(model, loss="serverless")
        assert "the gateway does not answer" in str(shown.value.__cause__)


def test_a_server_that_died_between_two_event_loops_is_reported(backend: LocalBackend, model: TrainableModel) -> None:
    """As in a script of several `asyncio.run`."""

    async def killed() -> None:
        await backend.register(model)
        assert backend._server is not None
        os.kill(pid := backend._server._process.pid, signal.SIGKILL)
        while alive(pid):
            await asyncio.sleep(0.01)

    asyncio.run(killed())
    with pytest.raises(ServingError, match="`arttrace serve` ended"):
        asyncio.run(backend.train(model))
    asyncio.run(backend.close())


def test_an_interrupt_is_for_the_program_and_leaves_its_server(tmp_path: Path) -> None:
    """Ctrl-C and a notebook's interrupt reach the whole process group; the program may catch it and go on."""
    script, program = tmp_path / "commands.py", tmp_path / "program.py"
    script.write_text(COMMANDS.replace("\\\\", "\\"))
    program.write_text(INTERRUPTED)
    command = [sys.executable, program, running(script), tmp_path / "data"]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, timeout=120)
    assert done.stdout == "step 3\n", done.stderr
