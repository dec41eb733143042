"""Jobs of pools, and processes, of programs that know nothing of arttrace: each is a run of its own, whole when the job
has returned, as leaving a pool's `with` block kills the pool's processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from asks_by_httpx import ASK, CAPTURED
from chat_server import ChatServer
from joined_program import one_trajectory, run
from served_app import served
from spool import read_spans
from trace_requests import spooled

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.spool import Spool
from arttrace.records.rollout import BEGUN_IN, ROLLOUT
from arttrace.records.trajectory import Trajectory
from arttrace.store.server.auth import Authorizer
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.groups import group_key

PROGRAM = f"""{ASK}
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

def job(task, suffix="two"):
    ask(f"{{task}} one")
    return ask(f"{{task}} {{suffix}}")

def fails(task):
    ask(task)
    raise ValueError(task)

class Odd:
    __signature__ = "none"
    def __call__(self, task):
        ask(task)

class Worker:
    def run(self):
        fails(self.task) if self.task == "i" else ask(self.task)

class Fork(Worker, multiprocessing.get_context("fork").Process):
    pass

class Spawn(Worker, multiprocessing.get_context("spawn").Process):
    pass

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(1, initializer=ask, initargs=("begin",)) as pool:
        pool.map(job, ["a", "b"])
        failed = pool.apply_async(fails, ("c",))
        failed.wait()
        assert not failed.successful()
        pool.apply(Odd(), ("g",))
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        list(executor.map(partial(job, suffix="three"), ["d", "e"], chunksize=2))
    process = context.Process(target=fails, args=("f",))
    process.start()
    process.join()
    assert process.exitcode == 1
    for task in ("h", "i"):
        worker = (Spawn if sys.argv[1] == "spawn" else Fork)()
        worker.task = task
        worker.start()
        worker.join()
        assert worker.exitcode == (task == "i")
"""


def captured(tmp_path: Path, server: ChatServer, how: str, **environment: str) -> list[Trajectory]:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-c", "from arttrace.commands import main; main()", "run", "--quiet"]
    command += ["--dir", str(tmp_path / "d"), "--", sys.executable, str(tmp_path / "program.py"), how]
    env = {**os.environ, **CAPTURED, "OPENAI_BASE_URL": server.url, "ARTTRACE_RAISE": "0", **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return build_trajectories(read_spans(tmp_path / "d"))


def asked(trajectory: Trajectory) -> list[str]:
    return [str(call.call.messages[-1].text) for call in trajectory.calls]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_each_job_is_a_run_of_its_function(how: str, tmp_path: Path, server: ChatServer) -> None:
    found = captured(tmp_path, server, how)
    assert [each.incomplete for each in found if each.incomplete] == []
    assert sorted(((each.entry_name, each.arguments, each.error, asked(each)) for each in found), key=str) == [
        ("program:Odd", None, None, ["g"]),
        ("program:Worker.run", None, "ValueError: i", ["i"]),
        ("program:Worker.run", None, None, ["h"]),
        ("program:fails", {"task": "c"}, "ValueError: c", ["c"]),
        ("program:fails", {"task": "f"}, "ValueError: f", ["f"]),
        ("program:job", {"task": "a", "suffix": "two"}, None, ["a one", "a two"]),
        ("program:job", {"task": "b", "suffix": "two"}, None, ["b one", "b two"]),
        ("program:job", {"task": "d", "suffix": "three"}, None, ["d one", "d three"]),
        ("program:job", {"task": "e", "suffix": "three"}, None, ["e one", "e three"]),
        ("program:worker", None, None, ["begin"]),  # which multiprocessing.pool gives its processes
    ]
    source = str(tmp_path / "program.py")
    assert {each.entry for each in found} == {
        source,
        *(f"{source}:{name}" for name in ("job", "fails", "Odd", "Worker.run")),
    }
    keys = Counter(map(group_key, found))
    assert [key for key, runs in keys.items() if runs > 1] == [], "nothing else is an attempt at the same"


def test_a_process_that_records_nothing_delivers_for_its_children(tmp_path: Path, server: ChatServer) -> None:
    """Those of a pool are killed, and others leave it to whoever started them."""
    data = DataDir(tmp_path / "collected")
    sink = Spool(data)
    with served(CollectorApp(sink, Forward(data), Authorizer("token"))) as url:
        assert captured(tmp_path, server, "fork", ARTTRACE_ENDPOINT=url) == []
    sink.close()
    found = build_trajectories(spooled(data))
    assert sorted(text for each in found for text in asked(each)) == sorted(
        ["begin", "a one", "a two", "b one", "b two", "c", "g", "d one", "d three", "e one", "e three", "f", "h", "i"]
    )
    assert [each.incomplete for each in found if each.incomplete] == []


def test_in_a_rollout_of_the_program_they_are_all_one_run(tmp_path: Path, server: ChatServer) -> None:
    (trajectory,) = captured(tmp_path, server, "fork", **{ROLLOUT: json.dumps({"trajectory_id": "r1"})})
    assert (trajectory.id, trajectory.incomplete, len(trajectory.calls)) == ("r1", "", 14)


def test_in_a_rollout_of_a_command_they_are_all_one_run(tmp_path: Path, server: ChatServer) -> None:
    job = json.dumps({"trajectory_id": "r1", BEGUN_IN: str(tmp_path / "r1.run")})
    captured(tmp_path, server, "fork", **{ROLLOUT: job})
    spans = [span for span in read_spans(tmp_path / "d") if span.name != "command"]  # which the rollout ends
    (trajectory,) = build_trajectories(spans)
    assert (trajectory.id, trajectory.incomplete, len(trajectory.calls)) == ("r1", "", 14)


def test_of_a_program_that_a_run_has_started_they_are_parts(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "jobs.py").write_text(f"import arttrace; arttrace.init()\n{PROGRAM}")
    run(
        """
        import subprocess, sys
        import arttrace
        with arttrace.trajectory(name="outer"):
            subprocess.run([sys.executable, sys.argv[1], "fork"], check=True, stderr=subprocess.DEVNULL)
        """,
        tmp_path,
        str(tmp_path / "jobs.py"),
        OPENAI_BASE_URL=server.url,
        ARTTRACE_RAISE="0",
    )
    assert len(one_trajectory(tmp_path).calls) == 14
