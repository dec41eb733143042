"""The process that reads a backlog ahead: the same comes into the store, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from arttrace.formats.journal_entry import decode_payload, encode_otlp, encode_records
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent, SpanLink, SpanRow
from arttrace.store import Store
from arttrace.store.ingest import batches as batches_module
from arttrace.store.ingest import read_ahead as ahead_module
from arttrace.store.ingest.batches import SegmentBatch, read_batches
from arttrace.store.ingest.read_ahead import ReadAhead
from arttrace.store.ingest.read_ahead_process import BatchMessage, packed, unpacked
from arttrace.store.rows.encode import EncodedSpan, encode_rows
from arttrace.store.unread import read_unread
from arttrace.system.journal import JournalWriter, list_segments
from arttrace.system.paths import DataDir

SPANS = 240


def records(first: int, count: int = SPANS) -> Iterator[SpanRow | Reward]:
    for n in range(first, first + count):
        messages = [{"role": "user", "parts": [{"type": "text", "content": f"question {n}"}]}]
        yield SpanRow(
            f"{1 + n // 8:032x}",
            f"{1 + n:016x}",
            "chat policy" if n % 8 else "invoke_agent planner",
            start_ns=1_000 + n,
            end_ns=2_000 + n,
            attributes={
                semconv.OPERATION_NAME: semconv.OPERATION_CHAT if n % 8 else semconv.OPERATION_INVOKE_AGENT,
                semconv.INPUT_MESSAGES: messages if n % 3 else msgspec.json.encode(messages).decode(),
                "number": n * 1.5,
                "big": 2**63 - 1,
                "list": [None, True, "é\0", {"a": []}],
            },
            events=[SpanEvent(semconv.EVALUATION_EVENT, n, {semconv.EVALUATION_SCORE: 0.5})] if n % 8 == 0 else [],
            links=[SpanLink(f"{n // 8:032x}", f"{n:016x}")] if n % 16 == 8 else [],
            resource={"service.name": "test"},
        )
    yield Reward(id=f"r{first}", trajectory_id=f"{1 + first // 8:032x}", value=1.0)


def spool(data: DataDir, *, damaged: bool = False) -> None:
    """Three segments, each of several payloads."""
    for first in (0, SPANS, 2 * SPANS):
        writer = JournalWriter(data.spool)
        for start in range(first, first + SPANS, 40):
            writer.append(encode_records(records(start, 40)))
        if damaged and first == SPANS:
            [path] = [one.path for one in list_segments(data.spool)][-1:]
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)
        writer.close()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is started for any backlog, and waited for."""
    monkeypatch.setattr(ahead_module, "_MUCH_BYTES", 1)
    start = ReadAhead._start

    def start_and_wait(self: ReadAhead) -> None:
        start(self)
        deadline = time.monotonic() + 60
        while self._reader is not None and not self._reader.is_ready():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    monkeypatch.setattr(ReadAhead, "_start", start_and_wait)


def content(data: DataDir) -> dict[str, object]:
    """Everything in a store that does not depend on when it was written."""
    with Store.open(data) as store:
        found: dict[str, object] = {
            table: sorted(store.sql(f"SELECT * FROM {table}")[1], key=str)
            for table in ("span_records", "texts", "prompts", "reward_records", "links")
        }
        found["damaged"] = len(list(data.spool.glob("*.damaged")))
        found["unread"] = read_unread(data.unread_entries).count
    return found


def received(monkeypatch: pytest.MonkeyPatch) -> list[SegmentBatch]:
    """The batches that the process gives from now on."""
    batches: list[SegmentBatch] = []
    message = ahead_module._ReadAheadProcess.message

    def kept(self: ahead_module._ReadAheadProcess) -> BatchMessage:
        found = message(self)
        batches.append(found.batch)
        return found

    monkeypatch.setattr(ahead_module._ReadAheadProcess, "message", kept)
    return batches


