"""Rollout workers run the user's entry point as it is, and say what became of every job."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from spool import read_spans

from arttrace.records import semconv
from arttrace.system.errors import RolloutError
from arttrace.system.paths import DataDir
from trainer.output.log import MAX_BYTES
from trainer.rollouts.workers import RolloutJob, RolloutResult, RolloutWorkers

_AGENT = '''
import asyncio, os, sys, threading, time
from helper import twice

print("printed while importing")
running = peak = 0
four_tasks, four_threads = asyncio.Barrier(4), threading.Barrier(4)

async def answer(x, mode=""):
    """An agent that never heard of arttrace."""
    global running, peak
    print("printed while running")
    running += 1
    peak = max(peak, running)
    if mode == "four at once":
        await four_tasks.wait()
    running -= 1
    if mode == "raise":
        raise ValueError("no answer to that")
    if mode == "cancel":
        raise asyncio.CancelledError
    if mode == "exit":
        sys.exit(3)
    if mode == "die":
        os._exit(7)
    return {"twice": twice(x), "pid": os.getpid(), "peak": peak, "base_url": os.environ.get("OPENAI_BASE_URL")}

def plain(x, mode=""):
    if mode == "input":
        return input()
    if mode == "odd":
        return object
    four_threads.wait(60)
    return f"{os.getpid()} {threading.current_thread().name}"

async def several(x):
    yield x
    yield x + 1

class Agent:
    @staticmethod
    def answer(x):
        return x
'''


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "app" / "agent.py").write_text(_AGENT)
    return tmp_path / "app" / "agent.py"


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


@pytest.fixture
def workers(agent: Path, data: DataDir) -> Iterator[RolloutWorkers]:
    with RolloutWorkers(f"{agent}:answer", data, env={"OPENAI_BASE_URL": "http://x/v1"}, concurrency=4) as workers:
        yield workers


def test_every_job_has_its_result_in_order_and_its_trajectory_on_disk(workers: RolloutWorkers, data: DataDir) -> None:
    jobs = [
        RolloutJob({"x": x, "mode": "four at once"}, scenario=f"s{x % 2}", group="g", metadata={"n": x})
        for x in range(12)
    ]
    came: list[RolloutResult] = []
    results = workers.run(jobs, on_result=came.append)
    assert [result.result["twice"] for result in results] == [2 * x for x in range(12)]
    assert {result.result["base_url"] for result in results} == {"http://x/v1"}
    assert max(result.result["peak"] for result in results) == 4
    assert sorted(r.trajectory_id for r in came) == sorted(r.trajectory_id for r in results)
    roots = {span.attributes[semconv.TRAJECTORY_ID]: span.attributes for span in read_spans(data.root)}
    for job, result in zip(jobs, results, strict=True):
        attributes = roots[result.trajectory_id]
        assert attributes[semconv.ENTRY] == "agent:answer"
        assert (attributes[semconv.SCENARIO], attributes[semconv.GROUP]) == (job.scenario, "g")
        assert attributes[semconv.METADATA] == f'{{"n":{job.arguments["x"]}}}'
    again = workers.run([RolloutJob({"x": 1}, trajectory_id="ab" * 16)])
    assert again[0].trajectory_id == "ab" * 16
    assert again[0].result["pid"] == results[0].result["pid"]  # nothing was imported a second time
    assert "printed while running" in workers.log.read_text()


@pytest.mark.parametrize(
    ("mode", "error"), [("raise", "ValueError: no answer"), ("cancel", "CancelledError"), ("exit", "SystemExit: 3")]
)
def test_what_the_entry_raises_is_the_result(workers: RolloutWorkers, data: DataDir, mode: str, error: str) -> None:
    bad, good, wrong = workers.run([RolloutJob({"x": 1, "mode": mode}), RolloutJob({"x": 2}), RolloutJob({"y": 1})])
    assert bad.error is not None
    assert bad.error.startswith(error)
    assert (bad.result, good.result["twice"], good.error) == (None, 4, None)
    assert "unexpected keyword argument" in (wrong.error or "")
    root = next(s for s in read_spans(data.root) if s.attributes[semconv.TRAJECTORY_ID] == bad.trajectory_id)
    assert root.attributes[semconv.ERROR_TYPE].endswith(error.partition(":")[0])


_RAISES = {
    "stop": "next(iter(()))",  # what a future cannot hold, up to Python 3.11
    "no text": "raise Silent",
    "a name that is no UTF-8": "raise ValueError(os.fsdecode(bytes([255])))",
    "an exit": "raise SystemExit(3)",
}


@pytest.mark.parametrize("raised", _RAISES)
def test_a_plain_function_that_raises_has_a_result_and_so_have_the_runs_after_it(
    agent: Path, data: DataDir, raised: str
) -> None:
    agent.write_text(
        "import os\nclass Silent(Exception):\n    def __str__(self):\n        raise RuntimeError\n"
        f"def work(x):\n    if x == 0:\n        {_RAISES[raised]}\n    return x\n"
    )
    with RolloutWorkers(f"{agent}:work", data, timeout_s=20) as workers:
        bad, good = workers.run([RolloutJob({"x": 0}), RolloutJob({"x": 1})])
    expected = {"stop": "StopIteration", "no text": "Silent", "an exit": "SystemExit: 3"}
    assert (bad.error or "").startswith(expected.get(raised, "ValueError: ")), bad
    assert (good.result, good.error, bad.lost) == (1, None, False)


def test_an_import_that_fails_with_a_name_that_is_no_utf_8_is_reported(agent: Path, data: DataDir) -> None:
    agent.write_text("import os\nraise ValueError('no ' + os.fsdecode(bytes([255])))\n")
    with pytest.raises(RolloutError, match="ValueError: no \ufffd"), RolloutWorkers(f"{agent}:work", data) as workers:
        workers.run([RolloutJob({"x": 0})])


def test_a_worker_that_dies_fails_its_jobs_and_is_replaced(workers: RolloutWorkers) -> None:
    jobs = [RolloutJob({"x": 0, "mode": "die"}), *(RolloutJob({"x": x}) for x in range(1, 30))]
    results = workers.run(jobs)
    assert results[0].error == "the rollout worker died (exit code 7)"
    assert sum(result.error is None for result in results) >= 25  # all but what was under way beside it
    assert {result.error for result in results} <= {None, results[0].error}
    with pytest.raises(RolloutError, match="died 4 times"):
        workers.run([RolloutJob({"x": 0, "mode": "die"}) for _ in range(40)])
    assert workers.run([RolloutJob({"x": 3})])[0].result["twice"] == 6


def test_a_run_that_takes_too_long_is_ended_with_what_it_started(agent: Path, data: DataDir) -> None:
    agent.write_text(
        "import os, subprocess, sys, time\n"
        "def work(seconds, log):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "    open(log, 'a').write(f'{child.pid}\\n')\n"
        "    time.sleep(seconds)\n"
        "    return seconds\n"
    )
    log = agent.parent / "children"
    jobs = [RolloutJob({"seconds": seconds, "log": str(log)}) for seconds in (60, 0, 60, 60, 60, 0)]
    with RolloutWorkers(f"{agent}:work", data, concurrency=1, timeout_s=2) as workers:
        results = workers.run(jobs)
        assert [result.error for result in results if not result.lost] == [None, None]
        assert {result.error for result in results if result.lost} == {"it took longer than 2 s"}
        assert sum(result.lost for result in results) == 4  # more than the deaths of its own that a worker may have
    _wait_for_the_end_of([int(pid) for pid in log.read_text().split()])


def test_what_runs_print_is_rotated_when_workers_start(agent: Path, data: DataDir) -> None:
    log = data.root / "logs" / "rollouts.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * MAX_BYTES)
    with RolloutWorkers(f"{agent}:answer", data, workers=2) as workers:
        workers.run([RolloutJob({"x": x}) for x in range(4)])
    assert log.with_name("rollouts.log.1").stat().st_size == MAX_BYTES
    assert "printed while running" in log.read_text()


def test_what_a_machine_prints_wherever_python_starts_is_passed_over(agent: Path, data: DataDir) -> None:
    """As a `sitecustomize` does: each worker was lost as it started."""
    (agent.parent / "site").mkdir()
    (agent.parent / "site" / "sitecustomize.py").write_text("print('Welcome!', flush=True)\n")
    env = {"PYTHONPATH": os.pathsep.join([str(agent.parent / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])}
    with RolloutWorkers(f"{agent}:answer", data, env={"OPENAI_BASE_URL": "http://x/v1", **env}) as workers:
        [result] = workers.run([RolloutJob({"x": 3})])
    assert result.result["twice"] == 6


@pytest.mark.parametrize(
    ("how", "why"),
    [("os._exit(7)", "exit code 7"), ("os.closerange(3, 256); time.sleep(60)", "it closed the pipe of its results")],
)
def test_a_worker_that_is_lost_is_ended_with_what_it_started(agent: Path, data: DataDir, how: str, why: str) -> None:
    agent.write_text(
        "import os, subprocess, sys, time\n"
        "def work(log):\n"
        "    if not log:\n        return 6\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    with open(log, 'w') as file:\n        file.write(f'{os.getpid()} {child.pid}')\n"
        f"    {how}\n"
    )
    log = agent.parent / "processes"
    with RolloutWorkers(f"{agent}:work", data, concurrency=1) as workers:
        lost, good = workers.run([RolloutJob({"log": str(log)}), RolloutJob({"log": ""})])
        assert (lost.error, lost.lost, good.result) == (f"the rollout worker died ({why})", True, 6)
        _wait_for_the_end_of([int(pid) for pid in log.read_text().split()])


@pytest.mark.parametrize("end", ["time.sleep(600)", "os._exit(7)"])
def test_what_a_run_forked_and_left_does_not_hold_up_the_others(
    agent: Path, data: DataDir, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that it forked, as a daemon does, has its pipes, and does not end with it."""
    agent.write_text(
        "import os, time\n"
        "def work(log):\n"
        "    if not log:\n        return 6\n"
        "    if os.fork() == 0:\n        os.setsid()\n        open(log, 'w').write(str(os.getpid()))\n"
        "        time.sleep(600)\n"
        f"    while not os.path.exists(log) or not open(log).read():\n        time.sleep(0.01)\n    {end}\n"
    )
    log = agent.parent / "forked"
    try:
        with RolloutWorkers(f"{agent}:work", data, concurrency=1, timeout_s=3) as workers:
            looks: list[None] = []
            late = workers._end_late
            monkeypatch.setattr(workers, "_end_late", lambda: looks.append(None) or late())
            lost, good = workers.run([RolloutJob({"log": str(log)}), RolloutJob({"log": ""})])
            why = "the rollout worker died (exit code 7)" if "exit" in end else "it took longer than 3 s"
            assert (lost.error, lost.lost, good.result) == (why, True, 6)
            assert len(looks) < 10, "it waits, and does not look over and over"
    finally:
        os.kill(int(log.read_text()), signal.SIGKILL)


