"""What must not stop a store: one bad record, a lost connection, a question after its end."""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from simulated_agent import T0, research_run

from arttrace.formats.journal_entry import encode_otlp, encode_records
from arttrace.formats.otlp.check_protobuf import check_protobuf
from arttrace.formats.sdks import tolerant as named_module
from arttrace.records import semconv
from arttrace.records.record import encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import Attributes, SpanEvent, SpanRow
from arttrace.store import Store
from arttrace.store.access import local as local_module
from arttrace.store.access import queries as queries_module
from arttrace.store.file import connect as database_module
from arttrace.store.file import connections as shared_module
from arttrace.store.ingest import batches as batches_module
from arttrace.store.ingest import writer as writer_module
from arttrace.store.ingest.writer import Writer
from arttrace.store.rows import encode as parts_module
from arttrace.store.rows.encode import EncodedSpan
from arttrace.store.rows.left_out import IS_STAND_IN
from arttrace.store.rows.tables import SPAN_ID, Row
from arttrace.system.errors import MayPass, StoreError, StoreFull
from arttrace.system.journal import JournalWriter, list_segments
from arttrace.system.paths import DataDir
from arttrace.trajectories.identity.stand_ins import is_stand_in

BAD = "no store can hold it"


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


def span(number: int, name: str = "chat") -> SpanRow:
    event = SpanEvent(semconv.EVALUATION_EVENT, 1, {semconv.EVALUATION_SCORE: 1.0})
    return SpanRow("1" * 32, f"{number:016x}", name, number, number + 1, events=[event])


def there(store: Store) -> list[SpanRow]:
    return [one for one in store.spans("1" * 32) if not is_stand_in(one)]


def ids(store: Store) -> list[int]:
    return sorted(int(one.span_id, 16) for one in there(store))


def spool(data: DataDir, *payloads: bytes) -> None:
    writer = JournalWriter(data.spool)
    writer.append(*payloads)
    writer.close()


# --- a record that cannot be stored ------------------------------------------------------------------------------


