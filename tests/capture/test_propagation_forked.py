"""Forked processes, and those of which nothing may be lost in silence: each counts what it did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chat_server import ChatServer
from joined_program import agents, one_trajectory, run
from spool import finished_spans, read_spans

from arttrace.records import semconv
from arttrace.trajectories import build_trajectories

FORKED = """
import os, sys
import arttrace
import asking
def ask(text): asking.ask(sys.argv[1], text)
@arttrace.agent
def inner(text): ask(text)
@arttrace.agent
def worker(text):
    ask(text)
    inner(f"{text}, inner")
def child(do):
    if (pid := os.fork()) == 0:
        do()
        arttrace.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
def work():
    worker("child")
    child(lambda: worker("grandchild"))
    ask("bare")
with arttrace.trajectory(name="outer"):
    ask("parent")
    child(work)
    worker("parent again")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_counts_what_it_did(tmp_path: Path, server: ChatServer) -> None:
    run(FORKED, tmp_path, server.url)
    spans = finished_spans(tmp_path / "d")
    trajectory = one_trajectory(tmp_path)
    assert agents(trajectory) == [
        *[("inner", "worker", 1)] * 3,
        ("outer", None, 1),
        ("sub-agent", "outer", 1),  # the call that the child made beside its workers
        ("worker", "outer", 1),
        *[("worker", "sub-agent", 1)] * 2,
    ]
    for lost in spans:
        if "bare" in str(lost.attributes.get(semconv.INPUT_MESSAGES)):
            continue  # right below the other process's agent: it is its own count
        rest = [span for span in spans if span is not lost]
        assert any(run.incomplete for run in build_trajectories(rest)), lost.name


STREAM_LEFT_OPEN = """
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key="sk-test-0123456789")
with arttrace.trajectory(name="streams"):
    if (pid := os.fork()) == 0:
        held = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "held"}], stream=True)
        os._exit(status=3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_that_ends_at_once_loses_nothing(tmp_path: Path, server: ChatServer) -> None:
    """It runs no atexit functions, and the run of the process above would be complete without it."""
    program = FORKED.replace("        arttrace.flush()\n", "") + STREAM_LEFT_OPEN
    run(program, tmp_path, server.url)
    spans = finished_spans(tmp_path / "d")
    asked = [
        str(span.attributes[semconv.INPUT_MESSAGES]) for span in spans if semconv.INPUT_MESSAGES in span.attributes
    ]
    assert len(asked) == 9
    assert sum('"held"' in text for text in asked) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_that_begins_capture_anew_loses_nothing_when_it_ends_at_once(
    tmp_path: Path, server: ChatServer
) -> None:
    program = FORKED.replace("        do()\n        arttrace.flush()\n", "        anew(do)\n").replace(
        "def child(do):",
        "def anew(do):\n    arttrace.uninstrument()\n    arttrace.init()\n    do()\ndef child(do):",
    )
    run(program, tmp_path, server.url)
    assert sum(call.call.error is None for call in one_trajectory(tmp_path).calls) == 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_processes_are_executions_of_their_own(tmp_path: Path, server: ChatServer) -> None:
    run(FORKED, tmp_path, server.url)
    spans = [span for span in finished_spans(tmp_path / "d") if semconv.INPUT_MESSAGES in span.attributes]
    of = {str(span.attributes[semconv.INPUT_MESSAGES]): span.attributes[semconv.EXECUTION_ID] for span in spans}
    heard = {name: {id for text, id in of.items() if f'"{name}' in text} for name in ("parent", "child", "grandchild")}
    assert all(len(ids) == 1 for ids in heard.values())
    assert len(set.union(*heard.values())) == 3


WORK_HORSE = """
import os, sys
if (pid := os.fork()) == 0:  # as a worker of RQ does for each job, before it loads the job's function
    import arttrace
    from asking import ask
    @arttrace.trajectory
    def job():
        ask(sys.argv[1], "of the job")
    job()
    os._exit(0)
assert "arttrace" not in sys.modules
assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_process_that_was_forked_before_capture_came_in_loses_nothing_when_it_ends_at_once(
    tmp_path: Path, server: ChatServer
) -> None:
    run(WORK_HORSE, tmp_path, server.url)
    assert len(one_trajectory(tmp_path).calls) == 1


def test_a_process_that_was_not_forked_loses_nothing_when_it_ends_at_once(tmp_path: Path, server: ChatServer) -> None:
    alone = WORK_HORSE.replace("if (pid := os.fork()) == 0:", "if True:")
    run(alone, tmp_path, server.url)
    assert len(one_trajectory(tmp_path).calls) == 1


