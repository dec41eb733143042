"""Nothing lost: what is spooled, and when, whatever happens to the process, its disk or its spool."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

import msgspec
import pytest
from chat_server import ChatServer
from openai import OpenAI
from small_disk import only_root, small_disk
from spool import read_spans

import arttrace
from arttrace.capture.base.settings import Settings
from arttrace.capture.context.flow import current_flow
from arttrace.capture.export import lifecycle
from arttrace.capture.export import recorder as recorder_module
from arttrace.capture.export.recorder import Counts, Recorder
from arttrace.records import semconv
from arttrace.records.record import Record, decode_record
from arttrace.records.rollout import RolloutJob, RolloutResult
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.journal import list_segments, read_segment
from arttrace.system.paths import DataDir

DEADLINE_S = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a state, not for a time."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"it never came to this: {what}"
        time.sleep(0.01)


def python(program: str, directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A Python process that runs `program` and records into `directory`."""
    env = {**os.environ, "ARTTRACE_DIR": str(directory), "OPENAI_API_KEY": "sk-test-0123456789", **environment}
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# --- in progress -------------------------------------------------------------------------------------------

WAITS = """
import sys, time
import arttrace
from openai import OpenAI
@arttrace.trajectory(metadata={"tier": 1})
def agent(text):
    OpenAI(base_url=sys.argv[1], timeout=300).chat.completions.create(
        model="m", messages=[{"role": "user", "content": text}])
agent("hang")
"""


def test_a_call_and_a_run_in_progress_are_in_the_spool_of_a_killed_process(tmp_path: Path, server: ChatServer) -> None:
    process = python(WAITS, tmp_path / "d", server.url)
    until(lambda: len(read_spans(tmp_path / "d")) >= 2, "the call and the run are in the spool")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run, call = sorted(read_spans(tmp_path / "d"), key=lambda span: span.start_ns)
    assert (run.end_ns, call.end_ns) == (0, 0)
    assert run.attributes[semconv.ENTRY_ARGUMENTS] == '{"text":"hang"}'
    assert run.attributes[semconv.METADATA] == '{"tier":1}'
    assert semconv.TRAJECTORY_SPAN_COUNT not in run.attributes
    assert call.attributes[semconv.OPERATION_NAME] == "chat"
    assert call.parent_span_id == run.span_id
    assert call.attributes[semconv.TRAJECTORY_ID] == run.attributes[semconv.TRAJECTORY_ID]


def test_a_call_in_progress_gives_way_to_the_finished_one(
    records: Callable[[], list[Record]], server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_SHOWN_AFTER_S", 0.01)
    client = OpenAI(base_url=server.url, api_key="sk-test-0123456789")
    with arttrace.trajectory(name="root"):
        asking = threading.Thread(
            target=client.chat.completions.create,
            kwargs={"model": "m", "messages": [{"role": "user", "content": "hang"}]},
        )
        asking.start()
        until(lambda: len(records()) == 2, "the run and its call are shown")
        server.hold.set()
        asking.join()
    rows = [record for record in records() if isinstance(record, SpanRow)]
    run, call, whole_call, whole_run = rows
    assert (run.span_id, call.span_id) == (whole_run.span_id, whole_call.span_id)
    assert (run.end_ns, call.end_ns) == (0, 0)
    assert min(whole_run.end_ns, whole_call.end_ns) > 0
    assert run.start_ns == whole_run.start_ns


def test_a_short_call_is_spooled_once_and_nothing_of_it_stays(
    spans: Callable[[], list[SpanRow]], server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_SHOWN_AFTER_S", 1000.0)
    with arttrace.trajectory(name="root"):
        OpenAI(base_url=server.url, api_key="sk-test-0123456789").chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}]
        )
        recorder = lifecycle.recorder()
        assert recorder.flush()
        assert len(recorder._open) == 1  # the root
    assert len(spans()) == 2
    assert recorder._open == {}


