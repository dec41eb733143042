"""Retention: what is old or too much goes as whole runs, its space comes back, the rest is what it was."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from click.testing import CliRunner
from simulated_agent import T0, Run, message, research_run

from arttrace.capture.export.sampling import left_out_span
from arttrace.commands import cli
from arttrace.formats.imported_files import read_file
from arttrace.records import semconv
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanLink, SpanRow
from arttrace.store import Store, open_store
from arttrace.store.file import prune as prune_module
from arttrace.store.file.cancellation import Stop, Stopped
from arttrace.store.file.duckdb_file import bytes_in_use
from arttrace.store.server.owner import hold_store
from arttrace.system.errors import StoreError
from arttrace.system.journal import list_segments
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

HOUR = 3600 * 10**9


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


def at(hour: int, spans: list[SpanRow]) -> list[SpanRow]:
    moved = hour * HOUR
    return [msgspec.structs.replace(s, start_ns=s.start_ns + moved, end_ns=s.end_ns + moved) for s in spans]


def incompressible(id: str, kilobytes: int) -> list[SpanRow]:
    run = Run(id)
    text = random.Random(id).randbytes(kilobytes * 512).hex()
    run.chat("c", [message("user", text)], message("assistant", "ok"), at=1, PROMPT_TOKEN_IDS=None)
    return run.end()


def test_old_runs_go_and_stay_known_as_consumed(data: DataDir) -> None:
    old, new = at(0, research_run("old", "s")), at(5, research_run("new", "s"))
    with Store.open(data, create=True) as store:
        store.append(old + new)
        store.append([Reward(id=id, trajectory_id=id, value=1.0) for id in ("old", "new", "not here yet")])
        store.append([PolicyStep("p", 1, "x", consumed=(Consumed("old", "r"), Consumed("new", "r")))])
        kept = store.trajectory("new")
        before = store.summaries()
        would = store.prune(before_ns=T0 + HOUR, dry_run=True)
        assert (would.trajectories, would.kept_trajectories, would.bytes_after) == (1, 1, None)
        assert store.summaries() == before
        done = store.prune(before_ns=T0 + HOUR)
        assert (done.trajectories, done.spans, done.kept_trajectories) == (1, len(old), 1)
        assert [t.id for t in store.trajectories()] == ["new"]
        assert store.trajectory("new") == kept
        assert [s.id for s in store.summaries()] == ["new"]
        store.append(old)  # it comes again
        assert store.trajectories(unconsumed_by="p") == []
        assert sorted(t.id for t in store.trajectories()) == ["new", "old"]
    with Store.open(data) as store:
        assert sorted(id for (id,) in store.sql("SELECT id FROM reward_records")[1]) == ["new", "not here yet"]
        assert store.policy_steps("p")[0].consumed[0].trajectory_id == "old"
        assert store.trajectories(ids=["new"]) == [msgspec.structs.replace(kept)]


def test_space_comes_back_and_texts_that_nothing_needs_go(data: DataDir) -> None:
    runs = [at(hour, incompressible(f"run{hour}", 1500)) for hour in range(8)]
    with Store.open(data, create=True) as store:
        for spans in runs:
            store.append(spans)
        limit = 7_000_000
        done = store.prune(max_bytes=limit)
        assert done.bytes_before > limit
        assert done.bytes_after is not None
        assert done.bytes_after <= limit
        assert data.store.stat().st_size == done.bytes_after
        assert 1 <= done.kept_trajectories < 8
        newest = runs[8 - done.kept_trajectories :]
        assert store.trajectories() == build_trajectories([span for spans in newest for span in spans])
        assert store.sql("SELECT count(*) FROM texts")[1] == [(done.kept_trajectories,)]
        assert store.prune(max_bytes=limit).trajectories == 0


def test_no_run_goes_for_blocks_that_are_free(data: DataDir) -> None:
    """Every checkpoint writes the newest rows anew: of a store that is written to, half of the file may be free."""
    with Store.open(data, create=True) as store:
        for hour in range(6):
            store.append(at(hour, incompressible(f"run{hour}", 500)))
            size = store.prune(max_bytes=1 << 40, dry_run=True).bytes_before
        in_use = bytes_in_use(store._file.connection)
        limit = in_use * 5 // 4
        assert size > limit
        assert store.prune(max_bytes=limit, dry_run=True).trajectories == 0
        assert data.store.stat().st_size == size
    said = CliRunner().invoke(cli, ["prune", "--max-size", str(limit), "--dir", str(data.root)]).output
    assert "0 trajectories (0 spans) gone, 6 kept\n" in said
    assert data.store.stat().st_size <= limit
    with Store.open(data) as store:
        assert len(store.trajectories()) == 6


def test_no_more_runs_go_where_some_come_meanwhile(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes meanwhile has a part of the copy written twice, and the copy was tried again with ever fewer runs."""
    with Store.open(data, create=True) as store:
        store.append([span for hour in range(8) for span in at(hour, incompressible(f"run{hour}", 500))])
        copy, new = prune_module.copy_kept, at(9, research_run("new"))

        def copy_beside_others(*given: Any) -> None:
            copy(*given)
            store.append(new)

        monkeypatch.setattr(prune_module, "copy_kept", copy_beside_others)
        limit = store.prune(max_bytes=1, dry_run=True).bytes_before * 9 // 10
        assert 3 <= store.prune(max_bytes=limit).kept_trajectories < 8
        assert bytes_in_use(store._file.connection) <= limit


