"""The trajectory follows the program into child processes and their pools, and what they say of it is recorded."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from joined_program import agents, one_trajectory, run
from spool import finished_spans, read_spans

import arttrace
from arttrace.capture.base.remote_context import VARIABLE, RemoteContext, parse
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]


def test_a_child_process_joins_as_a_sub_agent(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "child.py").write_text(
        "import arttrace, sys; arttrace.init(); from asking import ask; ask(sys.argv[1], 'child')"
    )
    (tmp_path / "decorated.py").write_text(
        "import arttrace, sys; from asking import ask\n"
        "@arttrace.trajectory\ndef inner(url): ask(url, 'inner')\n"
        "inner(sys.argv[1])"
    )  # fmt: skip
    run(
        """
        import asyncio, pathlib, subprocess, sys
        import arttrace
        here = pathlib.Path(__file__).parent
        arttrace.init(project="reported", dir=here / "d")
        @arttrace.trajectory
        async def outer(url):
            subprocess.run([sys.executable, here / "child.py", url], check=True)
            process = await asyncio.create_subprocess_exec(sys.executable, here / "decorated.py", url)
            assert await process.wait() == 0
        asyncio.run(outer(sys.argv[1]))
        """,
        tmp_path,
        server.url,
        ARTTRACE_DIR=str(tmp_path / "elsewhere"),
    )
    trajectory = one_trajectory(tmp_path)
    assert agents(trajectory) == [("child", "outer", 1), ("inner", "outer", 1), ("outer", None, 0)]
    assert not (tmp_path / "elsewhere").exists()
    roots = [span for span in finished_spans(tmp_path / "d") if semconv.TRAJECTORY_SPAN_COUNT in span.attributes]
    assert sorted(root.attributes[semconv.TRAJECTORY_SPAN_COUNT] for root in roots) == [0, 1, 1]
    assert {root.attributes[semconv.PROJECT] for root in roots} == {"reported"}


def test_a_program_under_arttrace_run_joins_too(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "plain.py").write_text("import sys; from asking import ask; ask(sys.argv[1], 'plain')")
    run(
        """
        import pathlib, subprocess, sys
        import arttrace
        with arttrace.trajectory(name="outer"):
            script = str(pathlib.Path(__file__).parent / "plain.py")
            main = "from arttrace.commands import main; main()"
            command = [sys.executable, "-c", main, "run", "--quiet", "--", "python", script, sys.argv[1]]
            subprocess.run(command, check=True)
        """,
        tmp_path,
        server.url,
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    )
    assert agents(one_trajectory(tmp_path)) == [("outer", None, 0), ("plain", "outer", 1)]


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_multiprocessing_of_every_kind(how: str, tmp_path: Path) -> None:
    if how not in __import__("multiprocessing").get_all_start_methods():
        pytest.skip(f"no {how} here")
    run(
        """
        import multiprocessing, sys
        from concurrent.futures import ProcessPoolExecutor
        import arttrace
        @arttrace.agent
        def worker(n): pass
        def job(n): worker(n); return n
        if __name__ == "__main__":
            context = multiprocessing.get_context(sys.argv[1])
            with ProcessPoolExecutor(1, mp_context=context) as executor:
                with arttrace.trajectory(name="first"):
                    pool = context.Pool(1)
                    process = context.Process(target=worker, args=(1,))
                    process.start(); process.join()
                    assert process.exitcode == 0
                    assert not hasattr(process, "_arttrace")
                    assert executor.submit(job, 7).result() == 7
                with arttrace.trajectory(name="second"):
                    assert executor.submit(job, 7).result() == 7
                    assert pool.map(job, [7, 7]) == [7, 7]
                assert executor.submit(job, 7).result() == pool.apply(job, [7]) == 7  # outside: nobody's
                pool.close(); pool.join()
        """,
        tmp_path,
        how,
    )
    first, second = build_trajectories(read_spans(tmp_path / "d"))
    assert agents(first) == [("first", None, 0), ("worker", "first", 0), ("worker", "first", 0)]
    assert agents(second) == [("second", None, 0), *[("worker", "second", 0)] * 3]
    assert (first.incomplete, second.incomplete) == ("", "")


SHOW = [sys.executable, "-S", "-c", "import json, os; print(json.dumps(dict(os.environ)))"]


@pytest.mark.parametrize("env", [None, {}, {"A": "1", "ARTTRACE_CONTEXT": "old"}])
def test_a_child_gets_the_environment_it_was_given_and_one_variable(env: Any, spans: Spans) -> None:
    def shown() -> dict[str, str]:
        return json.loads(subprocess.run(SHOW, env=env, capture_output=True, check=True).stdout)  # type: ignore[no-any-return]

    outside = shown()
    with arttrace.trajectory(name="run") as root:
        inside = shown()
        with arttrace.no_capture():
            assert shown() == outside
        positional = subprocess.Popen(SHOW, -1, None, None, subprocess.PIPE, None, None, True, False, None, env)
        assert set(json.loads(positional.communicate()[0])) == set(inside)
    carried = parse(inside.pop(VARIABLE))
    assert carried is not None
    assert carried.trajectory_id == root.id
    outside.pop(VARIABLE, None)
    assert inside == outside


WAYS: dict[str, Callable[[list[str]], int]] = {
    "system": lambda command: os.system(shlex.join(command)),
    "system, of bytes": lambda command: os.system(shlex.join(command).encode()),
    "spawnv": lambda command: os.spawnv(os.P_WAIT, command[0], command),
    "spawnlpe": lambda command: os.spawnlpe(os.P_WAIT, command[0], *command, os.environ),
    "posix_spawn": lambda command: os.waitpid(os.posix_spawn(command[0], command, os.environ), 0)[1],
    "posix_spawnp": lambda command: os.waitpid(os.posix_spawnp(command[0], command, dict(os.environ)), 0)[1],
    "pty": lambda command: pty.spawn(command),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_os_starts_gets_the_same(way: str, tmp_path: Path, spans: Spans, capfd: Any) -> None:
    file = tmp_path / "it's"
    write = "import json, os, sys; open(sys.argv[1], 'w').write(json.dumps(dict(os.environ))); sys.exit(3)"
    status = {0}

    def shown() -> dict[str, str]:
        status.add(WAYS[way]([sys.executable, "-S", "-c", write, str(file)]))
        found = json.loads(file.read_text())
        return {name: value for name, value in found.items() if name not in ("_", "SHLVL")}  # the shell's own

    outside = shown()
    with arttrace.trajectory(name="run") as root:
        inside = shown()
        with arttrace.no_capture():
            assert shown() == outside
    carried = parse(inside.pop(VARIABLE))
    assert carried is not None
    assert carried.trajectory_id == root.id
    assert (inside, len(status)) == (outside, 2), "each time it ended alike"
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if "gRPC, skipping fork() handlers" not in line] == []  # of a test before, in here


def test_an_environment_of_bytes_has_the_variable_once(
    tmp_path: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a child that was told its place itself: it read the older of two."""
    file = tmp_path / "found"
    command = [sys.executable, "-S", "-c", f"import os, sys; open(sys.argv[1], 'w').write(os.environ[{VARIABLE!r}])"]
    monkeypatch.setenv(VARIABLE, "older")
    with arttrace.trajectory(name="run") as root:
        pid = os.posix_spawn(command[0], [*command, str(file)], dict(os.environb))
    assert os.waitpid(pid, 0)[1] == 0
    carried = parse(file.read_text())
    assert carried is not None
    assert carried.trajectory_id == root.id


