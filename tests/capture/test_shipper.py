"""Shipping: every record reaches the collector, or is counted, whoever is away, dies, refuses or is slow."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from forks import UNSAID
from otlp_receiver import OK, Receiver, Reply, receiving
from reserved_port import reserved_port

from arttrace.capture.base import receiver as capture_receiver
from arttrace.capture.base.settings import Settings
from arttrace.capture.export.recorder import Recorder
from arttrace.capture.export.shipping import delivery
from arttrace.capture.export.shipping.delivery import ShippingLock
from arttrace.capture.export.shipping.otlp_client import OtlpClient
from arttrace.records.record import decode_record, encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.system.journal import JournalWriter, list_segments, read_segment
from arttrace.system.paths import DataDir

DEADLINE_S = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"it never came to this: {what}"
        time.sleep(0.01)


def span(number: int, **given: object) -> SpanRow:
    whole = {"trace_id": f"{number + 1:032x}", "name": f"span {number}", "start_ns": 1, "end_ns": 2}
    return SpanRow(span_id=id_of(number), **{**whole, **given})  # type: ignore[arg-type]


def id_of(number: int) -> str:
    return f"{number + 1:016x}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "d")


@pytest.fixture
def record_to(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Recorder]]:
    """Makes recorders that ship to an endpoint."""
    monkeypatch.setattr("arttrace.capture.export.shipping.shipper._FIRST_WAIT_S", 0.05)
    monkeypatch.setattr("arttrace.capture.export.shipping.shipper._LONGEST_WAIT_S", 0.2)
    made: list[Recorder] = []

    def make(endpoint: str, api_key: str | None = None) -> Recorder:
        made.append(Recorder(Settings(data, endpoint=endpoint, api_key=api_key)))
        return made[-1]

    yield make
    for recorder in made:
        recorder.destinations.shipper().stop()


def left(data: DataDir) -> list[str]:
    """The segments that are still in the outbox."""
    return [segment.name for segment in list_segments(data.outbox)]


def test_what_is_recorded_arrives_while_the_segment_is_still_written_and_leaves_when_it_is_sealed(
    record_to: Callable[[str], Recorder], receiver: Receiver, data: DataDir
) -> None:
    recorder = record_to(receiver.url)
    recorder.record(span(0))
    until(lambda: len(receiver.spans) == 1, "the first span has arrived")
    assert len(left(data)) == 1
    recorder.record(span(1))
    until(lambda: len(receiver.spans) == 2, "the second has arrived")
    assert receiver.spans == [span(0), span(1)]  # each once: the offset is remembered
    recorder.close()
    assert recorder.deliver(DEADLINE_S)
    assert left(data) == []
    assert recorder.counts().delivered == 2
    assert not data.spool.exists()


def test_the_token_goes_along_and_is_in_no_log_and_no_repr(
    data: DataDir, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.always = lambda _spans: (401, {}, b"")
    settings = Settings(data, endpoint=receiver.url, api_key="sk-secret-0123456789")
    recorder = Recorder(settings)
    recorder.record(span(0))
    until(lambda: "401" in caplog.text, "the collector has refused the token, and that is said")
    recorder.destinations.shipper().stop()
    assert receiver.headers[0]["authorization"] == "Bearer sk-secret-0123456789"
    assert "401" in caplog.text
    assert "secret" not in caplog.text + repr(settings)
    assert len(left(data)) == 1  # a wrong token costs nothing


def test_an_attempt_that_began_before_the_collector_was_set_right_decides_nothing(
    record_to: Callable[[str], Recorder], receiver: Receiver, data: DataDir
) -> None:
    asked, waited_for = threading.Event(), threading.Event()

    def refuse(_spans: list[SpanRow]) -> Reply:
        asked.set()
        waited_for.wait(60)
        return 401, {}, b""

    receiver.script = [refuse]
    recorder = record_to(receiver.url)
    recorder.record(span(0))
    recorder.close()
    assert asked.wait(60)
    shipper = recorder.destinations.shipper()
    outcome = shipper.begin_drain()
    waited_for.set()
    until(lambda: outcome(True) is not None, "it is known whether it was delivered")
    shipper.end_drain()
    assert outcome(True)
    assert (receiver.ids(), left(data)) == ({id_of(0)}, [])


def test_a_collector_that_is_away_gets_everything_when_it_is_back(
    record_to: Callable[[str], Recorder], data: DataDir, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "arttrace")
    with reserved_port() as port:
        recorder = record_to(f"http://127.0.0.1:{port}")
        for number in range(20):
            recorder.record(span(number))
        until(lambda: recorder.destinations.shipper().outages >= 3, "it has tried three times")
        recorder.close()
        assert not recorder.deliver(5, patient=False)  # at exit nobody waits for a collector that is away
        with receiving(port) as receiver:
            until(lambda: len(receiver.ids()) == 20, "all have arrived")
            until(lambda: "accepts spans again" in caplog.text, "their answer has been read")
    assert caplog.text.count("does not answer") == 1  # said once per outage
    assert str(data.outbox) in caplog.text
    assert caplog.text.count("accepts spans again") == 1


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504, 500])
def test_a_busy_collector_is_asked_again_after_the_time_it_names(
    record_to: Callable[[str], Recorder], receiver: Receiver, status: int
) -> None:
    asked: list[float] = []

    def busy(_spans: list[SpanRow]) -> Reply:
        asked.append(time.monotonic())
        return (status, {"retry-after": "1"} if status == 503 else {}, b"")

    def taken(_spans: list[SpanRow]) -> Reply:
        asked.append(time.monotonic())
        return OK

    receiver.script = [busy, busy, taken]
    recorder = record_to(receiver.url)
    recorder.record(span(0))
    until(lambda: receiver.spans, "the span has arrived")
    assert receiver.spans == [span(0)]
    if status == 503:
        assert min(later - earlier for earlier, later in pairwise(asked)) >= 1.0


def test_one_bad_span_is_refused_alone_kept_and_counted(
    record_to: Callable[[str], Recorder], receiver: Receiver, data: DataDir
) -> None:
    receiver.always = lambda spans: (
        (400, {}, b"\x12\x08bad span") if id_of(7) in {each.span_id for each in spans} else OK
    )
    recorder = record_to(receiver.url)
    for number in range(20):
        recorder.append(span(number))
    recorder.close()
    assert recorder.deliver(DEADLINE_S)
    assert receiver.ids() == {id_of(number) for number in range(20)} - {id_of(7)}
    assert (recorder.counts().delivered, recorder.counts().rejected) == (19, 1)
    [kept] = list_segments(data.outbox / "refused")
    assert [decode_record(payload) for _, payload in read_segment(kept.path)] == [span(7)]


def test_a_batch_that_is_too_large_is_split(record_to: Callable[[str], Recorder], receiver: Receiver) -> None:
    receiver.always = lambda spans: (413, {}, b"") if len(spans) > 3 else OK
    recorder = record_to(receiver.url)
    for number in range(20):
        recorder.append(span(number))
    recorder.close()
    assert recorder.deliver(DEADLINE_S)
    assert len(receiver.spans) == 20


def test_a_span_on_which_the_collector_fails_does_not_hold_up_the_others(
    record_to: Callable[[str], Recorder], receiver: Receiver
) -> None:
    receiver.always = lambda spans: (500, {}, b"") if id_of(0) in {each.span_id for each in spans} else OK
    recorder = record_to(receiver.url)
    for number in range(5):
        recorder.append(span(number))
    recorder.close()
    assert recorder.deliver(DEADLINE_S)
    assert receiver.ids() == {id_of(number) for number in range(1, 5)}
    assert recorder.counts().rejected == 1


def test_a_collector_that_recovers_while_a_span_of_a_batch_is_looked_for_gets_them_all(
    record_to: Callable[[str], Recorder], receiver: Receiver
) -> None:
    """It was refused for good what it failed on once, beside another that it took."""
    fails: Reply = (500, {}, b"")
    at_first = [lambda _spans: fails] * delivery._TRIES_BEFORE_BLAME
    receiver.script = [*at_first, lambda _spans: OK, *[lambda _spans: fails] * 3]  # the first half is taken
    recorder = record_to(receiver.url)
    for number in range(4):
        recorder.append(span(number))
    recorder.close()
    assert recorder.deliver(DEADLINE_S)
    assert receiver.ids() == {id_of(number) for number in range(4)}
    assert recorder.counts().rejected == 0


def test_a_collector_that_fails_on_everything_costs_nothing(
    record_to: Callable[[str], Recorder], receiver: Receiver
) -> None:
    receiver.always = lambda _spans: (500, {}, b"")
    recorder = record_to(receiver.url)
    for number in range(3):
        recorder.append(span(number))
    recorder.close()
    until(lambda: recorder.destinations.shipper().outages > 2 * delivery._TRIES_BEFORE_BLAME, "it has tried often")
    assert recorder.counts().rejected == 0
    receiver.always = lambda _spans: OK
    assert recorder.deliver(DEADLINE_S)
    assert receiver.ids() == {id_of(number) for number in range(3)}


def test_partial_success_is_counted(
    record_to: Callable[[str], Recorder], receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    partly: Reply = (200, {}, b"\x0a\x0c\x08\x01\x12\x08too late")
    receiver.always = lambda spans: partly if id_of(3) in {each.span_id for each in spans} else OK
    recorder = record_to(receiver.url)
    for number in range(5):
        recorder.append(span(number))
    recorder.close()
    assert recorder.deliver(DEADLINE_S)
    assert (recorder.counts().delivered, recorder.counts().rejected) == (4, 1)
    assert "too late" in caplog.text


def test_a_collector_that_dies_between_its_journal_and_its_answer_gets_them_again(
    record_to: Callable[[str], Recorder], receiver: Receiver
) -> None:
    def journalled_but_not_answered(spans: list[SpanRow]) -> None:
        receiver.spans += spans

    receiver.script = [journalled_but_not_answered]
    recorder = record_to(receiver.url)
    recorder.append(span(0))
    recorder.close()
    assert recorder.deliver(DEADLINE_S)
    assert receiver.spans == [span(0), span(0)]


def test_calls_in_progress_go_to_our_own_collector_only(
    record_to: Callable[[str], Recorder], receiver: Receiver
) -> None:
    for ours in (False, True):
        receiver.ours, receiver.spans = ours, []
        recorder = record_to(receiver.url)
        recorder.append(span(0, end_ns=0))
        recorder.append(span(1))
        recorder.close()
        assert recorder.deliver(DEADLINE_S)
        recorder.destinations.shipper().stop()
        assert receiver.ids() == ({id_of(0), id_of(1)} if ours else {id_of(1)})


def test_rewards_are_sent_as_evaluation_events(record_to: Callable[[str], Recorder], receiver: Receiver) -> None:
    recorder = record_to(receiver.url)
    recorder.append(Reward("r", "t", 0.5, time_ns=7))
    recorder.close()
    assert recorder.deliver(DEADLINE_S)
    assert [each.name for each in receiver.spans] == ["evaluate reward"]


def test_the_leftovers_of_a_dead_process_are_shipped_by_the_next(
    record_to: Callable[[str], Recorder], receiver: Receiver, data: DataDir
) -> None:
    dead = JournalWriter(data.outbox)
    for number in range(3):
        dead.append(encode_record(span(number)))
    os.close(dead._fd or -1)  # as the system does with the files of a killed process
    dead._fd = None
    [segment] = list_segments(data.outbox)
    with segment.path.open("ab") as file:
        file.write(b"\xa7\x0ff\xd5half a frame")
    recorder = record_to(receiver.url)
    recorder.record(span(9))
    until(lambda: receiver.ids() == {id_of(number) for number in (0, 1, 2, 9)}, "all four have arrived")


def test_a_damaged_stretch_is_counted_and_kept(
    record_to: Callable[[str], Recorder], receiver: Receiver, data: DataDir
) -> None:
    writer = JournalWriter(data.outbox)
    for number in range(3):
        writer.append(encode_record(span(number)))
    writer.close()
    [segment] = list_segments(data.outbox)
    content = bytearray(segment.path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.path.write_bytes(content)
    recorder = record_to(receiver.url)
    recorder.record(span(9))
    until(lambda: receiver.ids() == {id_of(number) for number in (0, 2, 9)}, "the others have arrived")
    assert recorder.destinations.shipper().counts.damaged == 1
    until(lambda: list(data.outbox.glob("*.damaged")), "the damaged segment is kept under another name")


def test_what_leans_on_damage_is_counted_and_kept_and_the_rest_is_sent(receiver: Receiver, data: DataDir) -> None:
    writer = JournalWriter(data.outbox, sharing=True)
    for number in range(6):
        whole = msgspec.structs.replace(span(number), attributes={"said": "before " * 4000})
        writer.append(encode_record(span(number) if number in (0, 5) else whole))
    writer.close()
    [segment] = list_segments(data.outbox)
    content = bytearray(segment.path.read_bytes())
    assert len(content) < 40_000
    content[content.index(b"before ") + 20_000] ^= 0xFF
    segment.path.write_bytes(content)
    passes = delivery.Delivery(data.outbox, OtlpClient(capture_receiver.Receiver(receiver.url)))
    passes.run()
    assert receiver.ids() == {id_of(0), id_of(5)}
    assert passes.counts.damaged == 4
    [kept] = data.outbox.glob("*.damaged")
    assert kept.read_bytes() == bytes(content)


@pytest.mark.parametrize("alone", [False, True])
def test_damage_at_the_end_of_a_segment_that_is_done_is_counted_and_kept(
    receiver: Receiver, data: DataDir, alone: bool
) -> None:
    writer = JournalWriter(data.outbox)
    for number in range(1 if alone else 3):
        writer.append(encode_record(span(number)))
    writer.close()
    [segment] = list_segments(data.outbox)
    content = bytearray(segment.path.read_bytes())
    content[-9] ^= 0xFF
    segment.path.write_bytes(content)
    passes = delivery.Delivery(data.outbox, OtlpClient(capture_receiver.Receiver(receiver.url)))
    passes.run()
    assert receiver.ids() == (set() if alone else {id_of(0), id_of(1)})
    assert passes.counts.damaged == 1
    [kept] = data.outbox.glob("*.damaged")
    assert kept.read_bytes() == bytes(content)


def test_damage_found_while_the_segment_was_written_is_kept_when_it_is_done(receiver: Receiver, data: DataDir) -> None:
    writer = JournalWriter(data.outbox)
    for number in range(3):
        writer.append(encode_record(span(number)))
    [segment] = list_segments(data.outbox)
    content = bytearray(segment.path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    with segment.path.open("r+b") as file:
        file.write(content)
    passes = delivery.Delivery(data.outbox, OtlpClient(capture_receiver.Receiver(receiver.url)))
    passes.run()
    assert receiver.ids() == {id_of(0), id_of(2)}
    writer.close()
    passes.run()
    [kept] = data.outbox.glob("*.damaged")
    assert kept.read_bytes() == bytes(content)
    assert passes.counts.damaged == 1


def test_one_ships_at_a_time_and_another_takes_over(
    record_to: Callable[[str], Recorder], receiver: Receiver, data: DataDir
) -> None:
    lock = ShippingLock.take(data.outbox)
    assert lock is not None
    assert ShippingLock.take(data.outbox) is None
    recorder = record_to(receiver.url)
    recorder.append(span(0))
    recorder.close()
    assert not recorder.deliver(0.5)
    assert receiver.requests == []
    lock.release()
    assert recorder.deliver(DEADLINE_S)
    assert receiver.ids() == {id_of(0)}


def test_an_outbox_that_is_removed_is_made_again(
    record_to: Callable[[str], Recorder], receiver: Receiver, data: DataDir, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = record_to(receiver.url)
    recorder.record(span(0))
    until(lambda: receiver.spans, "the first span has arrived")

    def removed() -> bool:  # the shipper may be noting how far it is, in there
        shutil.rmtree(data.outbox, ignore_errors=True)
        return not data.outbox.exists()

    until(removed, "the outbox is gone")
    recorder.record(span(1))
    until(lambda: len(receiver.spans) == 2, "the second has arrived")
    assert "was removed" in caplog.text


def test_users_http_instrumentation_and_mocks_do_not_see_the_shipper(
    record_to: Callable[[str], Recorder], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    seen: list[object] = []
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda *given: seen.append(given))
    recorder = record_to(receiver.url)
    recorder.append(span(0))
    recorder.close()
    assert recorder.deliver(DEADLINE_S)
    assert seen == []


def test_a_bad_endpoint_costs_the_user_nothing_and_is_said(
    data: DataDir, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    recorder = Recorder(Settings(data, endpoint="localhost:4318"))
    recorder.record(span(0))
    assert recorder.flush(DEADLINE_S)
    assert not recorder.deliver(0.1)
    assert len(left(data)) == 1


# --- whole processes ---------------------------------------------------------------------------------------

SHIPS = """
import os, sys
import arttrace
@arttrace.trajectory
def agent(number):
    return number