# --- the disk ----------------------------------------------------------------------------------------------


def span(number: int, size: int = 0) -> SpanRow:
    return SpanRow(f"{number + 1:032x}", f"{number + 1:016x}", f"span {number}", 1, 2, attributes={"x": "x" * size})


def test_the_prompts_of_a_conversation_are_on_the_disk_once_wherever_they_wait(tmp_path: Path) -> None:
    away = "http://127.0.0.1:9"
    data = {name: DataDir(tmp_path / name) for name in ("spool", "outbox")}
    receiver = arttrace.Receiver(away)
    places = {
        data["spool"].spool: Recorder(Settings(data["spool"], receivers=(receiver,))),
        data["outbox"].outbox: Recorder(Settings(data["outbox"], endpoint=away)),
    }
    asked, given = "", 0
    for number in range(60):
        asked += f"turn {number} " + os.urandom(500).hex()
        row = msgspec.structs.replace(span(number), attributes={semconv.INPUT_MESSAGES: asked})
        given += len(asked)
        for recorder in places.values():
            recorder.record(row)
    for place, recorder in places.items():
        assert recorder.flush(DEADLINE_S)
        for waits in (place, *recorder.settings.data.receivers.glob("*")):
            segments = list_segments(waits)
            assert sum(segment.path.stat().st_size for segment in segments) < given / 3
            records = [decode_record(payload) for each in segments for _, payload in read_segment(each.path)]
            prompts = [one.attributes[semconv.INPUT_MESSAGES] for one in records if isinstance(one, SpanRow)]
            assert (len(prompts), prompts[-1]) == (60, asked)
            assert all(asked.startswith(str(prompt)) for prompt in prompts)
        recorder.stop()
    assert len(list(data["spool"].receivers.glob("*"))) == 1


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")  # what fails here is meant to
    return Recorder(Settings(DataDir(tmp_path / "d")))


