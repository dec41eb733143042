"""Under gevent and eventlet, whenever they patch the standard library: the program gets on, and is captured whole."""

from __future__ import annotations

import _thread
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from chat_server import ChatServer
from otlp_receiver import receiving
from spool import finished_spans

from arttrace.records import semconv
from arttrace.system import native_threads
from arttrace.trajectories import build_trajectories

PROGRAM = """
import json, sys, threading
library, moment, url = sys.argv[1:4]
if library == "eventlet":
    sys.modules["trio"] = None  # which cannot be imported beside it, and httpcore asks for

def patch():
    if library == "gevent":
        from gevent import monkey
        monkey.patch_all()
    else:
        import eventlet
        eventlet.monkey_patch()

if moment == "first":
    patch()
import arttrace
if moment == "imported":
    patch()
arttrace.init()
if moment == "initialised":
    patch()
if moment == "recorded":
    with arttrace.trajectory(name="before"):
        pass
    arttrace.flush()
    patch()

import openai

def ask(text, **more):
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **more)

@arttrace.trajectory(name="run")
def run(number):
    said = [ask(f"first {number}").choices[0].message.content]
    chunks = ask(f"second {number}", stream=True)
    said.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
    if number == 3:
        arttrace.flush()
    return said

client = openai.OpenAI(base_url=url, api_key="sk-test-0123456789", max_retries=0)
if library == "gevent":
    import gevent
    jobs = [gevent.spawn(run, number) for number in range(5)]
    said = [job.get() for job in jobs]
else:
    import eventlet
    jobs = [eventlet.spawn(run, number) for number in range(5)]
    said = [job.wait() for job in jobs]
thread = threading.Thread(target=lambda: said.append(run(5)))
thread.start()
thread.join()
print(json.dumps([said, arttrace.flush()]))
"""


MOMENTS = ("first", "imported", "initialised", "recorded", "under arttrace run", "shipping")
QUICK = (("gevent", "initialised"), ("gevent", "under arttrace run"), ("eventlet", "recorded"))


@pytest.mark.parametrize(
    ("library", "moment"),
    [
        pytest.param(library, moment, marks=() if (library, moment) in QUICK else pytest.mark.full)
        for library in ("gevent", "eventlet")
        for moment in MOMENTS
    ],
)
def test_a_patched_program_never_hangs_and_is_captured(
    library: str, moment: str, server: ChatServer, tmp_path: Path
) -> None:
    if find_spec(library) is None:
        pytest.skip("gevent and eventlet are not installed")
    program, data = tmp_path / "program.py", tmp_path / "data"
    program.write_text(PROGRAM)
    patched_at = moment if moment in ("first", "imported", "initialised", "recorded") else "first"
    command = [sys.executable, str(program), library, patched_at, server.url]
    if moment == "under arttrace run":
        command = [
            str(Path(sys.executable).with_name("arttrace")),
            "run",
            "--quiet",
            "--dir",
            str(data),
            "--",
            *command,
        ]
    environment = {**os.environ, "ARTTRACE_DIR": str(data), "ARTTRACE_RAISE": "1"}
    if moment == "shipping":
        with receiving() as site:
            done = run(command, {**environment, "ARTTRACE_ENDPOINT": site.url})
            spans = [span for span in site.spans if span.end_ns]
    else:
        done = run(command, environment)
        spans = finished_spans(data)
    assert done.returncode == 0, done.stderr
    answers = [[f"answer 0 to first {number}", f"answer 0 to second {number} "] for number in range(6)]
    assert json.loads(done.stdout) == [answers, True]
    said = [line for line in done.stderr.splitlines() if line.startswith("arttrace") or "/arttrace/capture/" in line]
    assert not said  # eventlet complains of its own, and the path of the environment may hold our name
    trajectories = [each for each in build_trajectories(spans) if each.entry.endswith("run")]
    assert [each.incomplete for each in trajectories] == [""] * 6
    calls = [span for span in spans if span.name == "chat m"]
    assert len(calls) == 12
    assert len({span.attributes[semconv.EXECUTION_ID] for span in calls}) == 6


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


# --- what takes part in it, with a stand-in for a library that patches ------------------------------------------------
@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What the next sleeps switch to, in a process whose threads are greenlets."""
    waiting: list[Callable[[], None]] = []
    start, sleep = _thread.start_new_thread, time.sleep
    monkeypatch.setattr(_thread, "start_new_thread", lambda *args: start(*args))
    monkeypatch.setattr(time, "sleep", lambda seconds: waiting.pop(0)() if waiting else sleep(seconds))
    return waiting


def test_who_waits_for_a_lock_of_ours_lets_the_greenlet_go_on_that_holds_it(others: list[Callable[[], None]]) -> None:
    lock = native_threads.Lock()
    lock.__enter__()
    others.append(lambda: lock.__exit__(None, None, None))

    def enter() -> None:
        with lock:
            pass

    waiting = threading.Thread(target=enter, daemon=True)
    waiting.start()
    waiting.join(30)
    assert not waiting.is_alive()
    assert not others


def test_who_waits_for_an_event_of_ours_lets_other_greenlets_go_on(others: list[Callable[[], None]]) -> None:
    event, ran = native_threads.Event(), []
    others += [lambda: ran.append("another"), event.set]
    assert event.wait_outside(60)
    assert ran == ["another"]
    event.clear()
    assert not event.wait_outside(0.01)


def test_a_thread_of_ours_waits_alone(others: list[Callable[[], None]]) -> None:
    event, lock, done = native_threads.Event(), native_threads.Lock(), native_threads.Event()
    lock.__enter__()

    def work() -> None:
        event.wait(60)
        with lock:
            native_threads.pause(0)
        done.set()

    others.append(lambda: pytest.fail("a greenlet was switched to in a thread of ours"))
    native_threads.Thread(work).start()
    event.set()
    lock.__exit__(None, None, None)
    assert done.wait(60)
    assert len(others) == 1


def test_what_is_native_is_native_where_it_was_patched_before(tmp_path: Path) -> None:
    program = """
    import _thread, queue, threading, time
    def refused(*args, **kwargs):
        raise AssertionError("patched")
    _thread.start_new_thread = threading.Lock = threading.Event = queue.SimpleQueue = time.sleep = refused
    from arttrace.system import native_threads
    done, found = native_threads.Event(), native_threads.SimpleQueue()
    def work():
        native_threads.sleep(0.001)
        found.put("worked")
        done.set()
    native_threads.Thread(work).start()
    assert done.wait(60)
    print(found.get())
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    assert run([sys.executable, str(tmp_path / "program.py")], dict(os.environ)).stdout == "worked\n"


def test_an_event_wakes_all_who_wait() -> None:
    event, woken = native_threads.Event(), []
    waiters = [threading.Thread(target=lambda: woken.append(event.wait(60))) for _ in range(8)]
    for thread in waiters:
        thread.start()
    event.set()
    event.set()
    for thread in waiters:
        thread.join(60)
    assert woken == [True] * 8
    assert event.is_set()
    event.clear()
    assert not event.is_set()
