"""Old runs go out of the store by themselves while the collector runs."""

from __future__ import annotations

import errno
import os
import queue
import time
from pathlib import Path
from typing import Any

import pytest
from daemon_site import until
from msgspec.structs import replace
from simulated_agent import research_run

import arttrace
from arttrace.capture.export.sampling import left_out_span
from arttrace.collector.retention import Retention
from arttrace.store import Store, open_store
from arttrace.store.file import prune, retention
from arttrace.store.file.duckdb_file import bytes_in_use
from arttrace.store.file.prune import Pruned
from arttrace.store.file.retention import Limits
from arttrace.store.server.owner import answering, hold_store
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir

_HOUR_NS = 3_600_000_000_000
_DAY_NS = 24 * _HOUR_NS


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDir:
    """A store with a run of two days ago and one of now."""
    data = DataDir(tmp_path)
    now = time.time_ns()
    for id, age_ns in (("old", 2 * _DAY_NS), ("new", 0)):
        monkeypatch.setattr("arttrace.store.ingest.writer._now_ns", lambda at=now - age_ns: at)
        spans = research_run(id)
        first = min(span.start_ns for span in spans)
        moved = [
            replace(s, start_ns=s.start_ns - first + now - age_ns, end_ns=s.end_ns - first + now - age_ns)
            for s in spans
        ]
        with Store.open(data, create=True) as store:
            store.append(moved)
    return data


def apply(data: DataDir, limits: Limits) -> Pruned | None:
    with Store.open(data) as store:
        return retention.apply(store, limits)


def _ids(data: DataDir) -> list[str]:
    with Store.open(data) as store:
        return [one.id for one in store.summaries()]


def _in_use(data: DataDir) -> int:
    """The bytes that the store needs."""
    with Store.open(data) as store:
        store.prune(dry_run=True)  # which makes a checkpoint
        return bytes_in_use(store._file.connection)


def test_what_is_too_old_goes_once(data: DataDir) -> None:
    assert apply(data, Limits(age_ns=30 * _DAY_NS)) is None
    done = apply(data, Limits(age_ns=_DAY_NS))
    assert done is not None
    assert (done.trajectories, done.kept_trajectories) == (1, 1)
    assert apply(data, Limits(age_ns=_DAY_NS)) is None
    assert _ids(data) == ["new"]


