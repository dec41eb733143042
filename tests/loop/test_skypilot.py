"""A server on a cloud machine, with stand-ins for the commands of SkyPilot, ssh and rsync: their order, what is torn
down, and what stays when nothing could be copied."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import arttrace
import arttrace.loop as art
from arttrace.loop.remote import skypilot
from arttrace.system.errors import ServingError

COMMANDS = """#!{python}
import json, os, sys
from pathlib import Path
name = Path(sys.argv[0]).name
with open({log!r}, "a") as log:
    log.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if Path({log!r}).with_name(name + ".fails").exists():
    sys.exit(name + " says no")
if name == "ssh" and Path({log!r}).with_name("unreachable").exists():
    sys.exit(255)
if name == "ssh" and "serving.json" in sys.argv[-1]:
    sys.exit(0)
if name == "ssh" and "-L" not in sys.argv:
    sys.exit(not Path({log!r}).with_name("has-versions").exists())
if name == "ssh":
    from http.server import BaseHTTPRequestHandler, HTTPServer
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(dict(policy="policy", current="policy@0", step=0, base_model="Qwen3-0.6B")).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *_):
            pass
    port = sys.argv[sys.argv.index("-L") + 1].split(":")[0]
    HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    log = folder / "log"
    for name in ("sky", "ssh", "rsync"):
        (folder / name).write_text(COMMANDS.format(python=sys.executable, log=str(log)))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(skypilot, "_LOOK_EVERY_S", 0.1)
    arttrace.init(dir=tmp_path / "data")
    return log


def said(log: Path) -> list[str]:
    return [line.split('"')[1] + " " + line.split('"')[3] for line in log.read_text().splitlines()]


async def test_it_is_launched_reached_copied_and_torn_down(log: Path, tmp_path: Path) -> None:
    model = art.TrainableModel("policy", "Qwen/Qwen3-0.6B")
    async with art.SkyPilotBackend("H100:1", checkpoints=tmp_path / "kept") as backend:
        await model.register(backend)
        assert model.get_step() == 0
        assert str(model.inference_base_url).startswith("http://127.0.0.1:")
    assert said(log) == ["sky launch", "ssh -N", "ssh -o", "rsync -a", "sky down"]
    launch = log.read_text().splitlines()[0]
    for word in ("MODEL=Qwen/Qwen3-0.6B", "POLICY=policy", "H100:1", "examples/skypilot/server.yaml"):
        assert word in launch
    assert (tmp_path / "kept").is_dir()


SERVER = """
import json, os, signal, sys, time
from pathlib import Path
def stop(*_):
    time.sleep(0.2)
    Path("checkpoints/closed").touch()
    sys.exit(0)
signal.signal(signal.SIGINT, stop)
Path("checkpoints").mkdir()
Path("checkpoints/serving.json").write_text(json.dumps({"url": "x", "pid": os.getpid(), "log": "y"}))
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def test_the_server_is_stopped_as_by_ctrl_c_before_its_store_is_copied(tmp_path: Path) -> None:
    """The shell's words themselves; without a server there is nothing to stop."""
    for _ in range(2):
        subprocess.run(["sh", "-c", skypilot._STOP_SERVER], cwd=tmp_path, check=True)
        if not (tmp_path / "checkpoints").exists():
            with subprocess.Popen([sys.executable, "-c", SERVER], cwd=tmp_path, stdout=subprocess.PIPE) as server:
                assert server.stdout is not None
                assert server.stdout.readline() == b"ready\n"
                waiting = threading.Thread(target=server.wait)  # whoever started it takes its exit status
                waiting.start()
                subprocess.run(["sh", "-c", skypilot._STOP_SERVER], cwd=tmp_path, check=True, timeout=60)
                assert (tmp_path / "checkpoints" / "closed").exists()
                waiting.join()