def reader_of(store: Store) -> ahead_module._ReadAheadProcess | None:
    assert store._ahead is not None
    return store._ahead._reader


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
def test_a_backlog_comes_into_the_store_as_without(
    tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    ahead, alone = DataDir(tmp_path / "ahead"), DataDir(tmp_path / "alone")
    spool(ahead, damaged=damaged)
    spool(alone, damaged=damaged)
    batches = received(monkeypatch)
    with Store.open(ahead, read_ahead=True) as store:
        assert reader_of(store) is not None
        assert sum(batch.last for batch in batches) == 3
        assert sum(len(batch.spans) for batch in batches) == 3 * SPANS - 40 * damaged
        assert sum(batch.corrupt for batch in batches) == damaged
    assert reader_of(store) is None, "it goes with the store"
    Store.open(alone).close()
    assert content(ahead) == content(alone)
    assert content(ahead)["unread"] == damaged
    assert list_segments(ahead.spool) == list_segments(alone.spool) == []


def killed(reader: ahead_module._ReadAheadProcess) -> None:
    os.kill(reader._process.pid, signal.SIGKILL)
    while os.read(reader._out, 1 << 16):  # what it had sent is lost on the way
        pass


def stopped(reader: ahead_module._ReadAheadProcess) -> None:
    os.kill(reader._process.pid, signal.SIGSTOP)


def unreadable(reader: ahead_module._ReadAheadProcess) -> None:
    raise RecursionError  # of msgspec, where the caller is deeper than the process was


def misled(reader: ahead_module._ReadAheadProcess) -> None:
    reader.message()  # one is taken away


@dataclass
class Fault:
    """What the log is to say of it, and how many spans came until then."""

    said: str
    given: list[int]


@pytest.fixture(
    params=[
        (killed, "EOFError, signal SIGKILL"),
        (stopped, "TimeoutError"),
        (unreadable, "RecursionError"),
        (misled, "ValueError"),
    ],
    ids=["killed", "stopped", "unreadable", "misled"],
)
def fault(request: pytest.FixtureRequest, eager: None, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """It comes before the second message of the process."""
    happens, said = request.param
    given: list[int] = []
    message = ahead_module._ReadAheadProcess.message

    def fails(self: ahead_module._ReadAheadProcess) -> BatchMessage:
        if given:
            monkeypatch.setattr(ahead_module._ReadAheadProcess, "message", message)
            happens(self)
        found = message(self)
        if not given:
            given.append(len(found.batch.spans))
        return found

    monkeypatch.setattr(ahead_module._ReadAheadProcess, "message", fails)
    monkeypatch.setattr(ahead_module, "_PATIENCE_S", 1.0)
    return Fault(said, given)


def test_what_it_does_not_give_is_read_here(tmp_path: Path, fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    data, alone = DataDir(tmp_path / "data"), DataDir(tmp_path / "alone")
    spool(data)
    spool(alone)
    with Store.open(data, read_ahead=True) as store:
        assert store.sql("SELECT count(*) FROM span_records")[1] == [(3 * SPANS,)]
        assert reader_of(store) is None
        spool(data)
        assert store.ingest_spool() == 0, "they are there"
        assert reader_of(store) is None, "it is not started again at once"
    assert fault.given == [SPANS]
    assert f"of no use ({fault.said}" in caplog.text
    Store.open(alone).close()
    assert content(data) == content(alone)


def test_it_fails_in_the_middle_of_a_segment(tmp_path: Path, fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    data = DataDir(tmp_path)
    writer = JournalWriter(data.spool)
    writer.append(b"garbage")
    for n in range(1, 9):
        span = SpanRow("1" * 32, f"{n:016x}", "chat", n, n + 1, attributes={"x": "x" * 5_000_000})
        writer.append(encode_records([span]))
    writer.close()
    with Store.open(data, read_ahead=True) as store:
        assert fault.given == [2]
        assert f"of no use ({fault.said}" in caplog.text
        assert "1 records that cannot be read or stored (DecodeError in a payload of 7 bytes)" in caplog.text
        assert [one.start_ns for one in store.spans("1" * 32)] == list(range(1, 9))
    assert list_segments(data.spool) == []
    assert len(list(data.spool.glob("*.damaged"))) == 1


def test_ctrl_c_while_it_is_reported_leaves_nothing_out(
    tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDir(tmp_path)
    spool(data)
    tell = ahead_module._ReadAheadProcess.tell

    def interrupted(self: ahead_module._ReadAheadProcess, work: list[tuple[str, int]]) -> None:
        tell(self, work)
        raise KeyboardInterrupt

    with Store.open(data, take_in=False, read_ahead=True) as store:
        with monkeypatch.context() as patch:
            patch.setattr(ahead_module._ReadAheadProcess, "tell", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.ingest_spool()
        assert reader_of(store) is None
        assert store.ingest_spool() == 3 * SPANS + 18


def test_what_many_spans_share_is_sent_once() -> None:
    request = ExportTraceServiceRequest()
    one = request.resource_spans.add()
    one.resource.attributes.add(key="process.command_line").value.string_value = "x" * 50_000
    scope = one.scope_spans.add()
    for n in range(1, 1001):
        span = scope.spans.add(trace_id=b"t" * 16, span_id=n.to_bytes(8, "big"), name="x", start_time_unix_nano=1)
        span.events.add(name="an event")
    payload = encode_otlp(request.SerializeToString())
    batch = SegmentBatch(1, spans=[one for one in encode_rows(decode_payload(payload)) if isinstance(one, EncodedSpan)])
    assert len({one.origin for one in batch.spans}) == 1
    assert len(batch.spans[0].origin) > 50_000
    before = msgspec.structs.replace(batch, spans=[msgspec.structs.replace(one) for one in batch.spans])
    sent = msgspec.msgpack.encode(packed("path", 0, batch))
    assert len(sent) < 6 * len(payload)
    assert unpacked(msgspec.msgpack.decode(sent, type=BatchMessage)) == before


def test_it_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_module, "_MUCH_BYTES", 1)
    batches = received(monkeypatch)
    data = DataDir(tmp_path / "data")
    spool(data)
    with Store.open(data, take_in=False, read_ahead=True) as store:
        monkeypatch.setattr(ahead_module._ReadAheadProcess, "is_ready", lambda _: False)
        assert store.ingest_spool() == 3 * SPANS + 18
        assert reader_of(store) is not None
    assert batches == []


def test_where_no_process_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_module, "_MUCH_BYTES", 1)
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
    data = DataDir(tmp_path / "data")
    spool(data)
    with Store.open(data, read_ahead=True) as store:
        assert store.sql("SELECT count(*) FROM span_records")[1] == [(3 * SPANS,)]


def test_it_goes_when_it_has_nothing_to_do(tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDir(tmp_path / "data")
    spool(data)
    with Store.open(data, read_ahead=True) as store:
        reader = reader_of(store)
        assert reader is not None
        monkeypatch.setattr(ahead_module, "_MUCH_BYTES", 1 << 40)
        assert store.ingest_spool() == 0
        assert reader_of(store) is reader
        reader.used -= 3600
        assert store.ingest_spool() == 0
        assert reader_of(store) is None
        assert reader._process.poll() is not None


def test_a_store_that_fails_in_the_middle_leaves_nothing_out(
    tmp_path: Path, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDir(tmp_path / "data")
    spool(data)

    class Stopped(BaseException):
        pass

    def stops(*_: object) -> int:
        raise Stopped

    with Store.open(data, take_in=False, read_ahead=True) as store:
        with monkeypatch.context() as patch:
            patch.setattr("arttrace.store.ingest.segments._store", stops)
            with pytest.raises(Stopped):
                store.ingest_spool()
        assert reader_of(store) is None, "it would go on in the middle of a segment"
        assert store.ingest_spool() == 3 * SPANS + 18


def test_segments_that_are_gone_or_still_written(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.append(encode_records(records(0, 5)))
    [segment] = list_segments(tmp_path)
    [batch] = read_batches(segment, 0)
    assert (len(batch.spans), len(batch.others), batch.last, batch.finished) == (5, 1, True, False)
    writer.close()
    [rest] = read_batches(list_segments(tmp_path)[0], batch.end)
    assert (rest.end, rest.spans, rest.last, rest.finished) == (batch.end, [], True, True)
    [gone] = read_batches(segment, batch.end)
    assert (gone.end, gone.spans, gone.last, gone.finished) == (batch.end, [], True, False)


def test_batches_say_what_was_found_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "_BATCH_BYTES", 1)
    writer = JournalWriter(tmp_path)
    writer.append(b"garbage", encode_records(records(0, 5)), encode_records(records(5, 5)))
    writer.close()
    [segment] = list_segments(tmp_path)
    batches = list(read_batches(segment, 0))
    assert [len(batch.spans) for batch in batches] == [0, 5, 5, 0]
    assert [batch.refused for batch in batches] == [["DecodeError in a payload of 7 bytes"], [], [], []]
    assert [batch.last for batch in batches] == [False, False, False, True]
    assert batches == msgspec.msgpack.decode(msgspec.msgpack.encode(batches), type=list[SegmentBatch])
