"""Sampling where a run has parts in several processes, and where a process ends: all of it is stored, or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from asks_by_httpx import ASK, CAPTURED
from chat_server import ChatServer
from collector_process import collecting
from forks import UNSAID
from spool import finished_spans

from arttrace.capture.export import sampling
from arttrace.records import semconv
from arttrace.store import Store
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

SETUP = """
import multiprocessing, os, subprocess, sys
import arttrace
arttrace.init()

def job(number):
    with arttrace.trajectory(name="job", trajectory_id=f"run-{number}"):
        ask(str(number))
"""
FORK = """
with arttrace.trajectory(name="reported"):
    ask("parent")
    pid = os.fork()
    if pid == 0:
        ask("child")
    else:
        os.waitpid(pid, 0)
        ask("parent again")
if pid == 0:
    arttrace.flush()
    os._exit(0)
with arttrace.trajectory(name="alone"):
    ask("alone")
"""
POOL = """
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(job, range(12), chunksize=1)
"""
INSIDE = """
if __name__ == "__main__":
    with arttrace.trajectory(name="reported"):
        ask("parent")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(ask, "0123", chunksize=1)
    with arttrace.trajectory(name="alone"):
        ask("alone")
"""
CHILD = """
if len(sys.argv) > 1:
    with arttrace.trajectory(name="child"):
        ask("child")
else:
    with arttrace.trajectory(name="reported"):
        ask("parent")
        subprocess.run([sys.executable, __file__, "child"], check=True)
    with arttrace.trajectory(name="alone"):
        ask("alone")
        subprocess.run([sys.executable, "-c", "import arttrace"], check=True)
"""


RUN = (str(Path(sys.executable).with_name("arttrace")), "run")


@pytest.fixture
def program(server: ChatServer, tmp_path: Path) -> Callable[..., str]:
    def run(text: str, *, sample: str, command: tuple[str, ...] = (), code: int = 0) -> str:
        (tmp_path / "program.py").write_text(ASK + SETUP + text)
        environment = {
            **os.environ,
            **UNSAID,
            **CAPTURED,
            "ARTTRACE_DIR": str(tmp_path / "data"),
            "ARTTRACE_SAMPLE": sample,
            "OPENAI_BASE_URL": server.url,
        }
        done = subprocess.run(
            [*(command or (sys.executable,)), str(tmp_path / "program.py")],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    return run


@pytest.mark.parametrize("rewarded", [False, True])
@pytest.mark.parametrize(("text", "count"), [(FORK, 3), (INSIDE, 5), (CHILD, 2)], ids=["fork", "pool", "child"])
def test_a_run_with_parts_in_other_processes_is_left_out_or_kept_as_a_whole(
    text: str, count: int, rewarded: bool, program: Callable[..., str], tmp_path: Path
) -> None:
    """The other processes write their parts before anybody knows how the run ends."""
    if rewarded:
        text = text.replace('ask("parent")\n', 'ask("parent"); arttrace.reward(1)\n', 1)
    assert program(text, sample="0") == ""
    spans = finished_spans(tmp_path / "data")
    assert len({span.span_id for span in spans}) == len(spans)
    assert all("alone" not in span.name for span in spans)
    assert not list((tmp_path / "data" / "joined").glob("*"))
    with Store.open(DataDir(tmp_path / "data")) as store:
        runs = store.trajectories()
        _, rows = store.sql("SELECT count(*) FROM spans")
    if rewarded:
        assert [(run.incomplete, len(run.calls)) for run in runs] == [("", count)]
    else:
        assert (runs, rows) == ([], [(0,)])


SERVICE = """
import sys
from wsgiref.simple_server import make_server
import arttrace
def app(environ, start_response):
    with arttrace.agent(name="remote") as agent:
        if environ["QUERY_STRING"] == "good":
            agent.reward(1)
    with arttrace.trajectory(name="of its own"):
        pass
    start_response("200 OK", [("content-length", "4")])
    return [b"done"]
server = make_server("127.0.0.1", 0, arttrace.WSGIMiddleware(app))
print(server.server_port, flush=True)
for _ in range(4):
    server.handle_request()
"""
CALLER = """
import sys, httpx, arttrace
from arttrace.capture.export import lifecycle
arttrace.init(propagate=[f"127.0.0.1:{sys.argv[1]}"])
def ask(what):
    assert httpx.get(f"http://127.0.0.1:{sys.argv[1]}/?{what}").text == "done"
