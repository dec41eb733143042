"""A segment stores what a payload has in common with an earlier one once; what comes out is what went in, or is counted
as lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arttrace.system.journal import JournalWriter, SegmentReader, list_segments, read_segment
from arttrace.system.journal.bases import WriterBases
from arttrace.system.journal.frames import (
    FRAME_OVERHEAD,
    HEADER,
    MARKER,
    SHARING_HEADER,
    encode_frame,
    frame_end,
    frame_leans,
)
from arttrace.system.journal.sharing import common_parts, decode_leaning, encode_leaning, own_bytes, rebuilt


def turns(number: int, turn: int = 700, *, seed: int = 0, system: int = 4000) -> list[bytes]:
    """The records of one conversation, each with all that came before, and ids of its own around that."""
    rng = random.Random(seed)
    text, ids, made = rng.randbytes(system // 2).hex(), "", []
    for at in range(number):
        text += rng.randbytes(turn // 2).hex()
        ids += rng.randbytes(60).hex()
        head = f'{{"type":"span","trace_id":"{seed:032x}","span_id":"{rng.getrandbits(64):016x}","start_ns":{at:019}'
        tail = f'","answer":"{rng.randbytes(90).hex()}","resource":{{"service.name":"default"}}}}'
        made.append(f'{head},"in":"{text}","id":"c{at}","prompt_ids":"{ids}{tail}'.encode())
    return made


def contents(directory: Path) -> list[bytes]:
    found = []
    for segment in list_segments(directory):
        reader = read_segment(segment.path, finished=segment.finished())
        found += [payload for _, payload in reader]
        assert (reader.corrupt, reader.torn_bytes, reader.unreadable) == (0, 0, "")
    return found


def segment_of(payloads: Sequence[bytes], directory: Path) -> Path:
    """One sealed segment of them."""
    bases, data = WriterBases(), SHARING_HEADER
    for payload in payloads:
        data += bases.frames([payload], len(data))
        bases.written()
    path = directory / "s.seg"
    path.write_bytes(data)
    return path


def frames_in(data: bytes) -> list[tuple[int, int, bool]]:
    """Where the frames of an undamaged segment begin and end, and whether they lean."""
    at, found = len(HEADER), []
    while at < len(data):
        end = frame_end(data, at)
        assert end is not None
        found.append((at, end, frame_leans(data, at)))
        at = end
    return found


@pytest.fixture(autouse=True, scope="module")
def shares_small_ones() -> Iterator[None]:
    """So that examples may be small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arttrace.system.journal.bases._LEAST_BYTES", 2000)
        yield


BLOCKS = [random.Random(number).randbytes(1500) for number in range(6)]
TALKS = [turns(8, seed=number) for number in range(3)]
records = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 2), st.integers(0, 7)).map(lambda which: TALKS[which[0]][which[1]]),
        st.binary(max_size=40),
        st.just(MARKER * 40),
        st.lists(st.one_of(st.sampled_from(BLOCKS), st.binary(max_size=50)), max_size=12).map(b"".join),
    ),
    max_size=14,
)