@pytest.fixture
def unstorable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fault of ours that no disk space fixes, for spans of one name: the stand-in for the next one nobody knows."""
    rewards_of = writer_module.rewards_of

    def fails(span: SpanRow) -> Iterator[Reward]:
        if span.name == BAD:
            raise OverflowError("int too big to convert")
        return rewards_of(span)

    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "rewards_of", fails)
        yield


def overflowing() -> bytes:
    """A request that the collector acknowledges, with a time that no column holds."""
    request = ExportTraceServiceRequest()
    one = request.resource_spans.add().scope_spans.add().spans.add()
    one.trace_id, one.span_id = bytes.fromhex("1" * 32), (1).to_bytes(8, "big")
    one.start_time_unix_nano = one.end_time_unix_nano = 1
    event = one.events.add(name=semconv.EVALUATION_EVENT, time_unix_nano=2**64 - 1)
    event.attributes.add(key=semconv.EVALUATION_SCORE).value.double_value = 1.0
    checked = check_protobuf(request.SerializeToString())
    assert (checked.spans, checked.refused) == (1, 0)
    return encode_otlp(checked.body)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(overflowing(), id="time of a reward"),
        pytest.param(encode_record(SpanRow("1" * 32, "1" * 16, "x", 2**63, 1)), id="time of a span"),
        pytest.param(b'{"type":"span","attributes":{"a":' + b"[" * 3000 + b"]" * 3000 + b"}}", id="nesting"),
        pytest.param(encode_record(span(1, BAD)), id="fault of ours"),
    ],
)
def test_a_bad_record_stops_nothing_that_comes_behind_it(data: DataDir, payload: bytes, unstorable: None) -> None:
    with Store.open(data, create=True) as store:
        spool(data, payload)
        spool(data, encode_record(span(2)))
        store.ingest_spool()
        assert 2 in ids(store)
        store.append([Reward(id="r", trajectory_id="t", value=1.0)])
        assert ("r",) in store.sql("SELECT id FROM rewards")[1]
    assert list_segments(data.spool) == []
    with Store.open(data) as store:
        assert 2 in ids(store)


def test_a_record_that_cannot_be_stored_is_left_out_alone_and_kept(
    data: DataDir, unstorable: None, caplog: pytest.LogCaptureFixture
) -> None:
    bad = (7, 8, 40)
    with Store.open(data, create=True) as store:
        with caplog.at_level(logging.WARNING, "arttrace"):
            spool(data, *(encode_record(span(n, BAD if n in bad else "chat")) for n in range(1, 61)))
            assert store.ingest_spool() == 57
        assert ids(store) == [n for n in range(1, 61) if n not in bad]
        assert "3 records that cannot be read or stored (OverflowError in a SpanRow)" in caplog.text
        assert store.sql("SELECT count(*) FROM ingested_segments")[1] == [(0,)]
    assert list_segments(data.spool) == []
    [kept] = data.spool.glob("*.damaged")
    kept.rename(kept.with_suffix(".seg"))  # by a version that can store them
    with pytest.MonkeyPatch.context() as repaired, Store.open(data, take_in=False) as store:
        repaired.setattr(writer_module, "rewards_of", lambda _: iter(()))
        assert store.ingest_spool() == 3
        assert ids(store) == list(range(1, 61))
    assert not list(data.spool.iterdir())


def test_a_span_that_cannot_be_taken_apart_is_left_out_alone_and_kept(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    span_columns = parts_module.span_columns

    def fails(span: SpanRow, named: Attributes) -> Row:
        if span.name == BAD:
            raise OverflowError("int too big to convert")
        return span_columns(span, named)

    monkeypatch.setattr(parts_module, "span_columns", fails)
    with Store.open(data, create=True) as store, caplog.at_level(logging.WARNING, "arttrace"):
        payload = encode_records(span(n, BAD if n in (2, 5) else "chat") for n in range(1, 8))
        spool(data, payload, encode_record(span(8)))
        assert store.ingest_spool() == 6
        assert ids(store) == [1, 3, 4, 6, 7, 8]
        assert "2 records that cannot be read or stored (OverflowError in a SpanRow)" in caplog.text
        monkeypatch.undo()
        [kept] = data.spool.glob("*.damaged")
        kept.rename(kept.with_suffix(".seg"))
        assert store.ingest_spool() == 2
        assert ids(store) == list(range(1, 9))
    assert not list(data.spool.iterdir())


def of_a_run(number: int, name: str) -> SpanRow:
    """A call that names no run, but the first, which is the agent's."""
    event = SpanEvent(semconv.EVALUATION_EVENT, 1, {semconv.EVALUATION_SCORE: 1.0})
    kind = semconv.OPERATION_INVOKE_AGENT if number == 1 else semconv.OPERATION_CHAT
    said = {semconv.OPERATION_NAME: kind, **({semconv.TRAJECTORY_ID: "run"} if number == 1 else {})}
    above = None if number == 1 else f"{1:016x}"
    return SpanRow("1" * 32, f"{number:016x}", name, number, number + 1, above, attributes=said, events=[event])


