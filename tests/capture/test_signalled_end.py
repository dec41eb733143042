"""What a process recorded is kept where it ends itself by a signal, as servers do once what was under way has ended, or
puts another program in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from asks_by_httpx import ASK, CAPTURED
from chat_server import ChatServer
from otlp_receiver import receiving
from spool import read_spans

from arttrace.trajectories import build_trajectories

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")

ASKS = """
import os, signal, sys, threading
import arttrace
from arttrace.capture.export import recorder
recorder.GATHER_S = 600.0  # nothing is written until somebody waits for it
"""

UVICORN = """
import time, urllib.request
import uvicorn
@arttrace.trajectory
def answer():
    ask("first")
    print("asked", flush=True)
    while not server.should_exit:
        time.sleep(0.01)
    ask("last")
async def app(scope, receive, send):
    import asyncio
    await asyncio.to_thread(answer)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})
server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="error"))
def visit():
    while not server.started:
        time.sleep(0.01)
    address = server.servers[0].sockets[0].getsockname()
    urllib.request.urlopen("http://%s:%d" % address).read()
threading.Thread(target=visit, daemon=True).start()
server.run()
"""

AGAIN = """
@arttrace.trajectory
def answer():
    ask("first")
    print("asked", flush=True)
    ended.wait()
    ask("last")
ended = threading.Event()
def end(number, frame):
    ended.set()
    work.join()
    signal.signal(number, signal.SIG_DFL)
    SEND
signal.signal(signal.SIGTERM, end)
work = threading.Thread(target=answer)
work.start()
signal.pause()
"""


def end_amid_a_run(program: str, tmp_path: Path, url: str, *before: str, **environment: str) -> str:
    """Send SIGTERM once the first call of the run was made; what the program wrote to stderr."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(ASK + ASKS + program))
    env = {**os.environ, **CAPTURED, "ARTTRACE_DIR": str(tmp_path / "d"), "OPENAI_BASE_URL": url, **environment}
    command = [sys.executable, *before, str(script)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM, said
    return said


def assert_whole(tmp_path: Path, *, calls: int = 2) -> None:
    (run,) = build_trajectories(read_spans(tmp_path / "d"))
    assert (run.incomplete, len(run.calls)) == ("", calls)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(UVICORN, id="uvicorn"),
        pytest.param(AGAIN.replace("SEND", "signal.raise_signal(number)"), id="raise_signal"),
        pytest.param(AGAIN.replace("SEND", "os.kill(os.getpid(), number)"), id="kill"),
    ],
)
def test_a_run_that_ends_while_its_server_does_is_whole(program: str, tmp_path: Path, server: ChatServer) -> None:
    assert end_amid_a_run(program, tmp_path, server.url) == ""
    assert_whole(tmp_path)


def test_the_line_of_arttrace_run_comes_and_a_run_under_way_is_shown(tmp_path: Path, server: ChatServer) -> None:
    program = (
        AGAIN.replace("SEND", "signal.raise_signal(number)")
        .replace("    work.join()\n", "")
        .replace("    ended.wait()\n", "    threading.Event().wait()\n")
        .replace("Thread(target", "Thread(daemon=True, target")
    )
    said = end_amid_a_run(program, tmp_path, server.url, "-m", "arttrace", "run", "--", sys.executable)
    assert said == f"arttrace: 0 runs and 1 model call captured in {tmp_path / 'd'}\n"
    (run,) = build_trajectories(read_spans(tmp_path / "d"))
    assert (run.incomplete, len(run.calls)) == ("run in progress", 1)


def test_what_was_recorded_is_delivered_as_at_any_other_end(tmp_path: Path, server: ChatServer) -> None:
    program = AGAIN.replace("SEND", "os.kill(os.getpid(), number)")
    with receiving() as receiver:
        assert end_amid_a_run(program, tmp_path, server.url, ARTTRACE_ENDPOINT=receiver.url) == ""
        assert len(receiver.spans) == 3


def test_a_signal_that_ends_nothing_is_sent_as_it_is(tmp_path: Path) -> None:
    """Nothing is ended for it, and what a wrong call raises stays what it was."""
    program = """
    import os, signal
    import arttrace
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append("term"))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    arttrace.init(dir="d")
    with arttrace.trajectory(name="run"):
        signal.raise_signal(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), 0)
        for wrong in (lambda: signal.raise_signal(), lambda: signal.raise_signal([]), lambda: os.kill("1", 0)):
            try:
                wrong()
            except TypeError:
                seen.append("wrong")
    print(seen)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("['term', 'term', 'wrong', 'wrong', 'wrong']\n", "")
    (run,) = build_trajectories(read_spans(tmp_path / "d"))
    assert run.incomplete == ""


REPLACED = """
import os, sys
import arttrace
from arttrace.capture.export import recorder
recorder.GATHER_S = 600.0
def run(name):
    with arttrace.trajectory(name=name):
        pass
def wrong(replace):
    try:
        replace()
    except (OSError, TypeError) as error:
        print(type(error).__name__, flush=True)
if len(sys.argv) == 1:
    run("first")
    wrong(lambda: os.execv())
    wrong(lambda: os.execvp("no program of this name", ["x"]))
    run("second")
    os.execv(sys.executable, [sys.executable, __file__, "again"])
run("third")
if sys.argv[1] == "again":
    os.execle(sys.executable, sys.executable, __file__, "last", os.environ)
"""


def test_what_was_recorded_before_another_program_takes_the_place_is_kept(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(REPLACED)
    env = {**os.environ, "ARTTRACE_DIR": str(tmp_path / "d")}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "TypeError\nFileNotFoundError\n", "")
    runs = build_trajectories(read_spans(tmp_path / "d"))
    assert [(run.agents[0].name, run.incomplete) for run in runs] == [
        ("first", ""), ("second", ""), ("third", ""), ("third", ""),
    ]  # fmt: skip


WITHIN = """
import os, sys
import arttrace
@arttrace.tool
def helper(): pass
with arttrace.trajectory(name="outer" if len(sys.argv) == 1 else "another"):
    helper()
    if len(sys.argv) == 1:
        os.execv(sys.executable, [sys.executable, __file__, "again"])
"""


def test_a_program_that_takes_the_place_of_a_run_joins_it_and_the_run_never_ended(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(WITHIN)
    env = {**os.environ, "ARTTRACE_DIR": str(tmp_path / "d")}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    spans = read_spans(tmp_path / "d")
    assert len([span for span in spans if span.name == "execute_tool helper" and span.end_ns]) == 2
    (run,) = build_trajectories(spans)
    assert "another" in [agent.name for agent in run.agents]
    assert run.incomplete in ("root missing", "run in progress"), "the latter on a slow machine, which spools it open"