@given(batches=st.lists(records, max_size=5), segment_bytes=st.integers(1, 30_000))
@settings(deadline=None, max_examples=150)
def test_what_goes_in_comes_out_in_order_over_any_segmentation(batches: list[list[bytes]], segment_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = JournalWriter(Path(directory), max_segment_bytes=segment_bytes, fsync_interval_s=None, sharing=True)
        for batch in batches:
            writer.append(*batch)
        given = [payload for batch in batches for payload in batch]
        assert contents(Path(directory)) == given
        writer.close()
        assert contents(Path(directory)) == given


@given(payload=records.map(b"".join), base=records.map(b"".join), searches=st.integers(0, 8))
@settings(deadline=None, max_examples=300)
def test_a_payload_is_put_together_again_from_any_base(payload: bytes, base: bytes, searches: int) -> None:
    parts = common_parts(payload, base, searches=searches)
    stored = encode_leaning(payload, 16, parts)
    assert len(stored) == own_bytes(payload, parts)
    leaning = decode_leaning(stored)
    assert leaning is not None
    assert rebuilt(leaning, base) == payload
    assert bytes(leaning.own[:128]) == payload[:128]
    if parts:
        start = parts[0].base_start
        other = base[:start] + bytes([base[start] ^ 1]) + base[start + 1 :]
        assert rebuilt(leaning, other) is None
        assert rebuilt(leaning, base[:start]) is None


@given(
    payloads=records,
    conversations=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=12),
    cut=st.integers(0, 1 << 30),
    at_end_of=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_a_segment_cut_anywhere_gives_what_was_whole(
    payloads: list[bytes], conversations: list[tuple[int, int]], cut: int, at_end_of: bool
) -> None:
    payloads = payloads + [TALKS[who][turn] for who, turn in conversations]
    with tempfile.TemporaryDirectory() as directory:
        if not payloads:
            return
        path = segment_of(payloads, Path(directory))
        data = path.read_bytes()
        cut = len(HEADER) + cut % (len(data) - len(HEADER) + 1)
        ends = [end for _, end, _ in frames_in(data)]
        path.unlink()
        open_one = path.with_suffix(".open")
        open_one.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        reader = read_segment(open_one, finished=at_end_of)
        assert [payload for _, payload in reader] == payloads[:whole]
        assert (reader.corrupt, reader.torn_bytes) == (0, cut - ([len(HEADER), *ends][whole]))


@given(
    order=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7)), min_size=2, max_size=14),
    small=records,
    at=st.integers(0, 1 << 30),
    flip=st.integers(1, 255),
    piece=st.sampled_from([1 << 20, 100, 4000]),
)
@settings(deadline=None, max_examples=300)
def test_one_byte_that_flipped_never_gives_another_payload_and_what_is_lost_is_counted(
    order: list[tuple[int, int]], small: list[bytes], at: int, flip: int, piece: int
) -> None:
    payloads = small[:4] + [TALKS[who][turn] for who, turn in order] + small[4:]
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("arttrace.system.journal.reader._PIECE_BYTES", piece)
        path = segment_of(payloads, Path(directory))
        data = bytearray(path.read_bytes())
        frames = frames_in(bytes(data))
        at = len(HEADER) + at % (len(data) - len(HEADER))
        [hit] = [number for number, (start, end, _) in enumerate(frames) if start <= at < end]
        data[at] ^= flip
        path.write_bytes(data)
        lost = [hit, *(number for number in range(len(frames)) if base_of(data, frames[number]) == frames[hit][0])]
        reader = SegmentReader(path, finished=True)
        assert [payload for _, payload in reader] == [one for n, one in enumerate(payloads) if n not in lost]
        assert (reader.corrupt, reader.torn_bytes) == (len(lost), 0)
        assert reader.skipped_bytes == sum(frames[number][1] - frames[number][0] for number in lost)
        assert sorted(reader.damaged) == sorted(
            (bytes(data[slice(*frames[number][:2])]), number != hit) for number in lost
        )


def base_of(data: bytes | bytearray, frame: tuple[int, int, bool]) -> int | None:
    """Where the base of a leaning frame stands."""
    start, end, leans = frame
    leaning = decode_leaning(bytes(data[start + FRAME_OVERHEAD : end])) if leans else None
    return None if leaning is None else leaning.base_offset