async def test_a_machine_whose_versions_cannot_be_copied_stays(log: Path, tmp_path: Path) -> None:
    model = art.TrainableModel("policy", "Qwen/Qwen3-0.6B")
    backend = art.SkyPilotBackend(checkpoints=tmp_path / "kept")
    await model.register(backend)
    (log.parent / "rsync.fails").touch()
    with pytest.raises(ServingError, match=r"which still runs and costs: .*rsync says no"):
        await backend.close()
    assert "sky down" not in said(log)
    with pytest.raises(ServingError, match="which still runs"):
        await backend.close()  # as an `async with` around it does
    assert "sky down" not in said(log)
    (log.parent / "rsync.fails").unlink()
    await backend.close()
    assert said(log)[-2:] == ["rsync -a", "sky down"]


async def test_versions_of_a_program_that_was_killed_are_copied_when_its_machine_cannot_be_taken_up(
    log: Path, tmp_path: Path
) -> None:
    (log.parent / "sky.fails").touch()
    (log.parent / "has-versions").touch()
    backend = art.SkyPilotBackend(checkpoints=tmp_path / "kept")
    with pytest.raises(ServingError, match="`sky launch` ended with exit code 1"):
        await backend.register(art.TrainableModel("policy", "Qwen/Qwen3-0.6B"))
    assert said(log) == ["sky launch", "ssh -o", "ssh -o", "rsync -a", "sky down"]


async def test_a_machine_that_cannot_be_asked_for_versions_stays(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be one of before, with versions of a program that was killed."""
    (log.parent / "sky.fails").touch()
    (log.parent / "unreachable").touch()
    backend = art.SkyPilotBackend(checkpoints=tmp_path / "kept")
    with pytest.raises(ServingError, match="`sky launch` ended with exit code 1"):
        await backend.register(art.TrainableModel("policy", "Qwen/Qwen3-0.6B"))
    assert said(log) == ["sky launch", "ssh -o"]
    assert "cannot be asked whether it has versions, and is not deleted" in capsys.readouterr().err
    (log.parent / "sky.fails").unlink()
    (log.parent / "unreachable").unlink()
    (log.parent / "has-versions").touch()
    await backend.close()
    assert said(log)[-3:] == ["ssh -o", "rsync -a", "sky down"]


async def test_a_launch_that_fails_leaves_nothing(log: Path) -> None:
    (log.parent / "sky.fails").touch()
    backend = art.SkyPilotBackend()
    with pytest.raises(ServingError, match=r"`sky launch` ended with exit code 1: sky says no"):
        await backend.register(art.TrainableModel("policy", "Qwen/Qwen3-0.6B"))
    assert said(log) == ["sky launch", "ssh -o", "sky down"]


async def test_what_is_missing_is_named(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = art.TrainableModel("policy", "Qwen/Qwen3-0.6B")
    with pytest.raises(ServingError, match="not a clone of arttrace"):
        await art.SkyPilotBackend(workdir=tmp_path).register(model)
    with pytest.raises(ServingError, match="no machine is launched"):
        await art.SkyPilotBackend().train(model, [])
    with pytest.raises(ServingError, match="no machine is launched"):
        await art.SkyPilotBackend().train_sft(model, [])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServingError, match="no command sky"):
        await art.SkyPilotBackend().register(model)


async def test_what_a_command_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    """`sky` starts a server of its own, ssh may leave its shared connection: they hold what a command printed into, and
    it was waited for until they ended, by one who had been cancelled too."""
    (command := tmp_path / "sky").write_text(
        f"#!/bin/sh\nsleep 100 &\necho $! >> {tmp_path}/left\n[ $1 = ends ] || sleep 100\necho says no >&2\nexit 3\n"
    )
    command.chmod(0o755)
    try:
        async with asyncio.timeout(50):
            with pytest.raises(ServingError, match="exit code 3: says no"):
                await skypilot._run(str(command), "ends")
            running = asyncio.create_task(skypilot._run(str(command), "goes on"))
            while len((tmp_path / "left").read_text().splitlines()) < 2:
                await asyncio.sleep(0.02)
            running.cancel()
            await asyncio.wait((running,))
            assert running.cancelled()
    finally:
        for left in (tmp_path / "left").read_text().split():
            os.kill(int(left), signal.SIGKILL)