GOES_ON = """
import os
import arttrace
from arttrace.capture.export import recorder
recorder._SHOWN_AFTER_S = 600.0  # what lasts is shown anyway
reported, tell = os.pipe()
with arttrace.trajectory(name="outer"):
    if os.fork() == 0:
        @arttrace.agent
        def worker():
            arttrace.flush()
            os.write(tell, b"begun")
            os.kill(os.getpid(), 9)
        worker()
    assert os.read(reported, 5) == b"begun"
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_an_agent_in_another_process_that_has_just_begun_is_missed_when_the_run_ends(tmp_path: Path) -> None:
    run(GOES_ON, tmp_path)
    (trajectory,) = build_trajectories(read_spans(tmp_path / "d"))
    assert agents(trajectory) == [("outer", None, 0), ("worker", "outer", 0)]
    assert trajectory.incomplete == "agent in progress"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_short_agent_in_another_process_is_spooled_once(tmp_path: Path) -> None:
    """Nothing is written while a turn gathers what ends in it."""
    program = GOES_ON.replace("            arttrace.flush()\n", "").replace("os.kill(os.getpid(), 9)", "pass")
    program = program.replace(
        "        worker()\n    ", "        worker()\n        arttrace.flush()\n        os._exit(0)\n    "
    )
    run(program.replace("_SHOWN_AFTER_S", "GATHER_S"), tmp_path)
    assert one_trajectory(tmp_path).agents[1].name == "worker"
    assert len(read_spans(tmp_path / "d")) == 2


PREFORK = """
import os, signal, sys
import arttrace
from asking import ask
@arttrace.agent
def helper(text):
    ask(sys.argv[1], text)
@arttrace.trajectory
def handle(text):
    helper(text)
    arttrace.update(tags=[text])
handle("before the fork")  # as `gunicorn --preload` would
workers = []
for number in range(3):
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        for request in range(4):
            handle(f"request {number}.{request}")
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    workers.append(pid)
for pid in workers:
    assert os.waitpid(pid, 0)[1] == 0
handle("after the fork")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_the_workers_of_a_server_that_forks_them_count_their_own_runs(tmp_path: Path, server: ChatServer) -> None:
    run(PREFORK, tmp_path, server.url)
    spans = finished_spans(tmp_path / "d")
    runs = build_trajectories(spans)
    assert len(runs) == 14
    assert {one.incomplete for one in runs} == {""}
    for lost in spans:
        rest = build_trajectories(span for span in spans if span is not lost)
        assert [one.incomplete for one in rest].count("") == 13, lost.name


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=pytest.mark.full) for how in ("spawn", "forkserver")), "pool"]
)
def test_no_span_of_a_process_that_joined_is_lost_in_silence(how: str, tmp_path: Path, server: ChatServer) -> None:
    run(
        """
        import multiprocessing, sys
        import arttrace
        from asking import ask
        @arttrace.tool
        def look(url): ask(url, "in a tool")
        @arttrace.agent
        def worker(url):
            ask(url, "of the worker")
            look(url)
        if __name__ == "__main__":
            how, url = sys.argv[1:]
            with arttrace.trajectory(name="outer"):
                worker(url)
                if how == "pool":
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        pool.map(worker, [url, url])
                else:
                    process = multiprocessing.get_context(how).Process(target=worker, args=(url,))
                    process.start(); process.join()
                    assert process.exitcode == 0
        """,
        tmp_path,
        how,
        server.url,
    )
    assert one_trajectory(tmp_path).agents[0].name == "outer"
    spans = finished_spans(tmp_path / "d")
    for lost in {span.span_id: span.name for span in spans}.items():
        runs = build_trajectories(span for span in spans if span.span_id != lost[0])
        assert all(one.incomplete for one in runs), lost


IMPORTING = """
import os, sys, threading, time
from arttrace.capture.base.settings import Settings
from arttrace.capture.export.destinations import Destinations
begun = threading.Event()
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "arttrace.capture.export.shipping.otlp_client":
            begun.set()
            time.sleep(0.5)
sys.meta_path.insert(0, Slow())
importing = threading.Thread(target=Destinations(Settings.resolve()).shipper)
importing.start()
assert begun.wait(60)
if (pid := os.fork()) == 0:
    from arttrace.capture.export.shipping.shipper import Shipper
    os._exit(0)
importing.join()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_process_that_is_forked_while_what_ships_is_imported_has_all_of_it(tmp_path: Path) -> None:
    """A child has for good what its parent had of a module: "cannot import name 'Shipper' from partially ..."."""
    run(IMPORTING, tmp_path, ARTTRACE_ENDPOINT="http://127.0.0.1:9")