def test_traces_of_one_trajectory_go_together(data: DataDir) -> None:
    first, second = Run("x"), Run("y")
    first.chat("c", [message("user", "a")], message("assistant", "b"), at=1)
    second.chat("c", [message("user", "a")], message("assistant", "b"), at=1, TRAJECTORY_ID="x")
    parts = at(0, first.end()) + at(9, second.end(TRAJECTORY_ID="x"))
    with Store.open(data, create=True) as store:
        store.append(parts + at(1, research_run("gone")))
        whole = store.trajectory("x")
        assert store.prune(before_ns=T0 + 5 * HOUR).trajectories == 1
        assert store.trajectories() == [whole]


def test_a_rewrite_that_fails_changes_nothing(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(_: object, target: Path, *__: object) -> None:
        target.write_bytes(b"half")
        raise duckdb.IOException("No space left on device")

    with Store.open(data, create=True) as store:
        store.append(research_run("a"))
        before = store.trajectories()
        with monkeypatch.context() as patch:
            patch.setattr(prune_module, "copy_kept", full_disk)
            with pytest.raises(StoreError, match="could not be rewritten"):
                store.prune(before_ns=T0 + HOUR)
        assert store.trajectories() == before
        assert not list(data.root.glob("*.new"))
        store.append(research_run("b"))
    with Store.open(data) as store:
        assert len(store.trajectories()) == 2


def test_a_rewrite_ends_when_nobody_waits_for_it_any_more(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()

    def stopped(_: object, target: Path, *__: object) -> None:
        target.write_bytes(b"half")
        stop("whoever asked has left")
        raise duckdb.InterruptException("Interrupted!")

    with Store.open(data, create=True) as store:
        store.append(research_run("a"))
        monkeypatch.setattr(prune_module, "copy_kept", stopped)
        with pytest.raises(Stopped, match="has left"), stop.current():
            store.prune(before_ns=T0 + HOUR)
        assert not list(data.root.glob("*.new"))
        assert [one.id for one in store.trajectories()] == ["a"]


def test_readers_and_writers_go_on_beside_a_rewrite(data: DataDir) -> None:
    failed: list[BaseException] = []
    stop = threading.Event()
    with Store.open(data, create=True) as store:
        store.append(at(9, research_run("kept")))
        kept = store.trajectory("kept")

        def read() -> None:
            try:
                while not stop.is_set():
                    assert store.trajectory("kept") == kept
                    assert store.sql("SELECT count(*) FROM trajectories WHERE id = 'kept'")[1] == [(1,)]
            except BaseException as error:
                failed.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(3):
            store.append(research_run(f"old{number}"))
            assert store.prune(before_ns=T0 + HOUR).trajectories == 1
        stop.set()
        for reader in readers:
            reader.join()
        assert failed == []
    with Store.open(data) as store:
        assert store.trajectories() == [kept]


def test_nobody_waits_while_the_copy_is_written(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes meanwhile is in it, also of a run that was to go, which stays whole. All waited for the whole copy."""
    late, gone, kept = research_run("late"), research_run("gone"), at(9, research_run("kept"))
    new = [*at(9, research_run("new")), Reward(id="r", trajectory_id="new", value=1.0)]
    found: list[str] = []
    with Store.open(data, create=True) as store:
        store.append([*late[:-1], *gone, *kept])
        copy = prune_module.copy_kept

        def others() -> None:
            store.append([late[-1], *new])
            found.extend(run.id for run in store.trajectories())

        def copy_beside_others(*given: object) -> None:
            copy(*given)  # type: ignore[arg-type]
            other = threading.Thread(target=others)
            other.start()
            other.join(120)

        monkeypatch.setattr(prune_module, "copy_kept", copy_beside_others)
        done = store.prune(before_ns=T0 + HOUR)
        assert sorted(found) == ["gone", "kept", "late", "new"]
        assert (done.trajectories, done.spans, done.kept_trajectories) == (1, len(gone), 2)
        expected = build_trajectories([*late, *kept, *new[:-1]], new[-1:])  # type: ignore[list-item, arg-type]
        assert store.trajectories() == expected
        assert [one.id for one in store.summaries()][::-1] == [one.id for one in expected]
    with Store.open(data) as store:
        assert store.trajectories() == expected


def test_what_comes_while_a_rewrite_waits_for_a_reader_is_kept(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(data, create=True) as store:
        store.append(research_run("old"))
        waits = threading.Event()
        wait_for = store._file._changed.wait_for
        pruning = threading.Thread(target=store.prune, kwargs={"before_ns": T0 + HOUR})
        writing = threading.Thread(target=store.append, args=(at(9, research_run("new")),))
        with store._file.reading() as reader:
            monkeypatch.setattr(
                store._file._changed,
                "wait_for",
                lambda *given: (waits.set() if store._file._reopening else None) or wait_for(*given),
            )
            pruning.start()
            assert waits.wait(60)
            writing.start()
            writing.join(0.5)  # it may end now, or wait for the rewrite: what it wrote is there in the end
            assert reader.execute("SELECT count(*) FROM span_records").fetchone() is not None
        pruning.join()
        writing.join()
        assert [one.id for one in store.trajectories()] == ["new"]
        assert not list_segments(data.spool)


def test_beside_an_owner(data: DataDir) -> None:
    with hold_store(data, create=True), open_store(data) as store:
        store.append(at(0, research_run("old")) + at(9, research_run("new")))
        assert store.prune(before_ns=T0 + HOUR).trajectories == 1
        assert [one.id for one in store.trajectories()] == ["new"]
        store.append(research_run("more"))
        assert len(store.summaries()) == 2


def test_the_command(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        store.append(research_run("a"))

    def prune(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["prune", *arguments, "--dir", str(data.root)])
        return result.exit_code, result.output

    assert prune()[0] == 2
    assert prune("--older-than", "soon")[0] == 2
    assert "0 trajectories (0 spans) to go, 1 kept" in prune("--max-size", "10GB", "--dry-run")[1]
    assert "1 trajectory (8 spans) gone, 0 kept" in prune("--older-than", "0s")[1]


def test_the_command_says_when_more_goes_than_it_said(data: DataDir) -> None:
    """What a file of this size has room for is estimated; a file takes some space by itself."""
    with Store.open(data, create=True) as store:
        for number in range(40):
            store.append(research_run(f"run-{number}"))
    prune = ["prune", "--dir", str(data.root), "--max-size", "200KB"]
    heard = CliRunner().invoke(cli, prune).output
    [to_go, gone] = [int(count) for count in re.findall(r"(\d+) trajectories \(\d+ spans\) (?:to go|gone)", heard)]
    assert to_go < gone == 39  # the newest, which was to stay, does
    assert f"{gone - to_go} more than estimated" in heard


def test_what_came_in_lately_stays_whenever_it_happened(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversations without dates stand in the year 2000; the traces of last year were imported today."""
    undated = records_of({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    future = [msgspec.structs.replace(span, end_ns=(1 << 63) - 1) for span in research_run("clock is wrong")]
    with Store.open(data, create=True) as store:
        store.append(research_run("long here") + future)
        monkeypatch.setattr("arttrace.store.ingest.writer._now_ns", lambda: T0 + 100 * HOUR)
        store.append(undated + research_run("came late"))
        assert store.prune(before_ns=T0 + 90 * HOUR, dry_run=True).trajectories == 2
        done = store.prune(before_ns=T0 + 90 * HOUR)
        assert (done.trajectories, done.kept_trajectories) == (2, 2)
        assert {t.start_ns < T0 for t in store.trajectories()} == {True, False}
        arrived = [store.sql(f"SELECT DISTINCT arrived FROM {view}")[1] for view in ("spans", "trajectories")]
        assert arrived[0] == arrived[1]
        assert store.prune(before_ns=T0 + 101 * HOUR).trajectories == 2


def records_of(conversation: dict[str, object]) -> list[Record]:
    return read_file(msgspec.json.encode(conversation), "airline").records


def test_the_command_says_where_it_comes_from_first(data: DataDir) -> None:
    undated = records_of({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    shop = [msgspec.structs.replace(span, resource={"service.name": "shop"}) for span in research_run("of the shop")]
    with Store.open(data, create=True) as store:
        store.append(undated + shop + research_run("x") + research_run("y"))
    whole = ["prune", "--older-than", "1h", "--dir", str(data.root)]
    lines = CliRunner().invoke(cli, [*whole, "--dry-run"]).output.splitlines()
    assert lines[0].endswith(" to go, 0 kept")
    assert [line.split()[:2] for line in lines[1:]] == [["(no", "name)"], ["airline", "1"], ["shop", "1"]]
    assert lines[2].endswith("spans) without times")
    planned = json.loads(CliRunner().invoke(cli, [*whole, "--dry-run", "--json"]).output)
    assert [(one["name"], one["trajectories"]) for one in planned["sources"]] == [
        ("(no name)", 2),
        ("airline", 1),
        ("shop", 1),
    ]
    assert CliRunner().invoke(cli, whole).output.splitlines()[: len(lines)] == lines
    done = json.loads(CliRunner().invoke(cli, [*whole, "--json"]).stdout)
    assert (planned["trajectories"], done["trajectories"], done["kept_trajectories"]) == (4, 0, 0)


def test_what_sampling_left_out_is_shown_nowhere_and_goes_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order its parts, the word of its end and a reward arrive."""
    now = time.time_ns()
    monkeypatch.setattr("arttrace.store.ingest.writer._now_ns", lambda: now - HOUR - 1_000_000_000)
    ids = ("kept", "out", "rewarded", "failed")
    records: list[Record] = [span for id in ids for span in research_run(id)]
    records += [left_out_span(id) for id in ids if id != "kept"]
    records.append(Reward(id="r", trajectory_id="rewarded", value=1.0, time_ns=1))
    failed = next(span for span in records if isinstance(span, SpanRow) and semconv.ENTRY in span.attributes)
    failed_root = msgspec.structs.replace(
        failed,
        trace_id="f" * 32,
        status_code=2,
        status_message="KeyError",
        attributes={**failed.attributes, semconv.TRAJECTORY_ID: "failed"},
    )
    for number, batch in enumerate(([*records, failed_root], [failed_root, *reversed(records)])):
        data = DataDir(tmp_path / str(number))
        with Store.open(data, create=True) as store:
            for record in batch:
                store.append([record])
            shown = {"kept", "rewarded", "failed"}
            assert {one.id for one in store.summaries()} == {one.id for one in store.trajectories()} == shown
            _, rows = store.sql("SELECT id FROM trajectories")
            assert {id for (id,) in rows} == shown
            _, rows = store.sql("SELECT DISTINCT trajectory_id FROM spans")
            assert {id for (id,) in rows} == shown
            done = store.prune()
            assert (done.trajectories, done.kept_trajectories) == (1, 3)
            _, rows = store.sql("SELECT DISTINCT trajectory_id FROM span_records WHERE operation = 'chat'")
            assert {id for (id,) in rows} == shown
            late = research_run("out")[0]
            store.append([late])  # a part that was on its way
            assert {one.id for one in store.summaries()} == shown
            assert all(semconv.OPERATION_LEFT_OUT not in str(span) for id in shown for span in store.spans(id))


def test_the_word_that_a_run_was_left_out_hides_none_but_that_one(tmp_path: Path) -> None:
    """Not a later run of the same id that was stored, and not each run where a processor on the way took the id off."""
    first = research_run("again")
    later = [msgspec.structs.replace(span, trace_id="e" * 32) for span in first]
    word = left_out_span("again")
    nameless = msgspec.structs.replace(
        left_out_span("x"), attributes={semconv.OPERATION_NAME: semconv.OPERATION_LEFT_OUT}
    )
    with Store.open(DataDir(tmp_path), create=True) as store:

        def shown() -> set[str]:
            _, rows = store.sql("SELECT DISTINCT trajectory_id FROM spans")
            assert {one.id for one in store.summaries()} == {id for (id,) in rows}
            return {id for (id,) in rows}

        store.append([*research_run("other"), nameless])
        assert shown() == {"other"}
        store.append([*first, word, word])
        assert shown() == {"other"}
        store.append(later)
        assert shown() == {"other", "again"}
        store.append([left_out_span("again")])  # it was left out as well
        assert shown() == {"other"}


def test_a_run_that_goes_on_does_not_go(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came of it later would be complete without what went: its root counts what its own process did alone."""
    monkeypatch.setattr("arttrace.store.ingest.writer._now_ns", time.time_ns)
    run = at(-30, research_run("goes on"))
    root = next(span for span in run if semconv.ENTRY in span.attributes)
    begun = [msgspec.structs.replace(span, end_ns=0) if span is root else span for span in run]
    with Store.open(data, create=True) as store:
        store.append(begun)
        assert store.prune(before_ns=time.time_ns()).trajectories == 0
        assert store.prune(max_bytes=1).trajectories == 0
        store.append([root])
        done = store.prune(before_ns=time.time_ns())
        assert (done.trajectories, done.spans) == (1, len(run)), "the root is one span, however often it came"


def test_a_run_that_was_killed_goes_after_a_day(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run = research_run("killed")
    long_ago = time.time_ns() - 25 * 3_600_000_000_000
    monkeypatch.setattr("arttrace.store.ingest.writer._now_ns", lambda: long_ago)
    with Store.open(data, create=True) as store:
        store.append([msgspec.structs.replace(span, start_ns=long_ago, end_ns=0) for span in run])
        assert store.prune(before_ns=time.time_ns()).trajectories == 1


def test_rewards_of_runs_that_never_came_go_by_their_age(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        store.append(research_run("a", "s"))
        given = {"old": T0, "older": T0 - 1, "new": T0 + 1, "undated": 0, "a": T0 - 2}
        store.append(Reward(f"r-{run}", run, 1.0, time_ns=time_ns) for run, time_ns in given.items())
        for dry_run in (True, False):
            assert store.prune(before_ns=T0, dry_run=dry_run).rewards == 1
        assert rewarded(store) == {"old", "new", "undated", "a"}
        assert store.prune(max_bytes=1 << 40).rewards == 0
    done = CliRunner().invoke(cli, ["prune", "--older-than", "1d", "--dir", str(data.root)])
    assert "1 trajectory (8 spans) and 2 rewards of runs that never came gone, 0 kept" in done.output
    with Store.open(data) as store:
        assert rewarded(store) == {"undated"}
        store.append([Reward("r-old", "old", 1.0, time_ns=T0)])
        assert rewarded(store) == {"undated", "old"}, "one that is sent again is one again"


def rewarded(store: Store) -> set[str]:
    return {id for (id,) in store.sql("SELECT trajectory_id FROM rewards")[1]}


def test_trajectories_are_counted_as_they_are_listed(data: DataDir) -> None:
    """An agent in a trace of its own that links to its caller counted as another one, conversations of a trace as one;
    what sources say likewise."""

    def agent(number: int, *links: SpanLink, of: int = 0, **said: str) -> SpanRow:
        said = {semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT, **said}
        return SpanRow(
            f"{of or number:032x}", f"{number:016x}", "agent", T0, T0 + 1, attributes={**said}, links=[*links]
        )

    roots = [agent(1, **{semconv.TRAJECTORY_ID: "run"}), agent(2)]
    linked = [agent(10 + number, SpanLink(one.trace_id, one.span_id)) for number, one in enumerate(roots)]
    talks = [agent(20 + number, of=20, **{semconv.CONVERSATION_ID: f"talk {number}"}) for number in range(4)]
    with Store.open(data, create=True) as store:
        store.append([*roots, *linked, *talks, *at(9, research_run("new"))])
        planned = store.prune(before_ns=T0 + HOUR, dry_run=True)
        assert (planned.trajectories, planned.spans, planned.kept_trajectories) == (6, 8, 1)
        assert [one.trajectories for one in planned.sources] == [6]
        assert len(store.summaries()) == 7
        done = store.prune(before_ns=T0 + HOUR)
        assert (done.trajectories, done.spans, done.kept_trajectories) == (6, 8, 1)
        assert [one.id for one in store.summaries()] == ["new"]