def test_a_program_that_os_starts_joins_as_a_sub_agent(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text("import arttrace, sys\nwith arttrace.trajectory(name=sys.argv[1]):\n    pass")
    run(
        """
        import os, pathlib, sys
        import arttrace
        child = str(pathlib.Path(__file__).parent / "child.py")
        with arttrace.trajectory(name="outer"):
            assert os.system(f"'{sys.executable}' '{child}' system") == 0
            if (pid := os.fork()) == 0:
                os.execv(sys.executable, [sys.executable, child, "exec"])
            os.waitpid(pid, 0)
        """,
        tmp_path,
    )
    assert agents(one_trajectory(tmp_path)) == [("exec", "outer", 0), ("outer", None, 0), ("system", "outer", 0)]


def test_what_os_refuses_is_refused_as_before(spans: Spans) -> None:
    wrong: list[Callable[[], Any]] = [
        lambda: os.system(7),  # type: ignore[arg-type]
        lambda: os.system("a\0b"),
        lambda: os.system(),  # type: ignore[call-arg]
        lambda: os.execv("/nowhere", ["x"]),
        lambda: os.execv("/nowhere", []),
        lambda: os.execve("/nowhere", ["x"], 7),  # type: ignore[arg-type]
        lambda: os.execve("/nowhere", ["x"]),  # type: ignore[call-arg]
        lambda: os.execve("/nowhere", ["x"], None),  # type: ignore[arg-type]
        lambda: os.posix_spawn("/nowhere", ["x"], {}),
        lambda: os.posix_spawn("/nowhere", ["x"], 7),  # type: ignore[arg-type]
        lambda: os.spawnv(os.P_NOWAIT, "/nowhere", []),
    ]

    def refused(call: Callable[[], Any]) -> tuple[type[BaseException], str]:
        with pytest.raises((OSError, TypeError, ValueError)) as refusal:
            call()
        return refusal.type, str(refusal.value)

    bare = [refused(call) for call in wrong]
    with arttrace.trajectory(name="run"):
        assert [refused(call) for call in wrong] == bare


def test_what_popen_refuses_is_refused_as_before(spans: Spans) -> None:
    with pytest.raises((AttributeError, TypeError)) as bare:  # Python's own words: from 3.13 on it has others
        subprocess.Popen(SHOW, env=7)  # type: ignore[call-overload]
    with arttrace.trajectory(name="run"):
        with pytest.raises(type(bare.value), match=f"^{re.escape(str(bare.value))}$"):
            subprocess.Popen(SHOW, env=7)  # type: ignore[call-overload]
        with pytest.raises(FileNotFoundError):
            subprocess.Popen(["/nowhere/at all"])


def test_a_pool_that_cannot_pickle_says_so_as_before(spans: Spans) -> None:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.pool import ThreadPool

    with arttrace.trajectory(name="run") as root, ProcessPoolExecutor(1) as executor:
        with pytest.raises(Exception, match="pickle"):
            executor.submit(lambda: 1).result()
        with ThreadPool(1) as pool:
            assert pool.apply(lambda: arttrace.current_trajectory().id) == root.id  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"00-{'1' * 32}-{'1' * 16}-0%FF;trajectory=%FF",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01;trajectory=a",
        "00-" + "1" * 32 + "-" + "1" * 16 + "-01;",
    ],
)
def test_a_line_that_says_nothing_joins_nothing(text: str, monkeypatch: pytest.MonkeyPatch, spans: Spans) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with arttrace.trajectory(name="alone"):
        pass
    (root,) = spans()
    assert root.parent_span_id is None


