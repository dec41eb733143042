"""The recorder where the interpreter interferes: a finalizer in the wrong moment, an exit in which something fails."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spool import read_spans

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.base.settings import Settings
from arttrace.capture.context import program
from arttrace.capture.export import lifecycle
from arttrace.capture.export import recorder as recorder_module
from arttrace.capture.export import spool as spool_module
from arttrace.capture.export.recorder import Recorder
from arttrace.capture.patches import hooks
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.system import native_threads
from arttrace.system.journal import list_segments
from arttrace.system.paths import DataDir
from arttrace.wire.content import ContentRules


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(Settings(DataDir(tmp_path)))


def test_a_call_that_garbage_collection_ends_while_the_worker_starts_blocks_nobody(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    start = native_threads.Thread.start

    def collecting(self: native_threads.Thread) -> None:
        if "collected" not in ran:
            ran.append("collected")
            recorder.submit(lambda: ran.append("of the finalizer"))  # what the end of a dropped stream does
        start(self)

    monkeypatch.setattr(native_threads.Thread, "start", collecting)
    user = threading.Thread(target=recorder.submit, args=(lambda: ran.append("of the call"),), daemon=True)
    user.start()
    user.join(60)
    assert not user.is_alive(), "the user's thread waits for a lock that it holds itself"
    assert recorder.flush(60)
    assert ran == ["collected", "of the call", "of the finalizer"]


def test_a_worker_that_dies_is_replaced_by_the_next_job(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARTTRACE_RAISE", raising=False)
    guard.failures.clear()
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "_work_off", lambda: 1 / 0)  # dies while its start has not yet returned
        recorder.submit(list)
        while recorder._worker is not None:
            time.sleep(0.001)
    ran = threading.Event()
    recorder.submit(ran.set)
    assert ran.wait(60)
    assert guard.failures == {"recording in the background": 1}


@pytest.mark.parametrize("error", [MemoryError, RuntimeError("can't start new thread"), KeyboardInterrupt])
def test_a_worker_that_cannot_start_is_started_by_the_next_job(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def refusing(_: native_threads.Thread) -> None:
        raise error

    with monkeypatch.context() as patch, contextlib.suppress(MemoryError, KeyboardInterrupt):
        patch.setattr(native_threads.Thread, "start", refusing)
        recorder.submit(list)
    ran = threading.Event()
    recorder.submit(ran.set)
    assert ran.wait(60)


def test_what_was_recorded_is_sealed_at_exit_though_something_else_fails(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> None:
        raise RuntimeError("Set changed size during iteration")

    monkeypatch.setattr(lifecycle, "_recorder", recorder)
    monkeypatch.setattr(lifecycle, "before_exit", [failing])
    monkeypatch.delenv("ARTTRACE_RAISE", raising=False)
    recorder.record(Reward(id="r", trajectory_id="t", value=1.0))
    lifecycle.at_exit()
    [segment] = list_segments(recorder.settings.data.spool)
    assert segment.path.suffix == ".seg"


def test_while_the_program_exits_calls_are_written_before_they_return_unless_the_disk_hangs(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.exit()
    for number in range(3):
        recorder.record(Reward(id=str(number), trajectory_id="t", value=1.0))
        assert recorder.counts().recorded == number + 1
    hangs = threading.Event()
    monkeypatch.setattr(recorder._spool, "write", lambda payloads: hangs.wait(300))
    monkeypatch.setattr(recorder, "_patience_s", 0.2)
    for number in range(1000):  # all of them together wait no longer than that
        recorder.record(Reward(id=f"late {number}", trajectory_id="t", value=1.0))
    assert recorder._patience_s <= 0
    hangs.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("module", [guard, lifecycle, hooks, program])
def test_a_fork_while_another_thread_holds_a_lock_leaves_none_behind(module: Any) -> None:
    with module._lock:  # another thread of the parent's holds it
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends this process
            with module._lock:
                os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_flush_does_not_wait_for_more_calls_to_come(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.capture.export.recorder.GATHER_S", 1000.0)
    ran: list[int] = []
    for number in range(3):
        recorder.submit(lambda number=number: ran.append(number))
        assert recorder.flush(60)
    assert ran == [0, 1, 2]


def test_a_recorder_that_is_replaced_while_the_program_ends_waits_for_nothing(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.submit(list)
    recorder.exit()
    asked: list[float | None] = []
    monkeypatch.setattr(recorder, "hand_over", asked.append)
    recorder.stop()
    assert asked == [], "the worker ends, and does nothing that is behind its end"


def test_what_ends_together_is_written_together_and_what_finds_no_room_is_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARTTRACE_RAISE", raising=False)
    monkeypatch.setattr("arttrace.capture.export.worker_pacing._TURN_S", 60.0)
    monkeypatch.setattr("arttrace.capture.export.worker_pacing._CROWDED_S", 60.0)
    monkeypatch.setattr(recorder_module, "GATHER_S", 60.0)
    recorder = Recorder(Settings(DataDir(tmp_path)))
    appended: list[tuple[bytes, ...]] = []
    append = recorder._spool.journal.append

    def small(*payloads: bytes) -> None:
        if sum(map(len, payloads)) > 2000:
            raise OSError(28, "No space left on device")
        append(*payloads)
        appended.append(payloads)

    monkeypatch.setattr(recorder._spool.journal, "append", small)

    def record(*texts: str) -> None:
        for number, text in enumerate(texts):
            recorder.record(Reward(id=f"{len(appended)}-{number}", trajectory_id=text, value=1.0))
        assert recorder.flush(60)

    record("a", "b", "c")
    assert [len(payloads) for payloads in appended] == [3]
    record("d", "x" * 3000, "e")
    assert [len(payloads) for payloads in appended] == [3, 1, 1]
    assert (recorder.counts().recorded, recorder.counts().refused) == (5, 1)


def test_a_disk_that_is_almost_full_is_logged_a_few_times_and_every_loss_counted(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ARTTRACE_RAISE", raising=False)
    guard.failures.clear()
    append = recorder._spool.journal.append
    tries = iter(range(10_000))

    def almost_full(*payloads: bytes) -> None:
        if next(tries) % 2:
            raise OSError(28, "No space left on device")
        append(*payloads)

    monkeypatch.setattr(recorder._spool.journal, "append", almost_full)
    for number in range(200):
        recorder.record(Reward(id=str(number), trajectory_id="t", value=1.0))
        assert recorder.hand_over(60)
    assert recorder.counts().refused == 100
    assert len(caplog.records) == 1 + spool_module._MAX_WARNINGS
    monkeypatch.setattr(recorder._spool, "_warn_at", 0.0)  # a minute later
    for number in range(4):
        recorder.record(Reward(id=str(number), trajectory_id="t", value=1.0))
        assert recorder.hand_over(60)
    assert len(caplog.records) == 2 + spool_module._MAX_WARNINGS
    recorder.close()
    said = [
        int(number) for record in caplog.records for number in re.findall(r"(\d+) (?:were|records)", record.message)
    ]
    assert sum(said) == recorder.counts().refused == 102


def test_in_a_crowd_the_interpreter_is_given_up_for_the_writes_alone(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gives it up waits behind all threads that want it: ten calls that ended meanwhile, and take 1.5 ms each,
    have the worker wait once per turn."""
    submitted = [10.0]
    given_up: list[object] = []
    append, began = recorder._spool.journal.append, native_threads.Event()

    class Jobs(native_threads.SimpleQueue):  # type: ignore[type-arg]
        def get_nowait(self) -> Any:
            if not began.is_set():  # the worker waits for the first job, and has it 50 ms late
                began.set()
                given_up.clear()
                raise native_threads.Empty
            return super().get_nowait()

    def late() -> float:
        return submitted[0] + (0.05 if native_threads.is_ours() else 0.0)

    def written(*records: bytes) -> None:
        given_up.append(len(records))
        append(*records)

    monkeypatch.setattr(recorder_module, "time", SimpleNamespace(monotonic=late))
    monkeypatch.setattr(native_threads, "sleep", given_up.append)
    monkeypatch.setattr(recorder._hurry, "wait", given_up.append)
    monkeypatch.setattr(recorder._spool.journal, "append", written)
    recorder._jobs, all_there, done = Jobs(), native_threads.Event(), native_threads.Event()

    def work(number: int) -> None:
        submitted[0] += 0.0015
        recorder.append(Reward(id=str(number), trajectory_id="t", value=1.0))

    recorder.submit(lambda: all_there.wait(60))
    for number in range(10):
        recorder.submit(partial(work, number))
    recorder.submit(done.set)
    all_there.set()
    assert done.wait(60)
    assert recorder.flush(60)
    assert given_up == [3, 3, 3, 1]
    assert recorder.counts().recorded == 10