def test_old_spans_of_nobodys_run_go_without_a_run(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.store.ingest.writer._now_ns", lambda: time.time_ns() - 9 * _DAY_NS)
    with Store.open(data) as store:
        plain = research_run("plain")[0]
        store.append([replace(plain, trace_id="7" * 32, start_ns=1, end_ns=2, attributes={}, links=[])])
    done = apply(data, Limits(age_ns=7 * _DAY_NS))
    assert done is not None
    assert (done.trajectories, done.spans) == (0, 1)
    assert sorted(_ids(data)) == ["new", "old"]


def test_the_newest_run_that_was_to_stay_stays_where_the_estimate_was_too_low(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _in_use(data)
    copy, rest = prune.copy_kept, prune.copy_rest
    kept: list[int] = []

    def counted(connection: Any, target: Path, runs: Any, until: Any) -> None:
        kept.append(len(runs))
        copy(connection, target, runs, until)

    monkeypatch.setattr(prune, "copy_kept", counted)
    monkeypatch.setattr(prune, "copy_rest", lambda *given: (rest(*given)[0], whole * 2))
    monkeypatch.setattr(prune.SharedFile, "reopen", lambda self, target: target.unlink())
    with Store.open(data) as store:
        done = store.prune(max_bytes=whole * 3 // 4)
    assert (done.kept_trajectories, kept) == (1, [1])


def test_beyond_a_size_the_oldest_go(data: DataDir) -> None:
    assert apply(data, Limits(max_bytes=1 << 40)) is None
    with pytest.raises(StoreError, match="no run would stay within 1 bytes"):
        apply(data, Limits(max_bytes=1))
    assert sorted(_ids(data)) == ["new", "old"]
    assert apply(data, Limits(max_bytes=_in_use(data) * 3 // 4)) is not None
    assert _ids(data) == ["new"]


def test_a_file_that_is_larger_than_its_runs_is_written_anew(data: DataDir) -> None:
    for again in range(2):
        with Store.open(data) as store:
            store.append([replace(span, name=f"again {again}") for span in research_run("new")])
            store.prune(dry_run=True)
            limit = bytes_in_use(store._file.connection) * 6 // 5
    assert data.store.stat().st_size > limit
    assert apply(data, Limits(max_bytes=limit)) is None
    assert data.store.stat().st_size <= limit
    assert sorted(_ids(data)) == ["new", "old"]


def test_what_sampling_left_out_goes_when_it_is_a_good_part(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(data) as store:
        store.append([left_out_span("new")])
    assert apply(data, Limits()) is None  # a reward may still come
    now = time.time_ns()
    monkeypatch.setattr("arttrace.store.file.prune.time.time_ns", lambda: now + 2 * _HOUR_NS)
    monkeypatch.setattr("arttrace.store.file.retention._WORTH_IT", 0.99)
    assert apply(data, Limits()) is None
    assert apply(data, Limits(age_ns=30 * _DAY_NS)) is None
    monkeypatch.setattr("arttrace.store.file.retention._WORTH_IT", 0.2)
    done = apply(data, Limits())
    assert done is not None
    assert (done.trajectories, done.kept_trajectories) == (1, 1)
    assert apply(data, Limits()) is None
    assert _ids(data) == ["old"]


def test_the_owner_is_asked_and_trouble_is_said(data: DataDir) -> None:
    said: queue.Queue[str] = queue.Queue()
    with Store.open(data) as store, answering(store):
        collecting = Retention(data, Limits(age_ns=_DAY_NS), said.put, every_s=0.01)
        assert said.get(timeout=60).startswith("retention: 1 trajectory (")
        collecting.close()
    assert _ids(data) == ["new"]
    data.store.write_bytes(b"damaged" * 1000)
    collecting = Retention(data, Limits(age_ns=_DAY_NS), said.put, every_s=0.01)
    assert "tried again in an hour" in said.get(timeout=60)
    collecting.close()


def test_a_directory_that_cannot_be_written_for_a_while_is_looked_at_again(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: queue.Queue[str] = queue.Queue()

    def read_only(*_: object) -> None:
        monkeypatch.undo()
        raise OSError(errno.EROFS, "Read-only file system", str(data.root))

    monkeypatch.setattr("arttrace.collector.retention.open_store", read_only)
    collecting = Retention(data, Limits(age_ns=_DAY_NS), said.put, every_s=0.01)
    first, second = said.get(timeout=60), said.get(timeout=60)
    collecting.close()
    assert first.startswith("retention: [Errno 30] Read-only file system")
    assert second.startswith("retention: 1 trajectory (")


def test_without_a_collector_the_wish_of_the_program_holds_once_a_day(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arttrace.init(dir=data.root, retain="60h")
    with open_store(data) as store:
        assert len(store.summaries()) == 2
    arttrace.init(dir=data.root, retain_size="10GB")  # beside what was said before
    assert retention.wished(data) == Limits(60 * _HOUR_NS, 10**10)
    arttrace.init(dir=data.root, retain="36h")
    with open_store(data) as store:
        assert len(store.summaries()) == 2, "looked at again in a day"
    past = time.time() - 2 * 86_400
    os.utime(data.root / "retained", (past, past))
    monkeypatch.setattr("arttrace.store.server.owner._LOOK_S", 0.01)
    with hold_store(data) as held:  # the daemon, say, which opens it once
        until(lambda: [one.id for one in held.summaries()] == ["new"])
        until(lambda: "retention: 1 trajectory (" in caplog.text)


def test_a_wish_is_taken_back_and_a_word_that_is_none_takes_nothing_out(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arttrace.init(dir=data.root, retain="1d", retain_size="10GB")
    arttrace.init(dir=data.root, retain="none", retain_size="none")
    assert retention.wished(data) == Limits()
    arttrace.init(dir=data.root, retain="a month")
    assert "'a month' is not an age such as 30d, 12h or 2w; nothing is removed from the store for it" in caplog.text
    arttrace.init(dir=data.root, retain="6m", retain_size="10")
    assert "'6m' is less than 1h; nothing is removed from the store for it" in caplog.text
    assert "'10' is less than 10MB" in caplog.text
    monkeypatch.setenv("ARTTRACE_RETAIN", "1d")  # of who looks into the store of another program
    with open_store(data) as store:
        assert len(store.summaries()) == 2
    arttrace.init(dir=data.root)
    with open_store(data) as store:
        assert len(store.summaries()) == 1


def test_a_collector_without_limits_keeps_to_the_wish_too(data: DataDir) -> None:
    arttrace.init(dir=data.root, retain="1d")
    said: queue.Queue[str] = queue.Queue()
    with Store.open(data) as store, answering(store):
        collecting = Retention(data, Limits(), said.put, every_s=0.01)
        assert said.get(timeout=60).startswith("retention: 1 trajectory (")
        collecting.close()


def test_what_the_machine_refuses_is_said_and_the_call_goes_on(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data.retention.mkdir()  # no file can be put there
    arttrace.init(dir=data.root, retain="1d")
    assert "cannot be written, so that retention stays as it was" in caplog.text