for number in range(int(sys.argv[1])):
    agent(number)
"""


def start(program: str, data: DataDir, endpoint: str, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, **UNSAID, "ARTTRACE_DIR": str(data.root), "ARTTRACE_ENDPOINT": endpoint, "ARTTRACE_RAISE": "0"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_program_that_just_ends_has_delivered(receiver: Receiver, data: DataDir) -> None:
    process = start(SHIPS, data, receiver.url, "3")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, "")
    assert len(receiver.ids()) == 3
    assert left(data) == []


def test_several_processes_at_once_deliver_each_span_to_one_collector(receiver: Receiver, data: DataDir) -> None:
    processes = [start(SHIPS, data, receiver.url, "20") for _ in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, err) == (0, "")
    # one that leaves while another ships does not wait for ever: what may be left is for the next
    _, err = start(SHIPS + "assert arttrace.shutdown(60)", data, receiver.url, "1").communicate(timeout=DEADLINE_S)
    assert err == ""
    assert len(receiver.ids()) == 61
    assert left(data) == []


def test_what_multiprocessing_children_record_is_delivered_when_the_program_ends(
    receiver: Receiver, data: DataDir, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys
            import arttrace
            @arttrace.trajectory
            def work(number):
                return number
            if __name__ == "__main__":
                work(0)
                children = [multiprocessing.Process(target=work, args=(number,)) for number in (1, 2)]
                for child in children: child.start()
                for child in children: child.join()
                assert arttrace.shutdown(60)
            """
        )
    )
    run_it = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    _, err = start(run_it, data, receiver.url).communicate(timeout=DEADLINE_S)
    assert err == ""
    assert len(receiver.ids()) == 3
    assert left(data) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_ships_its_own_and_leaves_the_parents_shipper_alone(receiver: Receiver, data: DataDir) -> None:
    process = start(
        """
        import os
        import arttrace
        from arttrace.capture.export import lifecycle
        @arttrace.trajectory
        def agent(text):
            return text
        agent("parent before")
        assert arttrace.shutdown(30)
        pid = os.fork()
        agent("child" if pid == 0 else "parent after")
        assert arttrace.shutdown(30)
        if pid == 0:
            assert lifecycle.counts().recorded == 1, lifecycle.counts()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        """,
        data,
        receiver.url,
    )
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, "")
    assert len(receiver.spans) == 3
    assert len(receiver.ids()) == 3


def test_kill_9_of_the_shipping_process_loses_nothing(receiver: Receiver, data: DataDir) -> None:
    held = threading.Event()

    def slow(_spans: list[SpanRow]) -> Reply:
        held.wait(DEADLINE_S)
        return (503, {}, b"")

    receiver.script = [slow]
    process = start(SHIPS + "\nprint('done', flush=True)\nimport time; time.sleep(600)", data, receiver.url, "5")
    assert process.stdout is not None
    process.stdout.readline()
    until(lambda: receiver.requests, "the first request is under way")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    held.set()
    _, err = start(SHIPS, data, receiver.url, "1").communicate(timeout=DEADLINE_S)
    assert err == ""
    until(lambda: len(receiver.ids()) == 6, "the dead process's spans have arrived too")
