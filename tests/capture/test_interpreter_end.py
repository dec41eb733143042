"""The end of the interpreter: what runs in atexit functions is recorded whole, and finalizers run as without us."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from chat_server import ChatServer

from arttrace.capture.base import guard
from arttrace.store import Store
from arttrace.system.paths import DataDir


def end_of(program: str, *arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ARTTRACE_DIR": str(data), "OPENAI_API_KEY": "sk-test", "ARTTRACE_RAISE": "0"}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


_A_CALL_AT_EXIT = """
import atexit, sys
@atexit.register
def last():
    ask("at exit")
import arttrace
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], max_retries=0)
@arttrace.trajectory
def ask(text):
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
ask("before")
"""


def test_calls_of_atexit_functions_are_recorded_whole(server: ChatServer, tmp_path: Path) -> None:
    done = end_of(_A_CALL_AT_EXIT, server.url, data=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with Store.open(DataDir(tmp_path), create=True) as store:
        runs = {str(run.arguments): run for run in store.trajectories()}
    assert {text: (run.incomplete, len(run.calls)) for text, run in runs.items()} == {
        "{'text': 'before'}": ("", 1),
        "{'text': 'at exit'}": ("", 1),
    }


_IN_FINALIZERS = """
import builtins, json, logging, os, sys, threading
if sys.argv[1] == "with":
    import arttrace
    agent, tool, opened = arttrace.trajectory, arttrace.tool, arttrace.trajectory
else:
    from contextlib import nullcontext
    agent = tool = lambda fn: fn
    opened = lambda name: nullcontext()
@tool
def double(number): return 2 * number
@agent
def plus_one(number): return double(number) + 1
@agent
def steps():
    yield 1
    yield 2
def inside():
    with opened(name="left"):
        yield 1
class Last:
    def __init__(self, kept_by): self.kept_by = kept_by
    def __del__(self, plus_one=plus_one, write=os.write):
        write(1, f"{self.kept_by} {plus_one(1)}\\n".encode())
plus_one(3)
for module in (sys.modules["__main__"], builtins, json, logging, threading):
    module.kept = Last(module.__name__)
    module.left = [steps(), inside()]
    for each in module.left:
        next(each)
"""


def test_finalizers_call_decorated_functions_as_without_us(tmp_path: Path) -> None:
    bare, ours = (end_of(_IN_FINALIZERS, how, data=tmp_path) for how in ("without", "with"))
    assert "logging 3" in bare.stdout, "the last modules lose their names before it is called"
    assert (
        (ours.returncode, ours.stdout, ours.stderr)
        == (bare.returncode, bare.stdout, bare.stderr)
        == (0, bare.stdout, "")
    )


_A_LOCK_LEFT_HELD = """
import builtins, os, sys, threading
from arttrace.system.journal import JournalWriter
from pathlib import Path
journal = JournalWriter(Path(sys.argv[1]))
journal.append(b"before")
held = threading.Event()
def hold():
    with journal._lock:
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
class Last:
    def __del__(self, journal=journal, write=os.write):
        try:
            journal.append(b"late")
        except RuntimeError as error:
            write(1, str(error).encode())
builtins.last = Last()
"""


def test_a_journal_whose_lock_has_ended_with_its_thread_refuses_and_does_not_wait(tmp_path: Path) -> None:
    done = end_of(_A_LOCK_LEFT_HELD, str(tmp_path / "journal"), data=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "the interpreter ends, and a thread that ended before holds what is needed",
        "",
    )


class Silent(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "said"), [(Silent(), "Silent: <Silent>"), (ValueError(os.fsdecode(b"\xff")), "ValueError: \ufffd")]
)
def test_a_failure_whose_error_has_no_readable_text_is_reported_at_the_end_too(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    monkeypatch.setattr(guard, "failures", Counter[str]())
    monkeypatch.delenv("ARTTRACE_RAISE", raising=False)
    guard.failed("a part", error)
    assert f"a part failed while the interpreter ends ({said})" in capfd.readouterr().err