def test_what_is_recorded_is_synced_to_the_disk_though_nobody_asks_and_other_work_keeps_coming(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recorder_module._SYNC_INTERVAL_S <= 0.5  # a second is promised
    monkeypatch.setattr(recorder_module, "_SYNC_INTERVAL_S", 0.1)
    synced: list[int] = []
    monkeypatch.setattr("arttrace.system.journal.writer._datasync", lambda fd: synced.append(os.fstat(fd).st_size))
    recorder.record(span(0))

    def busy() -> bool:
        recorder.submit(lambda: None)
        [segment] = list_segments(recorder.settings.data.spool) or [None]
        return segment is not None and synced[-1:] == [segment.path.stat().st_size]

    until(busy, "the whole segment is synced")


def test_what_ends_while_the_disk_takes_its_time_is_in_the_spool_all_the_same(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_SYNC_INTERVAL_S", 0.01)
    began, goes_on = threading.Event(), threading.Event()

    def slow(_fd: int) -> None:
        began.set()
        goes_on.wait(10 * DEADLINE_S)

    monkeypatch.setattr("arttrace.system.journal.writer._datasync", slow)
    recorder.record(span(0))
    try:
        assert began.wait(DEADLINE_S)
        recorder.record(span(1))
        until(lambda: len(read_spans(recorder.settings.data.root)) == 2, "both are in the spool")
    finally:
        goes_on.set()
    assert recorder.flush(DEADLINE_S)


def test_flush_comes_back_after_the_sync_and_not_before(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr("arttrace.system.journal.writer._datasync", lambda _fd: order.append("synced"))
    write = os.write

    def noted(fd: int, data: bytes) -> int:
        order.append("written")
        return write(fd, data)

    monkeypatch.setattr(os, "write", noted)
    recorder.record(span(0))
    assert recorder.flush(DEADLINE_S)
    assert order[-1] == "synced"
    assert "written" in order


def test_a_disk_that_is_full_for_a_while_costs_what_was_refused_and_says_how_much(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "arttrace")
    write = os.write

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for episode in range(2):
        recorder.record(span(10 * episode))
        assert recorder.flush(DEADLINE_S)
        monkeypatch.setattr(os, "write", full)
        for number in range(3):
            recorder.record(span(10 * episode + 1 + number))
        assert recorder.flush(DEADLINE_S)
        monkeypatch.setattr(os, "write", write)
        recorder.record(span(10 * episode + 9))
        assert recorder.flush(DEADLINE_S)
    assert recorder.counts() == Counts(recorded=4, refused=6)
    assert [each.name for each in read_spans(recorder.settings.data.root)] == ["span 0", "span 9", "span 10", "span 19"]
    assert caplog.text.count("3 were refused and are lost") == 2
    assert caplog.text.count("failed again") >= 1


def test_a_spool_at_its_bound_refuses_and_the_rest_is_said_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    monkeypatch.setattr(recorder_module, "MAX_SPOOL_BYTES", 5000)
    recorder = Recorder(Settings(DataDir(tmp_path)))
    for number in range(10):
        recorder.record(span(number, size=1000))
    recorder.close()
    assert recorder.counts() == Counts(recorded=4, refused=6)
    assert "6 records could not be written and are lost" in caplog.text
    assert "Take it into the store, which makes room: `arttrace ls`" in caplog.text
    with Store.open(DataDir(tmp_path)):  # as that command does
        recorder.record(span(10, size=1000))
        recorder.close()
    assert recorder.counts() == Counts(recorded=5, refused=6)


@only_root
def test_a_real_disk_that_fills_up_and_has_room_again(tmp_path: Path, recorder: Recorder) -> None:
    disk = recorder.settings.data.root
    disk.mkdir()
    with small_disk(disk, "size=1m"), contextlib.closing(recorder):
        filler = disk / "filler"
        filler.write_bytes(bytes(900 << 10))
        for number in range(100):
            recorder.record(span(number, size=10_000))
        assert recorder.flush(DEADLINE_S)
        before = recorder.counts()
        assert before.recorded + before.refused == 100
        assert 0 < before.recorded < 100
        filler.unlink()
        recorder.record(span(100))
        assert recorder.flush(DEADLINE_S)
        names = [each.name for each in read_spans(disk)]  # each frame whole, no damage: read_spans checks
        assert len(names) == before.recorded + 1
        assert names[-1] == "span 100"


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on file sizes")
def test_a_bound_on_the_size_of_one_file_ends_a_segment_and_not_the_capture(tmp_path: Path) -> None:
    process = python(
        """
        import resource
        import arttrace
        from arttrace.capture.export import lifecycle
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # as `ulimit -f` does
        @arttrace.trajectory
        def agent(text):
            return text
        for number in range(10):
            agent("x" * 5000)
        assert arttrace.flush(60)
        print(lifecycle.counts().recorded, lifecycle.counts().refused)
        """,
        tmp_path / "d",
    )
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (out, err) == ("10 0\n", "")
    assert len(read_spans(tmp_path / "d")) == 10


def test_text_that_utf_8_cannot_hold_costs_a_character_and_not_the_span(recorder: Recorder) -> None:
    recorder.record(SpanRow("1" * 32, "2" * 16, "x", 1, 2, attributes={"said": "half \ud83d a pair", "n": [1, "y"]}))
    assert recorder.flush(DEADLINE_S)
    [kept] = read_spans(recorder.settings.data.root)
    assert kept.attributes == {"said": "half � a pair", "n": [1, "y"]}


def test_the_background_thread_inherits_nothing_of_the_users_context(recorder: Recorder) -> None:
    mine: ContextVar[str] = ContextVar("mine", default="nothing")
    token = mine.set("of the user")
    seen: list[object] = []
    try:
        with arttrace.trajectory(name="root"):
            recorder.submit(lambda: seen.extend([mine.get(), current_flow().scope]))
            assert recorder.flush(DEADLINE_S)
    finally:
        mine.reset(token)
    assert seen == ["nothing", None]


# --- kill -9 -----------------------------------------------------------------------------------------------

KILLS_ITSELF = """
import os, signal, sys, threading, time
import arttrace
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1])
kind = sys.argv[2]
def ask(number):
    answer = client.chat.completions.create(
        model=f"m{number}", messages=[{"role": "user", "content": "hi"}], stream=kind == "stream")
    if kind == "stream":
        for chunk in answer:
            if number % 2:
                break
        answer.close()
@arttrace.trajectory
def agent():
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if sys.argv[3:]:
        time.sleep(600)
    # 200 ms in which a thread of this process could run and write: on a loaded machine a clock says nothing about that
    def witness():
        with open(os.environ["ARTTRACE_DIR"] + ".witness", "ab") as file:
            for _ in range(20):
                time.sleep(0.01)
                file.write(bytes(4096))
                file.flush()
    other = threading.Thread(target=witness)
    other.start()
    other.join()
    os.kill(os.getpid(), signal.SIGKILL)
agent()
"""


def finished_calls(directory: Path) -> list[SpanRow]:
    calls = [each for each in read_spans(directory) if each.attributes[semconv.OPERATION_NAME] == "chat"]
    return [call for call in calls if call.end_ns]


def killed_after_four_calls(directory: Path, server: ChatServer, kind: str) -> None:
    process = python(KILLS_ITSELF, directory, server.url, kind)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGKILL
    assert {call.attributes[semconv.REQUEST_MODEL] for call in finished_calls(directory)} == {"m0", "m1", "m2", "m3"}


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_finished_calls_survive_kill_9_that_comes_before_their_run_is_over(tmp_path: Path, server: ChatServer) -> None:
    for number in range(3):
        directory = tmp_path / str(number)
        process = python(KILLS_ITSELF, directory, server.url, ("plain", "stream")[number % 2], "waits")
        until(lambda directory=directory: len(finished_calls(directory)) >= 4, "the calls are in the spool")
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
        models = sorted(call.attributes[semconv.REQUEST_MODEL] for call in finished_calls(directory))
        assert models == ["m0", "m1", "m2", "m3"]


@pytest.mark.full
def test_finished_calls_survive_kill_9_that_comes_200_ms_later_fifty_times(tmp_path: Path, server: ChatServer) -> None:
    for number in range(50):
        killed_after_four_calls(tmp_path / str(number), server, ("plain", "stream")[number % 2])


# --- callers know -------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on file sizes")
def test_a_rollout_whose_spans_the_disk_refuses_is_reported_as_failed(tmp_path: Path) -> None:
    (tmp_path / "entry.py").write_text(
        "import resource\n"
        "def run(size):\n"
        "    if size == 0: resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, -1))\n"
        "    return 'x' * size\n"
    )
    jobs = [
        RolloutJob(trajectory_id=f"t{size}", scenario="s", arguments={"size": size}, group="g", metadata={})
        for size in (10, 0, 9_000, 20)
    ]
    worker = subprocess.Popen(
        [sys.executable, "-m", "arttrace.capture.rollout.worker", f"{tmp_path / 'entry.py'}:run", "1"],
        env={**os.environ, "ARTTRACE_DIR": str(tmp_path / "d"), "ARTTRACE_RAISE": "0", "ARTTRACE_ENDPOINT": "http://x"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdout.readline()
    results = {}
    for job in jobs:
        worker.stdin.write(msgspec.json.encode(job) + b"\n")
        worker.stdin.flush()
        result = msgspec.json.decode(worker.stdout.readline(), type=RolloutResult)
        results[result.trajectory_id] = result.error
    worker.communicate(timeout=DEADLINE_S)
    assert (results["t10"], results["t0"], results["t20"]) == (None, None, None)
    assert "the spool refused while it ran: 1" in str(results["t9000"])
    assert {each.attributes[semconv.TRAJECTORY_ID] for each in read_spans(tmp_path / "d")} == {"t10", "t0", "t20"}