def test_reading_goes_on_from_any_offset(tmp_path: Path) -> None:
    payloads = [one for both in zip(turns(30), turns(30, seed=1), strict=True) for one in both]
    path = segment_of(payloads, tmp_path)
    for number, (offset, _) in enumerate(list(read_segment(path)), 1):
        assert [payload for _, payload in read_segment(path, offset)] == payloads[number:]


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), records),
            st.tuples(st.sampled_from(["close", "remove", "fail", "fail and stay", "too large"]), records),
        ),
        max_size=12,
    )
)
@settings(deadline=None, max_examples=150)
def test_nothing_leans_on_what_is_not_in_the_segment(steps: list[tuple[str, list[bytes]]]) -> None:
    """Whatever became of the payload before: the disk refused it, its segment was sealed or removed."""
    write, cut = os.write, os.ftruncate
    kept: list[bytes] = []
    tried: list[bytes] = []
    with tempfile.TemporaryDirectory() as directory:
        writer = JournalWriter(Path(directory), fsync_interval_s=None, sharing=True)
        for what, payloads in steps:
            with pytest.MonkeyPatch.context() as patch:
                calls = []

                def half(fd: int, data: bytes, what: str = what, calls: list[int] = calls) -> int:
                    calls.append(fd)
                    if len(calls) == 1 and len(data) > 1 and data[: len(SHARING_HEADER)] != SHARING_HEADER:
                        return write(fd, data[: len(data) // 2])
                    if what == "too large" and len(calls) > 2:
                        return write(fd, data)
                    raise OSError(27 if what == "too large" else 28, "no")

                def refuse(fd: int, size: int) -> None:
                    raise OSError(5, "no")

                if what == "close":
                    writer.close()
                elif what == "remove":
                    for segment in list_segments(Path(directory)):
                        segment.path.unlink()
                    kept.clear()
                if what in ("fail", "fail and stay", "too large"):
                    patch.setattr(os, "write", half)
                    patch.setattr(os, "ftruncate", refuse if what == "fail and stay" else cut)
                tried += payloads
                try:
                    writer.append(*payloads)
                except OSError:
                    assert what in ("fail", "fail and stay", "too large")
                else:
                    kept += payloads
        found = []
        for segment in list_segments(Path(directory)):
            reader = read_segment(segment.path)
            found += [payload for _, payload in reader]
            assert reader.corrupt == 0
        assert is_in_order(kept, found)
        assert is_in_order(found, tried)  # of what was half written something may be whole


def is_in_order(few: list[bytes], many: list[bytes]) -> bool:
    left = iter(many)
    return all(one in left for one in few)


def test_a_conversation_is_stored_without_what_its_calls_repeat(tmp_path: Path) -> None:
    payloads = turns(400)
    path = segment_of(payloads, tmp_path)
    assert path.stat().st_size * 9 < sum(map(len, payloads))
    assert [payload for _, payload in read_segment(path)] == payloads


def test_conversations_side_by_side_are_each_stored_so(tmp_path: Path) -> None:
    """They begin alike, with a system prompt that is longer than the rest."""
    talks = [turns(60, seed=number, system=3000) for number in range(7)]
    start = random.Random(0).randbytes(20_000).hex().encode()
    payloads = [start + talk[at] for at in range(60) for talk in talks]
    path = segment_of(payloads, tmp_path)
    assert path.stat().st_size * 6 < sum(map(len, payloads))
    assert [payload for _, payload in read_segment(path)] == payloads


@pytest.mark.parametrize(("turn", "system"), [(2, 400_000), (700, 40_000)])
def test_damage_to_one_payload_costs_no_more_than_those_that_lean_on_it(turn: int, system: int, tmp_path: Path) -> None:
    payloads = turns(200, turn, system=system)
    data = segment_of(payloads, tmp_path).read_bytes()
    frames = frames_in(data)
    leaning = Counter(base_of(data, frame) for frame in frames if frame[2])
    whole = {start: end - start for start, end, leans in frames if not leans}
    assert set(leaning) <= set(whole)
    assert max(leaning.values()) <= 64
    for base, size in whole.items():
        own = [end - start for start, end, leans in frames if leans and base_of(data, (start, end, leans)) == base]
        assert sum(own[:-1]) <= size + FRAME_OVERHEAD * len(own)


def test_what_leans_on_damage_at_the_end_is_counted_once_its_writer_is_done(tmp_path: Path) -> None:
    """Else every look at a segment that is being written would count it again."""
    payloads = [*turns(4), b"the last"]
    path = segment_of(payloads, tmp_path)
    data = bytearray(path.read_bytes())
    data[len(HEADER) + FRAME_OVERHEAD + 5] ^= 1
    lost = frames_in(path.read_bytes())[:-1]
    end = lost[-1][1]
    for cut, finished, corrupt in ((end, False, 0), (end, True, 4), (len(data), False, 4)):
        path.write_bytes(data[:cut])
        reader = read_segment(path, finished=finished)
        assert [payload for _, payload in reader] == payloads[len(lost) :][: cut == len(data)]
        assert (reader.corrupt, reader.torn_bytes) == (corrupt, 0 if corrupt else end - len(HEADER))


def test_a_frame_that_leans_on_nothing_that_can_be_is_lost_alone(tmp_path: Path) -> None:
    whole = turns(1)[0]
    parts = common_parts(whole, whole, searches=0)
    path = tmp_path / "s.seg"
    first = encode_frame(whole)
    for base in (0, len(HEADER) + 1, len(HEADER) + len(first), 1 << 40, (1 << 64) - 1):
        wrong = encode_frame(encode_leaning(whole, base, parts), leans=True)
        on_leaning = encode_frame(encode_leaning(whole, len(HEADER) + len(first), parts), leans=True)
        short = encode_frame(b"short", leans=True)
        path.write_bytes(SHARING_HEADER + first + wrong + on_leaning + short + encode_frame(b"after"))
        reader = read_segment(path)
        assert [payload for _, payload in reader] == [whole, b"after"]
        assert (reader.corrupt, reader.torn_bytes) == (3, 0)


def test_segments_of_both_versions_are_read_from_one_directory(tmp_path: Path) -> None:
    payloads = turns(20)
    for sharing in (False, True, False):
        writer = JournalWriter(tmp_path, sharing=sharing)
        writer.append(*payloads)
        writer.close()
    assert contents(tmp_path) == payloads * 3
    assert [one.path.read_bytes()[8] for one in list_segments(tmp_path)] == [1, 2, 1]


def test_a_writer_and_a_reader_hold_few_bases(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, fsync_interval_s=None, sharing=True, max_segment_bytes=1 << 30)
    tracemalloc.start()
    try:
        for number in range(100):
            for payload in turns(2, 500_000, seed=number):
                writer.append(payload)
        del payload
        assert tracemalloc.get_traced_memory()[0] < 18 << 20
        writer.close()
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
        (segment,) = list_segments(tmp_path)
        assert segment.path.stat().st_size < 110_000_000  # the second of each leans on the first
        tracemalloc.reset_peak()
        assert sum(1 for _ in read_segment(segment.path)) == 200
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_nothing_leans_on_what_the_disk_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(tmp_path, fsync_interval_s=None, sharing=True)
    writer.append(b"before")
    first, second = turns(2)

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            writer.append(first)
    writer.append(second)
    assert contents(tmp_path) == [b"before", second]


_WRITES = """
import sys
from pathlib import Path
from arttrace.system.journal import JournalWriter
writer = JournalWriter(Path(sys.argv[1]), fsync_interval_s=None, sharing=True)
text, number = "", 0
while True:
    text += f"turn {number}; " * 300
    writer.append(text.encode())
    print(number, flush=True)
    number += 1
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_kill_9_keeps_what_was_appended(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", _WRITES, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    first = [child.stdout.readline() for _ in range(150)]
    child.send_signal(signal.SIGKILL)
    acknowledged = len(first) + len(child.stdout.read().splitlines())
    child.wait(60)
    expected, text = [], ""
    for number in range(acknowledged + 1):
        text += f"turn {number}; " * 300
        expected.append(text.encode())
    segments = list_segments(tmp_path)
    got = [payload for one in segments for _, payload in read_segment(one.path, finished=one.finished())]
    assert len(got) >= acknowledged
    assert got == expected[: len(got)]
    assert sum(one.path.stat().st_size for one in segments) * 4 < sum(map(len, got))


@pytest.mark.timeout(120)
def test_what_has_nothing_in_common_takes_a_bounded_time(tmp_path: Path) -> None:
    """Texts of one byte over and over meet everywhere."""
    writer = JournalWriter(tmp_path, fsync_interval_s=None, sharing=True)
    payloads = [*(bytes([number]) * (3 << 20) for number in range(6)), *(b"ab" * (n << 19) for n in range(1, 6))]
    payloads += [random.Random(n).randbytes(3 << 20) for n in range(6)]
    writer.append(*payloads)
    assert contents(tmp_path) == payloads
