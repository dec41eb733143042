"""The journal keeps what was appended, whoever dies, and says what it could not read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arttrace.system.journal import JournalFull, JournalWriter, list_segments, read_segment
from arttrace.system.journal.frames import HEADER, MARKER, encode_frame


def contents(directory: Path) -> list[bytes]:
    return [payload for segment in list_segments(directory) for _, payload in read_segment(segment.path)]


@given(payloads=st.lists(st.binary(max_size=300) | st.just(MARKER * 3)), segment_bytes=st.integers(1, 700))
@settings(deadline=None, max_examples=60)
def test_what_goes_in_comes_out_in_order_over_any_segmentation(payloads: list[bytes], segment_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = JournalWriter(Path(directory), max_segment_bytes=segment_bytes, fsync_interval_s=None)
        for payload in payloads:
            writer.append(payload)
        assert contents(Path(directory)) == payloads
        writer.close()
        assert contents(Path(directory)) == payloads
        assert all(segment.finished() for segment in list_segments(Path(directory)))


@given(
    payloads=st.lists(st.binary(max_size=60), min_size=1, max_size=8),
    cut=st.integers(0, 10_000),
)
@settings(deadline=None, max_examples=100)
def test_a_segment_cut_anywhere_gives_a_prefix_and_the_count_of_torn_bytes(payloads: list[bytes], cut: int) -> None:
    frames = [encode_frame(payload) for payload in payloads]
    data = HEADER + b"".join(frames)
    cut = len(HEADER) + cut % (len(data) - len(HEADER) + 1)
    whole, size = 0, len(HEADER)
    while whole < len(frames) and size + len(frames[whole]) <= cut:
        size += len(frames[whole])
        whole += 1
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "s.open")
        path.write_bytes(data[:cut])
        reader = read_segment(path)
        assert [payload for _, payload in reader] == payloads[:whole]
        assert (reader.corrupt, reader.torn_bytes) == (0, cut - size)


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=40), min_size=3, max_size=8),
    damaged=st.integers(0, 7),
    byte=st.integers(0, 10_000),
    flip=st.integers(1, 255),
)
@settings(deadline=None, max_examples=150)
def test_one_damaged_byte_costs_one_frame_and_is_reported(
    payloads: list[bytes], damaged: int, byte: int, flip: int
) -> None:
    frames = [bytearray(encode_frame(payload)) for payload in payloads]
    damaged %= len(frames)
    frames[damaged][byte % len(frames[damaged])] ^= flip
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "s.seg")
        path.write_bytes(HEADER + b"".join(frames))
        reader = read_segment(path)
        assert [payload for _, payload in reader] == payloads[:damaged] + payloads[damaged + 1 :]
        assert reader.skipped_bytes + reader.torn_bytes == len(frames[damaged])


def test_reading_goes_on_from_an_offset(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.append(b"one")
    (segment,) = list_segments(tmp_path)
    ((offset, _),) = read_segment(segment.path)
    writer.append(b"two")
    assert [payload for _, payload in read_segment(segment.path, offset)] == [b"two"]
    assert not segment.finished()
    writer.close()
    (sealed,) = list_segments(tmp_path)
    assert sealed.name == segment.name
    assert sealed.finished()


def test_a_foreign_or_newer_file_is_named_unreadable(tmp_path: Path) -> None:
    foreign, newer = tmp_path / "a.seg", tmp_path / "b.seg"
    foreign.write_bytes(b"something else entirely")
    newer.write_bytes(HEADER[:8] + (99).to_bytes(4, "little") + bytes(4))
    for path, word in ((foreign, "not a segment"), (newer, "version 99")):
        reader = read_segment(path)
        assert list(reader) == []
        assert word in reader.unreadable


def test_threads_share_a_writer_without_mixing_frames(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, max_segment_bytes=4096, fsync_interval_s=None)

    def work(name: int) -> None:
        for i in range(200):
            writer.append(f"{name}-{i}".encode())

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = contents(tmp_path)
    assert len(got) == 1600
    for name in range(8):
        assert [p for p in got if p.startswith(b"%d-" % name)] == [b"%d-%d" % (name, i) for i in range(200)]


def test_processes_share_a_directory(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from arttrace.system.journal import JournalWriter
        writer = JournalWriter(Path(sys.argv[1]), max_segment_bytes=2000)
        for i in range(100):
            writer.append(f"{sys.argv[2]}-{i}".encode())
        """
    )
    children = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(n)]) for n in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert sorted(contents(tmp_path)) == sorted(b"%d-%d" % (n, i) for n in range(3) for i in range(100))
    assert all(segment.finished() for segment in list_segments(tmp_path))


