"""What of the journal cannot be read: the runs that it names lack it, and what names none is counted for `ls`."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from refusing_site import LEAF, ROOT, Site, run, span

from arttrace.commands import cli
from arttrace.formats.journal_entry import encode_otlp
from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.formats.otlp.protobuf_fields import encode_bytes
from arttrace.records.record import encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.journal import JournalWriter
from arttrace.system.journal.frames import FRAME_OVERHEAD, HEADER
from arttrace.system.paths import DataDir

LOST = span(LEAF, "chat").SerializeToString()


def request(*spans: bytes) -> bytes:
    return encode_bytes(b"".join(encode_bytes(one, 2) for one in spans), 2, 1)


def lines(*spans: bytes) -> list[bytes]:
    return [encode_record(one) for one in protobuf_spans(request(*spans))]


AS_OTLP = encode_otlp(request(*run())), encode_otlp(request(LOST))
AS_LINES = b"\n".join(lines(*run())), *lines(LOST)


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


def spool(data: DataDir, *payloads: bytes) -> Path:
    writer = JournalWriter(data.spool)
    for one in payloads:
        writer.append(one)
    writer.close()
    return max(data.spool.glob("*.seg"))


def incomplete(data: DataDir) -> list[str]:
    with Store.open(data, create=True) as store:
        listed = [one.incomplete for one in store.summaries()]
        assert [one.incomplete for one in store.trajectories()] == listed
    return listed


def listed(data: DataDir) -> str:
    done = CliRunner().invoke(cli, ["ls", "--dir", str(data.root)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def metric(data: DataDir) -> str:
    shown = Site(data).client.get("/metrics").text.splitlines()
    return next(line for line in shown if line.startswith("arttrace_collector_journal_unread_total"))


def no_message(payload: bytes) -> bytes:
    """Cut: the ids alone can be read, as they stand."""
    return payload[:-20]


def broken_string(payload: bytes) -> bytes:
    return payload.replace(b"chat it", b"\xff\xfe\xfd\xfc it")


def other_version(payload: bytes) -> bytes:
    """A field of another type."""
    return payload.replace(b'"start_ns":', b'"start_ns":"soon","was":')


@pytest.mark.parametrize(
    ("there", "lost", "made"),
    [
        (*AS_OTLP, no_message),
        (*AS_OTLP, broken_string),
        (*AS_LINES, other_version),
        (*AS_LINES, no_message),
    ],
)
def test_a_payload_that_no_version_here_can_decode_leaves_its_run_incomplete(
    data: DataDir, there: bytes, lost: bytes, made: Callable[[bytes], bytes]
) -> None:
    assert made(lost) != lost
    spool(data, there, made(lost))
    [why] = incomplete(data)
    assert "a span was refused: " in why
    spool(data, lost)
    assert incomplete(data) == [""]  # it came after all


def test_what_can_be_decoded_of_a_payload_is_stored(data: DataDir) -> None:
    there, lost = AS_LINES
    spool(data, b"\n".join((there, other_version(lost))))
    [why] = incomplete(data)
    assert "a span was refused: " in why
    assert "the store could not read" not in listed(data)  # its run says all


@pytest.mark.parametrize(("there", "lost"), [AS_OTLP, AS_LINES])
@pytest.mark.parametrize("at", ["amid others", "the last"])
def test_a_bit_that_flipped_on_the_disk_leaves_its_run_incomplete(
    data: DataDir, there: bytes, lost: bytes, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    segment = spool(data, *((there, lost, there) if at == "amid others" else (there, lost)))
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"chat it", len(HEADER) + FRAME_OVERHEAD + len(there))] ^= 1
    segment.write_bytes(raw)
    with caplog.at_level(logging.WARNING, "arttrace"):
        [why] = incomplete(data)
    assert "a span was refused: the journal's bytes of it cannot be read" in why
    assert "1 damaged stretches" in caplog.text
    assert segment.with_suffix(".damaged").exists()
    said = listed(data)
    assert "the store could not read 1 entry of its journal (the last: " in said
    assert "which other runs lack it cannot be known" in said
    assert metric(data) == "arttrace_collector_journal_unread_total 1"


@pytest.mark.parametrize(
    "lost",
    [
        b"\x02 of a version to come",
        b"\x00" * 40,
        encode_otlp(b"\xff\xff"),
        encode_record(Reward(id="r", trajectory_id="t", value=1.0)).replace(b'"value":1.0', b'"value":"high"'),
    ],
)
def test_what_names_no_trace_is_counted_where_a_person_looks(
    data: DataDir, lost: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    spool(data, AS_OTLP[0])
    assert incomplete(data) == [""]
    assert "could not read" not in listed(data)
    assert metric(data) == "arttrace_collector_journal_unread_total 0"
    with caplog.at_level(logging.WARNING, "arttrace"):
        spool(data, lost, lost)
        assert incomplete(data) == [""]  # nobody knows of what it was
    assert f"in a payload of {len(lost)} bytes" in caplog.text
    said = listed(data)
    assert "the store could not read 2 entries of its journal (the last: " in said
    assert f"in a payload of {len(lost)} bytes" in said
    assert ".damaged" in said
    assert metric(data) == "arttrace_collector_journal_unread_total 2"


def test_a_segment_of_another_version_is_counted_and_the_runs_that_it_names_lack_it(data: DataDir) -> None:
    spool(data, AS_OTLP[0])
    assert incomplete(data) == [""]
    segment = spool(data, AS_OTLP[1])
    raw = bytearray(segment.read_bytes())
    raw[8] = 9
    segment.write_bytes(raw)
    [why] = incomplete(data)
    assert "a span was refused: " in why
    said = listed(data)
    assert "could not read 1 entry of its journal (the last: segment version 9; this version reads 1 and 2)" in said


def test_runs_whose_calls_lean_on_one_that_is_damaged_lack_them_and_each_is_counted(data: DataDir) -> None:
    writer = JournalWriter(data.spool, sharing=True)
    for number in range(1, 5):
        its = {"trace_id": f"{number:032x}", "start_ns": number, "end_ns": number + 1}
        run_as = {"gen_ai.operation.name": "invoke_agent"}
        writer.append(encode_record(SpanRow(span_id="0a" * 8, name="run", attributes=run_as, **its)))
        asked = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": "said before " * 2000}
        writer.append(
            encode_record(SpanRow(span_id="0b" * 8, parent_span_id="0a" * 8, name="chat", attributes=asked, **its))
        )
    writer.close()
    [segment] = data.spool.glob("*.seg")
    raw = bytearray(segment.read_bytes())
    assert len(raw) < 30_000
    raw[raw.index(b"said before ") + 10_000] ^= 1
    segment.write_bytes(raw)
    with Store.open(data, create=True) as store:
        why = [one.incomplete for one in store.summaries()]
    assert len(why) == 4
    assert all("a span was refused: the journal's bytes of it cannot be read" in one for one in why)
    lost = "shares text with one that is lost, and cannot be put together"
    assert sorted(lost in one for one in why) == [False, True, True, True]
    assert sorted("damaged bytes" in one for one in why) == [False, False, False, True]
    said = listed(data)
    assert "the store could not read 4 entries of its journal (the last: a record of " in said
    assert f"{lost}); runs that they name are incomplete" in said


def test_a_frame_that_its_writer_did_not_finish_was_acknowledged_to_nobody(data: DataDir) -> None:
    segment = spool(data, *AS_OTLP)
    segment.write_bytes(segment.read_bytes()[:-5])
    segment.rename(segment.with_suffix(".open"))
    assert incomplete(data) == [""]
    assert "could not read" not in listed(data)


@pytest.mark.parametrize("library", ["pyarrow", "google.protobuf.message"])
def test_what_a_library_that_is_not_there_would_read_or_store_stays_for_when_it_is(data: DataDir, library: str) -> None:
    """It is loaded with the first that needs it, amid the reading."""
    spool(data, *AS_OTLP)
    many = "from arttrace.store.ingest import given_rows; given_rows.FEW = 0"  # of few rows Arrow is not needed
    program = f"import sys; sys.modules[{library!r}] = None; {many}; from arttrace.commands import main; main()"
    words = [sys.executable, "-c", program, "ls", "--dir", str(data.root)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    said = f"Error: `arttrace ls` needs the package {library}: pip install 'arttrace[store]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
    assert incomplete(data) == [""]
    assert not list(data.spool.glob("*.damaged"))


def test_nothing_is_said_where_all_listed_runs_came_later(data: DataDir) -> None:
    later = span(ROOT, "invoke_agent", b"", start_time_unix_nano=2**62, end_time_unix_nano=2**62 + 1)
    spool(data, b"\x02", encode_otlp(request(later.SerializeToString())))
    Store.open(data).close()
    assert "could not read" not in listed(data)