def test_plain_functions_run_in_threads_of_several_workers(agent: Path, data: DataDir) -> None:
    with RolloutWorkers(f"{agent}:plain", data, workers=2, concurrency=4) as workers:
        ran = [str(result.result).split() for result in workers.run([RolloutJob({"x": x}) for x in range(8)])]
        assert Counter(worker for worker, _ in ran).most_common() == [(worker, 4) for worker in dict(ran)]
        assert Counter(thread for _, thread in ran) == {f"rollout_{n}": 2 for n in range(4)}
        no_input, odd = workers.run([RolloutJob({"x": 1, "mode": mode}) for mode in ("input", "odd")])
    assert (no_input.error or "").startswith("EOFError")  # our jobs are not on the user's standard input
    assert odd.result == "<class 'object'>"


@pytest.mark.parametrize(("entry", "result"), [("several", [5, 6]), ("Agent.answer", 5)])
def test_generators_and_methods_are_entries_too(agent: Path, data: DataDir, entry: str, result: object) -> None:
    with RolloutWorkers(f"{agent}:{entry}", data) as workers:
        assert workers.run([RolloutJob({"x": 5})])[0].result == result


def test_a_module_is_found_where_we_are(agent: Path, data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(agent.parent)
    with RolloutWorkers("agent:answer", data) as workers:
        assert workers.run([RolloutJob({"x": 5})])[0].result["twice"] == 10


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        ("nothing", "neither module:function nor"),
        ("no_such_module_anywhere:f", "No module named"),
        ("missing.py:f", "there is no file"),
        ("{agent}:nothing", "has no attribute"),
        ("{agent}:running", "is not a function but of the type int"),
    ],
)
def test_an_entry_that_cannot_be_loaded_is_reported_with_its_cause(
    agent: Path, data: DataDir, entry: str, cause: str
) -> None:
    with pytest.raises(RolloutError, match=cause) as failed:
        RolloutWorkers(entry.format(agent=agent), data).start()
    assert "Traceback" not in failed.value.message