def test_what_is_written_goes_to_the_disk_where_no_thread_can_be_started_for_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    twice = threading.Event()
    start = native_threads.Thread.start

    def refusing(self: native_threads.Thread) -> None:
        if recorder._worker is not self:
            raise RuntimeError("can't start new thread")
        start(self)

    def sync() -> None:
        synced.append(1)
        if len(synced) > 1:
            twice.set()
        else:
            recorder.record(Reward("r", "a" * 32, 1.0))

    monkeypatch.setattr(native_threads.Thread, "start", refusing)
    monkeypatch.setattr(recorder_module, "_SYNC_INTERVAL_S", 0.01)
    monkeypatch.setattr(recorder._spool, "sync", sync)
    recorder.record(Reward("r", "a" * 32, 1.0))
    assert twice.wait(30), "written once, and nothing that came later"


def test_a_forked_child_does_not_count_what_its_parent_had_no_room_for(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARTTRACE_RAISE", raising=False)
    monkeypatch.setattr(recorder_module, "MAX_WAITING_BYTES", 0)
    recorder.submit(lambda: None, weight=1)
    assert recorder.counts().refused == 1
    recorder.after_fork_in_child()
    assert recorder.counts().refused == 0


def test_a_run_whose_root_cannot_be_recorded_is_not_taken_for_one_that_went_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sampling leaves out is a run that is known to have no error; of this one only its calls are known."""
    monkeypatch.delenv("ARTTRACE_RAISE", raising=False)
    arttrace.init(dir=tmp_path, sample=0.0)
    span = ContentRules.span

    def failing(self: ContentRules, attributes: dict[str, Any], *rest: Any) -> Any:
        if attributes.get(semconv.AGENT_NAME) == "run":
            raise MemoryError
        return span(self, attributes, *rest)

    monkeypatch.setattr(ContentRules, "span", failing)
    left_out = lifecycle.counts().left_out  # by the tests before

    @arttrace.tool
    def tool() -> None: ...

    @arttrace.trajectory
    def run() -> None:
        tool()

    run()
    assert arttrace.flush(60)
    assert lifecycle.counts().left_out == left_out
    assert [span.name for span in read_spans(tmp_path)] == ["execute_tool tool"]