@pytest.mark.parametrize("directory", ["/data dir", os.fsdecode(b"/data \xff"), "/data \ud800"])
def test_a_line_comes_back_as_it_was(directory: str) -> None:
    sent = RemoteContext(1, 2, "run; of, ä=1", "e" * 16, "redacted", "my project", directory)
    assert parse(sent.text()) == sent
    assert sent.text().isascii()
    assert not set(sent.text()) & set(' ,"\\')


def test_a_line_of_somebody_elses_bytes_is_read_as_far_as_it_is_text() -> None:
    read = parse(f"00-{'1' * 32}-{'1' * 16}-01;trajectory=run%FF")
    assert read is not None
    assert read.trajectory_id == "run\ufffd"


def test_an_update_after_the_end_is_reported_once(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    with arttrace.trajectory(name="run") as run:
        pass
    run.update(tags=["late"])
    run.update(tags=["late"])
    assert [span.name for span in spans()] == ["invoke_agent run"]
    heard = [record.getMessage() for record in caplog.records]
    assert heard == [f"arttrace: update after the end of trajectory {run.id!r} is not recorded"]


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_what_child_processes_say_is_recorded(how: str, tmp_path: Path) -> None:
    if how not in __import__("multiprocessing").get_all_start_methods():
        pytest.skip(f"no {how} here")
    run(
        """
        import multiprocessing, subprocess, sys
        import arttrace
        def job(name):
            arttrace.update(tags=[name], metadata={name: 1, "root": 0})
        @arttrace.agent
        def worker():
            arttrace.update(tags=["worker"], metadata={"worker": 1})
        if __name__ == "__main__":
            context = multiprocessing.get_context(sys.argv[1])
            with arttrace.trajectory(name="outer", metadata={"root": 1}):
                for target, args in ((job, ("process",)), (worker, ())):
                    process = context.Process(target=target, args=args)
                    process.start(); process.join()
                    assert process.exitcode == 0
                with context.Pool(1) as pool:
                    pool.map(job, ["pool"])
                program = "import arttrace; arttrace.init(); arttrace.update(tags=['program'])"
                subprocess.run([sys.executable, "-c", program], check=True)
        """,
        tmp_path,
        how,
    )
    trajectory = one_trajectory(tmp_path)
    assert trajectory.tags == ("process", "worker", "pool", "program")
    assert trajectory.metadata == {"root": 1, "process": 1, "worker": 1, "pool": 1}
    assert [name for name, _, _ in agents(trajectory) if name in ("outer", "worker")] == ["outer", "worker"]
    assert len(trajectory.agents) == 3


def test_a_nested_trajectory_adds_its_tags_and_metadata_to_the_run(spans: Spans) -> None:
    inner = arttrace.trajectory(name="inner", tags=["inner", "both"], metadata={"inner": 1, "shared": "inner"})
    with arttrace.trajectory(name="outer", tags=["both"], metadata={"shared": "outer"}), inner, inner:
        pass
    (run,) = build_trajectories(spans())
    assert run.tags == ("both", "inner")
    assert run.metadata == {"shared": "outer", "inner": 1}


def test_what_a_nested_trajectory_says_takes_nothing_back(spans: Spans) -> None:
    inner = arttrace.trajectory(name="inner", metadata={"stage": "draft"})
    with arttrace.trajectory(name="outer"):
        with inner:
            arttrace.update(metadata={"stage": "final"})
        with inner:
            pass
    (run,) = build_trajectories(spans())
    assert run.metadata == {"stage": "final"}


@pytest.mark.parametrize("how", ["fork", "spawn", "pool", "program"])
def test_a_trajectory_that_joins_a_run_adds_its_tags_and_metadata(how: str, tmp_path: Path) -> None:
    if how == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    run(
        """
        import multiprocessing, pathlib, subprocess, sys
        import arttrace
        @arttrace.trajectory(tags=["inner"], metadata={"inner": 1, "shared": "inner"})
        def inner(): pass
        if __name__ == "__main__":
            how = sys.argv[1]
            with arttrace.trajectory(name="outer", tags=["outer"], metadata={"shared": "outer"}):
                if how == "program":
                    here = str(pathlib.Path(__file__).parent)
                    program = f"import sys; sys.path.insert(0, {here!r}); from program import inner; inner()"
                    subprocess.run([sys.executable, "-c", program], check=True)
                elif how == "pool":
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        pool.apply(inner)
                else:
                    process = multiprocessing.get_context(how).Process(target=inner)
                    process.start(); process.join()
                    assert process.exitcode == 0
        """,
        tmp_path,
        how,
    )
    trajectory = one_trajectory(tmp_path)
    assert [agent.name for agent in trajectory.agents] == ["outer", "inner"]
    assert trajectory.tags == ("outer", "inner")
    assert trajectory.metadata == {"shared": "outer", "inner": 1}