def test_an_entry_that_fails_on_its_import_is_reported_with_the_users_lines_alone(agent: Path, data: DataDir) -> None:
    agent.write_text("def prepare():\n    raise RuntimeError('no settings')\n\nprepare()\n")
    with pytest.raises(RolloutError, match="RuntimeError: no settings") as failed:
        RolloutWorkers(f"{agent}:answer", data).start()
    assert re.findall(r'File "([^"]*)", line (\d)', failed.value.message) == [(str(agent), "4"), (str(agent), "2")]


def test_two_jobs_cannot_be_one_trajectory(workers: RolloutWorkers) -> None:
    with pytest.raises(ValueError, match="same trajectory id"):
        workers.run([RolloutJob({"x": 1}, trajectory_id="a" * 32)] * 2)


def test_workers_and_what_they_started_end_with_their_owner(agent: Path, tmp_path: Path) -> None:
    agent.write_text(
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "def ids():\n    return [os.getpid(), child.pid]\n"
    )
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom arttrace.system.paths import DataDir\n"
        "from trainer.rollouts.workers import RolloutJob, RolloutWorkers\n"
        "workers = RolloutWorkers(sys.argv[1], DataDir(Path(sys.argv[2])))\n"
        "print(*workers.run([RolloutJob({})])[0].result, flush=True)\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, f"{agent}:ids", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 2
        owner.send_signal(signal.SIGKILL)
    _wait_for_the_end_of(pids)


