"""What capture does at the edges of a process: import, exit, kill, fork, multiprocessing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from asks_by_httpx import ASK, CAPTURED
from chat_server import ChatServer
from forks import UNSAID
from spool import finished_spans

from arttrace.records import semconv
from arttrace.trajectories import build_trajectories


def python(program: str, directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        **UNSAID,
        **CAPTURED,
        "ARTTRACE_DIR": str(directory),
        "OPENAI_API_KEY": "sk-test-0123456789",
        **environment,
    }
    directory.with_name("asking.py").write_text(ASK)
    script = directory.parent / "program.py"
    script.write_text(textwrap.dedent(program))
    return subprocess.Popen(
        [sys.executable, str(script), *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert err == ""
    return out


def test_import_arttrace_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"openai", "torch", "duckdb", "litellm", "opentelemetry", "wrapt", "httpx", "msgspec", "trainer"}
    out = finish(
        python(
            """
            import sys
            import arttrace
            print(*sorted({name.split(".")[0] for name in sys.modules}))
            arttrace.trajectory
            print(*sorted({name.split(".")[0] for name in sys.modules}))
            """,
            tmp_path / "d",
        )
    ).splitlines()
    assert not heavy & set(out[0].split())
    assert not {"openai", "torch", "duckdb", "litellm", "httpx", "httpx2"} & set(out[1].split())


PROGRAM = """
import sys, time
import arttrace
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1])
@arttrace.trajectory
def agent(text):
    for chunk in client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": text}], stream="stream" in text
    ):
        if "stall" in text:
            break
    print("called", flush=True)
    if "sleep" in text:
        time.sleep(600)
agent(sys.argv[2])
"""


def test_exit_without_flush_keeps_everything_and_seals_the_segment(tmp_path: Path, server: ChatServer) -> None:
    finish(python(PROGRAM, tmp_path / "d", server.url, "hi"))
    assert [span.name for span in finished_spans(tmp_path / "d")] == ["chat m", "invoke_agent agent"]
    assert [path.suffix for path in (tmp_path / "d" / "spool").iterdir()] == [".seg"]


def test_kill_9_after_a_call_keeps_the_call(tmp_path: Path, server: ChatServer) -> None:
    process = python(PROGRAM, tmp_path / "d", server.url, "sleep")
    assert process.stdout is not None
    assert process.stdout.readline() == "called\n"
    limit = time.monotonic() + 60
    while not finished_spans(tmp_path / "d") and time.monotonic() < limit:  # a busy machine takes longer than 200 ms
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.communicate()
    (call,) = finished_spans(tmp_path / "d")
    assert call.attributes[semconv.RESPONSE_ID] == "c1"


def test_a_stream_still_open_at_exit_is_recorded_as_closed(tmp_path: Path, server: ChatServer) -> None:
    finish(python(PROGRAM, tmp_path / "d", server.url, "stream stall"))
    (call,) = [span for span in finished_spans(tmp_path / "d") if span.name == "chat m"]
    assert call.attributes[semconv.INTERRUPTED] == "closed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_inside_a_run_records_each_span_once(tmp_path: Path, server: ChatServer) -> None:
    finish(
        python(
            """
            import os
            import arttrace
            from asking import ask
            with arttrace.trajectory(name="root"):
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
            """,
            tmp_path / "d",
            OPENAI_BASE_URL=server.url,
        )
    )
    spans = finished_spans(tmp_path / "d")
    assert sorted(span.name for span in spans) == ["chat m"] * 3 + ["invoke_agent root"]
    assert len({span.span_id for span in spans}) == 4
    assert len({span.attributes[semconv.TRAJECTORY_ID] for span in spans}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_stream_that_a_fork_handler_of_the_users_drops_is_still_the_parents(
    tmp_path: Path, server: ChatServer
) -> None:
    finish(
        python(
            """
            import gc, os, sys
            import arttrace
            arttrace.init()
            held = []
            def drop():
                held.clear()
                gc.collect()
            os.register_at_fork(after_in_child=drop)  # before those of the openai client's hook
            from openai import OpenAI
            client = OpenAI(base_url=sys.argv[1])
            held.append(client.chat.completions.create(model="m", messages=[], stream=True))
            pid = os.fork()
            if pid == 0:
                arttrace.flush()
                os._exit(0)
            os.waitpid(pid, 0)
            held.clear()
            """,
            tmp_path / "d",
            server.url,
        )
    )
    assert len(finished_spans(tmp_path / "d")) == 1


def test_multiprocessing_children_flush_at_their_end(tmp_path: Path, server: ChatServer) -> None:
    finish(
        python(
            """
            import multiprocessing, sys
            import arttrace
            from asking import ask
            @arttrace.trajectory
            def work(n):
                ask(str(n))
            if __name__ == "__main__":
                context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "fork")
                children = [context.Process(target=work, args=(n,)) for n in range(2)]
                for child in children: child.start()
                for child in children: child.join()
            """,
            tmp_path / "d",
            OPENAI_BASE_URL=server.url,
        )
    )
    assert sorted(span.name for span in finished_spans(tmp_path / "d")) == ["chat m"] * 2 + ["invoke_agent work"] * 2
    assert {path.suffix for path in (tmp_path / "d" / "spool").iterdir()} == {".seg"}


def test_a_spool_that_cannot_be_written_breaks_nothing_and_is_said_once(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "d").write_text("a file where the directory should be")
    process = python(PROGRAM, tmp_path / "d", server.url, "hi")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert out == "called\n"
    assert "Traceback" not in err
    assert err.count("writing to the spool failed") == 1
    assert "Not a directory" in err
    assert "Set ARTTRACE_DIR to a directory that this user may write into" in err


POOL = """
import multiprocessing, sys
import arttrace
from arttrace.capture.export import recorder
from asking import ask

recorder.GATHER_S = 600.0  # nothing is written before it is asked for

@arttrace.trajectory(name="job")
def job(number):
    return ask(str(number))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(3) as pool:
        first = pool.map(job, range(12), chunksize=1)
    with context.Pool(2) as pool:
        second = list(pool.imap_unordered(job, range(12, 20)))
    print(*sorted(first + second))
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
@pytest.mark.parametrize("inside", [False, True], ids=["runs in the pool", "a run around it"])
def test_leaving_a_pools_block_loses_no_call(method: str, inside: bool, server: ChatServer, tmp_path: Path) -> None:
    program = POOL.replace("with context", "with arttrace.trajectory(name='all'), context") if inside else POOL
    out = finish(python(program, tmp_path / "d", method, OPENAI_BASE_URL=server.url))
    assert sorted(out.split()) == sorted(" ".join(f"answer 0 to {number}" for number in range(20)).split())
    spans = finished_spans(tmp_path / "d")
    asked = [span.attributes[semconv.INPUT_MESSAGES] for span in spans if span.name == "chat m"]
    assert all(sum(f'"{number}"' in text for text in asked) == 1 for number in range(20))
    runs = build_trajectories(spans)
    assert [run.incomplete for run in runs] == ([""] * 2 if inside else [""] * 20)
