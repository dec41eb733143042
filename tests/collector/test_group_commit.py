"""What waits together is flushed together, and nothing is acknowledged whose flush failed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from arttrace.collector.group_commit import GroupCommit
from arttrace.system.journal import JournalWriter, list_segments, read_segment


def test_nothing_is_acknowledged_whose_flush_failed_while_its_segment_was_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushing, go_on = threading.Event(), threading.Event()
    outcomes = iter([None, OSError(5, "Input/output error")])

    def flush(_fd: int) -> None:
        flushing.set()
        assert go_on.wait(60)
        error = next(outcomes, None)
        if error is not None:
            raise error

    monkeypatch.setattr("arttrace.system.journal.writer._datasync", flush)
    commit = GroupCommit(JournalWriter(tmp_path, max_segment_bytes=300, fsync_interval_s=None))
    first = commit.append(b"1" * 10)
    assert flushing.wait(60)
    second, third = commit.append(b"2" * 200), commit.append(b"3" * 200)  # the third seals the second's segment
    go_on.set()
    assert first.result(60) is None
    assert isinstance(second.exception(60), OSError)
    assert isinstance(third.exception(60), OSError)
    assert commit.append(b"4" * 10).result(60) is None
    commit.close()


def test_what_comes_after_the_end_is_answered_and_is_to_be_sent_again(tmp_path: Path) -> None:
    commit = GroupCommit(JournalWriter(tmp_path, fsync_interval_s=None))
    assert commit.append(b"1").result(60) is None
    commit.close()
    assert isinstance(commit.append(b"2").exception(10), OSError)
    commit.close()
    [segment] = list_segments(tmp_path)
    assert [payload for _, payload in read_segment(segment.path, 0)] == [b"1"]


def test_a_request_that_is_given_up_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushing, go_on = threading.Event(), threading.Event()

    def flush(_fd: int) -> None:
        flushing.set()
        assert go_on.wait(60)

    monkeypatch.setattr("arttrace.system.journal.writer._datasync", flush)
    commit = GroupCommit(JournalWriter(tmp_path, fsync_interval_s=None))
    first = commit.append(b"1")
    assert flushing.wait(60)
    given_up, other = commit.append(b"2"), commit.append(b"3")
    first.cancel()  # as the task that waits for it is
    given_up.cancel()
    go_on.set()
    assert other.result(60) is None
    assert commit.append(b"4").result(60) is None
    commit.close()