@pytest.mark.parametrize("fails", ["when it is taken apart", "when it is written"])
def test_a_run_lacks_what_cannot_be_stored_until_a_version_can(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    module, function = (
        (parts_module, "span_columns") if fails == "when it is taken apart" else (writer_module, "rewards_of")
    )
    works = getattr(module, function)

    def failing(span: SpanRow, *others: Any) -> Any:
        if span.name == BAD and span.events:
            raise OverflowError("int too big to convert")
        return works(span, *others)

    monkeypatch.setattr(module, function, failing)
    with Store.open(data, create=True) as store:
        spool(data, *(encode_record(of_a_run(n, BAD if n in (2, 3) else "chat")) for n in range(1, 5)))
        assert store.ingest_spool() == 2
        [run] = store.summaries()
        assert "2 spans were refused: it cannot be stored (OverflowError)" in run.incomplete
        assert store.trajectory("run").incomplete == run.incomplete
        monkeypatch.undo()
        [kept] = data.spool.glob("*.damaged")
        kept.rename(kept.with_suffix(".seg"))
        store.ingest_spool()
        assert "refused" not in store.trajectory("run").incomplete


def test_a_bad_record_is_kept_when_its_segment_is_done_much_later(data: DataDir, unstorable: None) -> None:
    writer = JournalWriter(data.spool)
    writer.append(encode_record(span(1, BAD)), encode_record(span(2)))
    with Store.open(data, create=True) as store:
        assert ids(store) == [2]
        writer.append(encode_record(span(3)))
        assert store.ingest_spool() == 1
    with Store.open(data) as store:
        writer.close()
        assert store.ingest_spool() == 0
        assert ids(store) == [2, 3]
    [kept] = data.spool.iterdir()
    assert kept.suffix == ".damaged"
    assert encode_record(span(1, BAD)) in kept.read_bytes()


def test_who_dies_while_records_are_left_out_stores_the_others_once(
    data: DataDir, unstorable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    spool(data, *(encode_record(span(n, BAD if n == 6 else "chat")) for n in range(1, 9)))
    write = Writer.write

    def dies(self: Writer, records: list[EncodedSpan], *offsets: object) -> int:
        if records and records[0].columns[SPAN_ID] == f"{7:016x}":
            raise Killed
        return write(self, records, *offsets)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", dies)
        with pytest.raises(Killed):
            Store.open(data)
    with Store.open(data) as store:
        assert ids(store) == [1, 2, 3, 4, 5, 7, 8]
        assert store.sql(f"SELECT count(*) FROM span_records WHERE NOT ({IS_STAND_IN})")[1] == [(7,)]
    assert [path.suffix for path in data.spool.iterdir()] == [".damaged"]


@pytest.mark.parametrize("error", [duckdb.IOException("No space"), duckdb.FatalException("gone"), OSError(28, "full")])
def test_what_the_machine_refuses_stays_and_is_tried_again(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried = 0

    def refuses(*_: object) -> int:
        nonlocal tried
        tried += 1
        raise error

    with Store.open(data, create=True) as store:
        spool(data, encode_record(span(1)), encode_record(span(2)))
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "write", refuses)
            with pytest.raises(StoreFull, match="could not be written"):
                store.ingest_spool()
        assert tried == 1
        assert len(list_segments(data.spool)) == 1
        assert store.ingest_spool() == 2
    assert not list(data.spool.iterdir())


_RAISED_TWICE = duckdb.IOException("No space")


@pytest.mark.parametrize("error", [_RAISED_TWICE] * 2, ids=["first", "second"])
def test_an_error_among_the_parameters_holds_no_store_of_an_earlier_test(error: Exception) -> None:
    """It lives as long as the tests, and where torch was imported DuckDB said at the end of a process of tests that
    connections of its own had leaked: those in the frames that had raised it."""
    assert error.__traceback__ is None
    with pytest.raises(duckdb.IOException):
        raise error


def test_a_segment_of_another_user_is_named_and_stops_no_other(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that root wrote, in a container say."""
    spool(data, encode_record(span(1)))
    spool(data, encode_record(span(2)))
    [foreign, _] = list_segments(data.spool)
    read = batches_module.read_segment

    def refuses(path: Path, *where: Any, **how: Any) -> Any:
        if path == foreign.path:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *where, **how)

    with Store.open(data, create=True, take_in=False) as store:
        with monkeypatch.context() as patch:
            patch.setattr(batches_module, "read_segment", refuses)
            with pytest.raises(StoreError, match=f"{foreign.path}: Permission denied(.|\n)*chown -R") as error:
                store.ingest_spool()
            assert isinstance(error.value, MayPass), "the daemon waits until somebody gives it over"
            assert "disk" not in str(error.value)
        assert ids(store) == [2]
        assert store.ingest_spool() == 1
        assert ids(store) == [1, 2]


def test_no_memory_is_no_fault_of_the_record(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> int:
        raise MemoryError

    with Store.open(data, create=True) as store:
        spool(data, encode_record(span(1)))
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "write", refuses)
            with pytest.raises(MemoryError):
                store.ingest_spool()
        assert store.ingest_spool() == 1


def interrupted(*_: object, **__: object) -> None:
    raise RuntimeError("Query interrupted")  # in the words of DuckDB 2.0, which takes the signal


def test_ctrl_c_while_the_store_is_read_is_ctrl_c(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(data, create=True) as store:
        store.append([span(1)])
        with monkeypatch.context() as patch:
            patch.setattr(queries_module, "read_spans", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ids(store)
        assert ids(store) == [1]


def test_ctrl_c_while_records_are_taken_in_ends_that_and_spoils_nothing(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(data, create=True) as store:
        spool(data, encode_record(span(1)), encode_record(span(2)))
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "_store_spans", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.ingest_spool()
        assert len(list_segments(data.spool)) == 1
        assert store.ingest_spool() == 2
        assert ids(store) == [1, 2]
    assert not list(data.spool.iterdir())


def test_a_segment_of_which_all_is_stored_in_the_end_is_not_kept(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Writer.write

    def refuses_many(self: Writer, records: list[EncodedSpan], *offsets: object) -> int:
        if len(records) > 1:
            raise ValueError("too many at once")
        return write(self, records, *offsets)  # type: ignore[arg-type]

    with Store.open(data, create=True) as store:
        spool(data, encode_record(span(1)), encode_record(span(2)))
        monkeypatch.setattr(Writer, "write", refuses_many)
        assert store.ingest_spool() == 2
    assert not list(data.spool.iterdir())


def test_what_the_writer_knows_outlives_a_batch_that_failed(data: DataDir, unstorable: None) -> None:
    def about(number: int, name: str, text: str) -> SpanRow:
        attributes = {semconv.SYSTEM_INSTRUCTIONS: text, semconv.OPERATION_NAME: "chat"}
        return msgspec.structs.replace(span(number, name), attributes=attributes)

    with Store.open(data, create=True) as store:
        store.append([about(1, "chat", "known")])
        writer = store._file.writer
        known = dict(writer._texts or {})
        assert len(known) == 1
        store.append([about(2, "chat", "new"), about(3, BAD, "known"), about(4, "chat", "new")])
        assert store._file.writer is writer
        assert writer._texts is not None
        assert known.items() <= writer._texts.items(), "what was stored before is not read again"
        assert sorted(store.sql("SELECT text FROM texts")[1]) == [("known",), ("new",)]
        assert [(int(one.span_id), one.attributes[semconv.SYSTEM_INSTRUCTIONS]) for one in there(store)] == [
            (1, "known"),
            (2, "new"),
            (4, "new"),
        ]


def test_what_is_good_is_written_once(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "_BATCH_BYTES", 1000)
    written: list[int] = []
    write = Writer.write
    monkeypatch.setattr(Writer, "write", lambda self, *given: written.append(len(given[0])) or write(self, *given))
    payloads = [encode_record(span(n)) for n in range(1, 51)]
    with Store.open(data, create=True) as store:
        spool(data, *payloads)
        assert store.ingest_spool() == 50
    assert sum(written) == 50
    assert max(written) == -(-1000 // len(payloads[0]))


# --- a span that cannot be read under the names of the conventions -----------------------------------------------


def test_a_span_that_cannot_be_normalised_counts_as_it_came(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    normalise, added = named_module.conventions.normalise, named_module.conventions.added_by_conventions

    def fails(span: SpanRow) -> None:
        if semconv.CONVERSATION_ID in span.attributes:
            raise RecursionError

    monkeypatch.setattr(named_module.conventions, "normalise", lambda span: fails(span) or normalise(span))
    monkeypatch.setattr(named_module.conventions, "added_by_conventions", lambda span: fails(span) or added(span))
    odd = {semconv.OPERATION_NAME: "chat", semconv.CONVERSATION_ID: "c"}
    root = SpanRow("2" * 32, "1" * 16, "agent", T0, T0 + 9, attributes={semconv.OPERATION_NAME: "invoke_agent"})
    call = SpanRow("2" * 32, "2" * 16, "chat", T0, T0 + 1, parent_span_id="1" * 16, attributes=odd)
    with Store.open(data, create=True) as store:
        store.append([*research_run("good"), root, call])
        assert "good" in {one.id for one in store.summaries()}
        assert len(store.summaries()) == 2
        assert store.sql("SELECT count(*) FROM calls WHERE trace_id = ?".replace("?", f"'{'2' * 32}'"))[1] == [(1,)]


# --- the connection ----------------------------------------------------------------------------------------------

_OPEN = """
import sys
from pathlib import Path
from typing import Any
from arttrace.system.paths import DataDir
from arttrace.store import Store
Store.open(DataDir(Path(sys.argv[1]))).close()
"""


def free(data: DataDir) -> bool:
    """Whether another process can open the store."""
    return subprocess.run([sys.executable, "-c", _OPEN, str(data.root)], capture_output=True).returncode == 0


def test_a_closed_store_stays_closed(data: DataDir) -> None:
    store = Store.open(data, create=True)
    store.append([span(1)])
    store.close()
    spool(data, encode_record(span(2)))
    for use in (
        store.ingest_spool,
        store.load,
        store.summaries,
        lambda: store.append([span(3)]),
        lambda: store.spans("1" * 32),
        lambda: store.sql("SELECT 1"),
        lambda: store.prune(before_ns=1),
    ):
        with pytest.raises(StoreError, match="was closed"):
            use()
    assert free(data)
    with Store.open(data) as again:
        assert ids(again) == [1, 2, 3]  # the third was in the journal before the store said that it is closed


def test_a_store_closed_while_it_waits_to_be_opened_anew_stays_closed(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(data, create=True)
    store.append(research_run("old"))
    waits: queue.Queue[threading.Thread] = queue.Queue()
    wait_for = store._file._changed.wait_for

    def noted(*given: Any) -> bool:
        waits.put(threading.current_thread())
        return wait_for(*given)

    raised: list[BaseException] = []

    def prune() -> None:
        try:
            store.prune(before_ns=T0 + 10**18)
        except StoreError as error:
            raised.append(error)

    with store._file.reading():
        monkeypatch.setattr(store._file._changed, "wait_for", noted)
        pruning = threading.Thread(target=prune)
        pruning.start()
        while not store._file._reopening:
            assert waits.get(timeout=60) is pruning
        closing = threading.Thread(target=store.close)
        closing.start()
        while waits.get(timeout=60) is not closing:
            pass
    pruning.join()
    closing.join()
    assert "was closed" in str(raised)
    assert free(data)
    assert not list(data.root.glob("*.new*"))


def test_a_store_that_could_not_be_opened_anew_is_the_next_time(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> int:
        raise duckdb.FatalException("database has been invalidated")

    def in_the_way(_: Path) -> duckdb.DuckDBPyConnection:
        raise StoreError("the store cannot be opened: too many open files")

    with Store.open(data, create=True) as store:
        store.append([span(1)])
        with monkeypatch.context() as patch:
            patch.setattr(local_module, "ingest_segments", fails)
            with pytest.raises(StoreFull):
                store.ingest_spool()
        with monkeypatch.context() as patch:
            patch.setattr(shared_module, "connect_while_opening", in_the_way)
            for _ in range(2):
                with pytest.raises(StoreError, match="too many open files"):
                    store.spans("1" * 32)
        assert ids(store) == [1]
        store.append([span(2)])
        assert ids(store) == [1, 2]


@pytest.mark.parametrize("step", ["replace", "connect_while_opening"])
def test_a_rewrite_that_fails_at_its_end_leaves_a_store_that_goes_on(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fails(*_: object) -> duckdb.DuckDBPyConnection:
        raise StoreError("not now")

    monkeypatch.setattr("arttrace.store.ingest.writer._now_ns", lambda: 1)
    with Store.open(data, create=True) as store:
        store.append([span(1)])
        with monkeypatch.context() as patch:
            patch.setattr(shared_module, step, fails)
            with pytest.raises(StoreError, match=r"rewritten: not now(.|\n)*kept is lost"):
                store.prune(before_ns=3)
        assert not list(data.root.glob("*.new*"))
        assert ids(store) == ([1] if step == "replace" else [])
        store.append([span(2)])
        assert 2 in ids(store)


def test_questions_are_answered_when_what_they_keep_cannot_be_written(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    connect = database_module.connect_while_opening
    monkeypatch.setattr(shared_module, "connect_while_opening", lambda path: opened.append(path) or connect(path))

    def fails(*_: object) -> None:
        raise duckdb.FatalException("database has been invalidated")

    with Store.open(data, create=True) as store:
        store.append(research_run("a"))
        monkeypatch.setattr(queries_module, "place", fails)
        monkeypatch.setattr(Writer, "keep_summaries", fails)
        assert [one.id for one in store.summaries()] == ["a"]
        assert store.sql("SELECT 1")[1] == [(1,)]
        assert store.sql("SELECT count(*) FROM span_records")[1] == [(8,)]
        assert opened


def test_what_is_answered_without_for_a_fault_of_ours_is_reported_once(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise duckdb.CatalogException("Table with name odd_traces does not exist!")

    monkeypatch.setattr(queries_module, "place", fails)
    with Store.open(data, create=True) as store, caplog.at_level(logging.ERROR, "arttrace"):
        for _ in range(2):
            assert store.sql("SELECT 1")[1] == [(1,)]
    assert [record.message for record in caplog.records] == [
        f"the store {data.store} answers without what it keeps beside the records: "
        "CatalogException: Table with name odd_traces does not exist!"
    ]


def test_readers_that_come_one_after_the_other_hold_no_rewrite_up(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(data, create=True) as store:
        with monkeypatch.context() as patch:
            patch.setattr("arttrace.store.ingest.writer._now_ns", lambda: 1)
            store.append([span(1)])
        store.append(research_run("kept"))
        waits = threading.Event()
        wait_for = store._file._changed.wait_for
        pruning = threading.Thread(target=store.prune, kwargs={"before_ns": 3})
        reading = [
            threading.Thread(target=ask)
            for ask in (store.summaries, store.trajectories, lambda: store.sql("SELECT 1"), lambda: store.spans("a"))
        ]
        with store._file.reading() as connection:
            monkeypatch.setattr(
                store._file._changed,
                "wait_for",
                lambda *given: (waits.set() if store._file._reopening else None) or wait_for(*given),
            )
            pruning.start()
            assert waits.wait(60)
            for one in reading:
                one.start()
            writing = threading.Thread(target=store.append, args=[[span(2)]])
            writing.start()
            with store._file.lock:  # whoever is waited for has let go of it
                assert store._file.readers == 1, "who comes now waits until the file is opened anew"
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
        for one in (pruning, writing, *reading):
            one.join(60)
            assert not one.is_alive()
        assert ids(store) == [2]
        assert [one.id for one in store.summaries()] == ["kept"]


def test_errors_of_the_database_are_errors_of_the_store(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        store._file.connection.execute("DROP TABLE judgement_records")
        with pytest.raises(StoreError, match="cannot be read"):
            store.judgement("k")
        assert store._file.readers == 0


def test_a_reader_that_cannot_be_closed_holds_nobody_up(data: DataDir) -> None:
    class Cursor:
        def close(self) -> None:
            raise duckdb.IOException("no")

    class Connection:
        def __init__(self, real: duckdb.DuckDBPyConnection) -> None:
            self.close = real.close

        def cursor(self) -> Cursor:
            return Cursor()

    store = Store.open(data, create=True)
    real = store._file.connection
    store._file.connection = Connection(real)  # type: ignore[assignment]
    with pytest.raises(duckdb.IOException), store._file.reading():
        pass
    assert store._file.readers == 0
    store._file.connection = real
    store.close()
