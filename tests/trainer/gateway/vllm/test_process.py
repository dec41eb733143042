"""A guarded process: it passes its exit code on, and its whole group ends with it or with its owner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.gateway.engines.vllm import process_group
from trainer.gateway.engines.vllm.process import GuardedProcess

# Starts a child of its own, writes both ids, and ignores the polite signal.
_STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(60)
"""


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def pids(path: Path) -> list[int]:
    assert eventually(lambda: path.exists() and len(path.read_text().split()) == 2)
    return [int(pid) for pid in path.read_text().split()]


def test_the_exit_code_and_the_output_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "x.log"
    for code in (3, 4):
        program = f"import os, sys; print('says {code}', os.getpgrp() != {os.getpgrp()}); sys.exit({code})"
        process = GuardedProcess([sys.executable, "-c", program], log=log)
        assert eventually(lambda process=process: process.returncode is not None)
        assert process.returncode == code
        assert process.log_text() == f"says {code} True\n"  # of this run, not of the one before
        process.stop()
    process = GuardedProcess([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], log=log)
    assert eventually(lambda: process.returncode == 128 + signal.SIGKILL)
    log.unlink()
    assert process.log_text() == "", "why it died is not known any more"


def test_stopping_ends_the_group_even_when_it_does_not_listen(tmp_path: Path) -> None:
    process = GuardedProcess(
        [sys.executable, "-c", _STUBBORN, str(tmp_path / "pids")], log=tmp_path / "log", grace_s=0.3
    )
    started = pids(tmp_path / "pids")
    assert process.returncode is None
    process.stop()
    assert eventually(lambda: all(map(gone, started)))
    process.stop()


def test_the_group_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from trainer.gateway.engines.vllm.process import GuardedProcess
GuardedProcess([sys.executable, "-c", {_STUBBORN!r}, sys.argv[1]], log=Path(sys.argv[2]), grace_s=0.3)
time.sleep(60)
"""
    owner = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "pids"), str(tmp_path / "log")])
    started = pids(tmp_path / "pids")
    owner.kill()
    owner.wait()
    assert eventually(lambda: all(map(gone, started)))


@pytest.mark.parametrize("program", ["pass", "import time; time.sleep(60)"])
def test_its_scratch_directory_goes_with_it(tmp_path: Path, program: str) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "engine.sock").touch()
    process = GuardedProcess([sys.executable, "-c", program], log=tmp_path / "log", scratch=scratch)
    if program != "pass":
        assert scratch.exists()
        process.stop()
    assert eventually(lambda: not scratch.exists())
    process.stop()


def test_its_scratch_directory_goes_when_the_guard_was_killed(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "engine.sock").touch()
    process = GuardedProcess(
        [sys.executable, "-c", "import time; time.sleep(60)"], log=tmp_path / "log", scratch=scratch
    )
    os.killpg(process.pid, signal.SIGKILL)
    assert eventually(lambda: process.returncode is not None)
    process.stop()
    assert not scratch.exists()


def test_a_file_that_another_thread_of_the_guard_removed_first_does_not_keep_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "engine.lock").touch()
    monkeypatch.setattr(os, "listdir", lambda _: ["engine.sock", "engine.lock"])
    process_group.remove(str(scratch))
    assert not scratch.exists()