_NEVER_IMPORTED = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\ndef answer(x):\n    return x\n"


def test_an_import_that_does_not_end_is_said_and_ended_by_ctrl_c(
    agent: Path, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a program that serves without `if __name__ == "__main__":`. It went on, and kept its port."""
    agent.write_text(_NEVER_IMPORTED)
    log = data.root / "logs" / "rollouts.log"
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        _wait_for_two_lines(log)
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.rollouts.workers._SAID_AFTER_S", 0.1)
    with pytest.raises(KeyboardInterrupt), RolloutWorkers(f"{agent}:answer", data, workers=2, say=say):
        pass
    [line] = said
    assert "agent.py:answer is still being imported after 0.1 s" in line
    _wait_for_the_end_of([int(pid) for pid in log.read_text().split()])


def test_workers_that_import_end_with_their_owner(agent: Path, data: DataDir) -> None:
    agent.write_text(_NEVER_IMPORTED)
    program = (
        "import sys\nfrom pathlib import Path\nfrom arttrace.system.paths import DataDir\n"
        "from trainer.rollouts.workers import RolloutWorkers\n"
        "RolloutWorkers(sys.argv[1], DataDir(Path(sys.argv[2])), workers=2).start()\n"
    )
    log = data.root / "logs" / "rollouts.log"
    with subprocess.Popen([sys.executable, "-c", program, f"{agent}:answer", str(data.root)]) as owner:
        _wait_for_two_lines(log)
        owner.send_signal(signal.SIGKILL)
    _wait_for_the_end_of([int(pid) for pid in log.read_text().split()])


def _wait_for_two_lines(log: Path) -> None:
    deadline = time.monotonic() + 60
    while not log.exists() or log.read_text().count("\n") < 2:
        assert time.monotonic() < deadline, "the workers did not come to the import"
        time.sleep(0.02)


def _wait_for_the_end_of(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_alive, pids))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