with arttrace.trajectory(name="caller", trajectory_id="run-1"):
    ask("sampled")
with arttrace.trajectory(name="caller", trajectory_id="run-0"):
    ask("dull")
with arttrace.trajectory(name="caller", trajectory_id="run-7"):
    ask("good")
try:
    with arttrace.trajectory(name="caller", trajectory_id="run-8"):
        ask("bad")
        raise KeyError("x")
except KeyError:
    pass
with arttrace.trajectory(name="alone", trajectory_id="run-2"):
    pass
arttrace.flush()
print(lifecycle.counts().left_out)
"""


@pytest.mark.parametrize("collected", [False, True])
def test_of_runs_that_reach_a_service_the_share_is_stored_and_each_whole(collected: bool, tmp_path: Path) -> None:
    """Of two processes: a reward that the service gives and an error of the caller keep what the share leaves out."""
    assert [sampling.is_sampled(f"run-{number}", 0.5) for number in (1, 0, 7, 8, 2)] == [True, *[False] * 4]
    data = DataDir(tmp_path / "collected" if collected else tmp_path / "data")
    environ = {"ARTTRACE_DIR": str(tmp_path / "data"), "ARTTRACE_SAMPLE": "0.5", "PATH": ""}
    if collected:
        with collecting(data) as (_, url):
            _call_a_service({**environ, "ARTTRACE_ENDPOINT": url})
    else:
        _call_a_service(environ)
    with Store.open(data) as store:
        runs = {run.id: run for run in store.trajectories()}
        assert {one.id for one in store.summaries()} == runs.keys() == {"run-1", "run-7", "run-8"}
        assert all(run.incomplete == "" for run in runs.values())
        assert all(sorted(a.name for a in run.agents) == ["caller", "of its own", "remote"] for run in runs.values())
        _, rows = store.sql("SELECT DISTINCT trajectory_id FROM spans ORDER BY 1")
        assert rows == [("run-1",), ("run-7",), ("run-8",)]
        with pytest.raises(StoreError, match="no trajectory 'run-0'"):
            store.trajectory("run-0")


def _call_a_service(environ: dict[str, str]) -> None:
    service = subprocess.Popen([sys.executable, "-c", SERVICE], env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout is not None
        port = service.stdout.readline().strip()
        command = [sys.executable, "-c", CALLER, port]
        caller = subprocess.run(command, env=environ, check=True, timeout=120, stdout=subprocess.PIPE, text=True)
        # Left out: the dull one, the one that reached no service, and one that is rewarded where this does not see it.
        assert caller.stdout == "3\n"
        assert service.wait(120) == 0
    finally:
        service.kill()


def test_processes_of_a_pool_decide_alike_and_lose_and_double_nothing(
    program: Callable[..., str], tmp_path: Path
) -> None:
    assert program(POOL, sample="0.5") == ""
    spans = finished_spans(tmp_path / "data")
    expected = [f"run-{number}" for number in range(12) if sampling.is_sampled(f"run-{number}", 0.5)]
    assert sorted(span.attributes[semconv.TRAJECTORY_ID] for span in spans) == sorted(expected * 2)
    assert all(run.incomplete == "" for run in build_trajectories(spans))


def test_arttrace_run_says_how_many_were_left_out(program: Callable[..., str]) -> None:
    line = program("for number in range(4): job(number)", sample="0.5", command=RUN)
    kept = sum(sampling.is_sampled(f"run-{number}", 0.5) for number in range(4))
    assert 0 < kept < 4
    assert f"arttrace: {kept} run{'s' * (kept > 1)} and {kept} model call{'s' * (kept > 1)} captured" in line
    assert f"; {4 - kept} run{'s' * (4 - kept > 1)} left out by sampling" in line
    line = program("job(0)", sample="0", command=RUN)
    assert "arttrace: nothing was captured in " in line
    assert "; 1 run left out by sampling" in line


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_kill_before_the_end_loses_the_held_run_and_nothing_else(program: Callable[..., str], tmp_path: Path) -> None:
    text = """
with arttrace.trajectory(name="agent", trajectory_id="held"):
    ask("x")
    arttrace.flush()
    import signal
    os.kill(os.getpid(), signal.SIGKILL)
"""
    program("job(0)\njob(1)\n" + text, sample="0.5", code=-signal.SIGKILL)
    assert not sampling.is_sampled("held", 0.5)
    assert {run.id for run in build_trajectories(finished_spans(tmp_path / "data"))} == {"run-1"}