def test_kill_9_keeps_what_was_appended_and_frees_the_segment(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from arttrace.system.journal import JournalWriter
        writer = JournalWriter(Path(sys.argv[1]), fsync_interval_s=None)
        i = 0
        while True:
            writer.append(str(i).encode())
            print(i, flush=True)
            i += 1
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    first = [child.stdout.readline() for _ in range(500)]
    (segment,) = list_segments(tmp_path)
    assert not segment.finished()
    child.send_signal(signal.SIGKILL)
    acknowledged = len(first) + len(child.stdout.read().splitlines())
    child.wait(60)
    got = contents(tmp_path)
    assert got == [str(i).encode() for i in range(len(got))]
    assert len(got) >= acknowledged
    assert segment.finished()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_its_own_segment_and_does_not_hold_the_parents(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.append(b"parent before")
    (parents,) = list_segments(tmp_path)
    reading, writing = os.pipe()
    appended, append = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(writing)
            writer.append(b"child")
            os.write(append, b"1")
            os.read(reading, 1)  # until the parent has closed its end
        finally:
            os._exit(0)
    os.read(appended, 1)
    writer.append(b"parent after")
    assert not parents.finished()
    assert writer._fd is not None
    os.close(writer._fd)  # as if the parent had died while its child lives on
    writer._fd = None
    assert parents.finished()
    os.close(writing)
    assert os.waitpid(pid, 0)[1] == 0
    assert sorted(contents(tmp_path)) == [b"child", b"parent after", b"parent before"]
    assert len(list_segments(tmp_path)) == 2


def test_a_full_journal_refuses_and_takes_again_when_there_is_room(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, max_segment_bytes=600, max_total_bytes=1200)
    kept = 0

    def fill() -> None:
        nonlocal kept
        while True:
            writer.append(bytes(100))
            kept += 1

    with pytest.raises(JournalFull) as refusal:
        fill()
    assert refusal.value.filename == str(tmp_path)
    assert kept >= 8
    assert len(contents(tmp_path)) == kept
    list_segments(tmp_path)[0].path.unlink()
    writer.append(b"again")
    assert contents(tmp_path)[-1] == b"again"


def test_a_write_that_fails_half_way_leaves_no_half_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(tmp_path, fsync_interval_s=None)
    writer.append(b"before")
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 10:
            return write(fd, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        writer.append(b"lost")
    monkeypatch.setattr(os, "write", write)
    writer.append(b"after")
    (segment,) = list_segments(tmp_path)
    reader = read_segment(segment.path)
    assert [payload for _, payload in reader] == [b"before", b"after"]
    assert (reader.corrupt, reader.torn_bytes) == (0, 0)


def test_payloads_appended_together_are_written_at_once_and_all_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, fsync_interval_s=None)
    writer.append(b"before")
    write, writes = os.write, []

    def counted(fd: int, data: bytes) -> int:
        writes.append(len(data))
        return write(fd, data)

    monkeypatch.setattr(os, "write", counted)
    writer.append(b"one", b"two", b"three")
    assert len(writes) == 1

    def half(fd: int, data: bytes) -> int:
        if len(writes) == 2:
            raise OSError(28, "No space left on device")
        writes.append(0)
        return write(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        writer.append(b"four", b"five")
    monkeypatch.setattr(os, "write", write)
    writer.append(b"six")
    assert contents(tmp_path) == [b"before", b"one", b"two", b"three", b"six"]


def test_sync_reaches_the_disk_call_and_only_when_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("arttrace.system.journal.writer._datasync", synced.append)
    writer = JournalWriter(tmp_path, fsync_interval_s=0)
    writer.append(b"x")
    assert len(synced) == 1
    writer.sync()
    assert len(synced) == 1
    lazy = JournalWriter(tmp_path, fsync_interval_s=None)
    lazy.append(b"x")
    assert len(synced) == 1
    lazy.sync()
    assert len(synced) == 2


def failing_once(fails: OSError) -> Callable[[int], None]:
    """A flush whose first call fails, and the later ones do not, though what the first was for is lost."""
    waiting = [fails]

    def flush(_fd: int) -> None:
        if waiting:
            raise waiting.pop()

    return flush


def test_a_flush_that_fails_while_a_segment_is_sealed_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.system.journal.writer._datasync", failing_once(OSError(5, "Input/output error")))
    writer = JournalWriter(tmp_path, max_segment_bytes=200, fsync_interval_s=None)
    writer.append(b"lost?" * 30)
    writer.append(b"next" * 30)
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    writer.append(b"later" * 30)
    writer.sync()


def test_a_flush_that_fails_when_half_a_frame_cannot_be_taken_back_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, fsync_interval_s=None)
    writer.append(b"lost?")

    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        for call in ("os.write", "os.ftruncate", "arttrace.system.journal.writer._datasync"):
            patch.setattr(call, refuse)
        with pytest.raises(OSError, match="Input/output"):
            writer.append(b"refused")
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    writer.append(b"after")
    writer.sync()
    assert contents(tmp_path) == [b"lost?", b"after"]


def test_a_flush_that_fails_ends_the_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux gives the error of a lost page once: the next flush of the same file would succeed."""
    monkeypatch.setattr("arttrace.system.journal.writer._datasync", failing_once(OSError(5, "Input/output error")))
    writer = JournalWriter(tmp_path, fsync_interval_s=None)
    writer.append(b"lost?")
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    writer.append(b"after")
    writer.sync()
    assert [next(iter(read_segment(one.path)))[1] for one in list_segments(tmp_path)] == [b"lost?", b"after"]


def test_what_is_appended_during_a_flush_that_fails_is_not_said_to_be_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, fsync_interval_s=None)
    calls: list[int] = []

    def flush(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            writer.append(b"meanwhile")
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("arttrace.system.journal.writer._datasync", flush)
    writer.append(b"before")
    for _ in range(2):  # the first for whoever appended before it, the second for whoever did meanwhile
        with pytest.raises(OSError, match="Input/output"):
            writer.sync()
    writer.append(b"after")
    writer.sync()
    assert [next(iter(read_segment(one.path)))[1] for one in list_segments(tmp_path)] == [b"before", b"after"]


def test_what_is_sealed_during_a_flush_that_fails_is_not_said_to_be_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the segment's pages goes to one of the two flushes of it that are under way."""
    writer = JournalWriter(tmp_path, max_segment_bytes=200, fsync_interval_s=None)
    calls: list[int] = []

    def flush(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            writer.append(b"meanwhile")
            writer.append(b"the next segment" * 10)
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("arttrace.system.journal.writer._datasync", flush)
    writer.append(b"before")
    for _ in range(2):  # the first for whoever appended before it, the second for whoever did meanwhile
        with pytest.raises(OSError, match="Input/output"):
            writer.sync()
    writer.append(b"after")
    writer.sync()


def test_a_disk_that_is_full_at_half_a_header_costs_nothing_that_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, fsync_interval_s=None)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    with pytest.raises(OSError, match="No space"):
        writer.append(b"lost")
    monkeypatch.setattr(os, "write", write)
    writer.append(b"after")
    assert contents(tmp_path) == [b"after"]


def test_a_directory_removed_while_it_is_written_is_made_again_and_the_loss_is_known(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "spool"
    writer = JournalWriter(directory, fsync_interval_s=None)
    writer.append(b"gone")
    writer.append(b"gone too")
    shutil.rmtree(tmp_path / "deep")
    writer.append(b"kept")
    assert contents(directory) == [b"kept"]
    assert writer.removed == 2
    writer.close()
    assert contents(directory) == [b"kept"]


def test_several_writers_share_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.system.journal.writer._ROOM_BYTES", 1000)
    writers = [JournalWriter(tmp_path, fsync_interval_s=None, max_total_bytes=20_000) for _ in range(3)]
    refused = 0
    for _ in range(100):
        for writer in writers:
            try:
                writer.append(bytes(200))
            except JournalFull:
                refused += 1
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert refused > 0
    assert 20_000 - 1000 <= total <= 20_000 + 3 * 1000


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the names of open files")
def test_after_a_sync_a_power_failure_costs_nothing_that_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is stood in for by what had been synced of each file and each directory when the power went."""
    safe_bytes: dict[int, bytes] = {}
    safe_names: set[str] = set()
    fsync = os.fsync

    def data_is_safe(fd: int) -> None:
        safe_bytes[os.fstat(fd).st_ino] = os.pread(fd, 1 << 20, 0)

    def name_is_safe(fd: int) -> None:
        safe_names.update(path.name for path in Path(f"/proc/self/fd/{fd}").iterdir())
        fsync(fd)

    monkeypatch.setattr("arttrace.system.journal.writer._datasync", data_is_safe)
    monkeypatch.setattr(os, "fsync", name_is_safe)
    directory = tmp_path / "new" / "spool"
    writer = JournalWriter(directory, fsync_interval_s=None, max_segment_bytes=120)
    for i in range(10):
        writer.append(f"before {i}".encode())
    writer.sync()
    writer.append(b"after")
    on_disk = tmp_path / "on disk"
    on_disk.mkdir()
    assert {"new", "spool"} <= safe_names
    for path in directory.iterdir():
        if path.with_suffix(".open").name in safe_names:  # sealing renames; either name will do
            (on_disk / path.name).write_bytes(safe_bytes.get(path.stat().st_ino, b""))
    assert contents(on_disk) == [f"before {i}".encode() for i in range(10)]
