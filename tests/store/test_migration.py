"""A store of an older schema (data/) becomes one of this version, or stays what it was."""

from __future__ import annotations

import gzip
import shutil
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest
from simulated_agent import research_run
from stored_runs import SAYS_LESS
from units import agree, caller, linked, sessions

from arttrace.records.span import SpanEvent, SpanLink, SpanRow
from arttrace.store import Store
from arttrace.store.file import migrations
from arttrace.store.ingest.writer import Writer
from arttrace.store.rows.encode import EncodedRecord, EncodedSpan
from arttrace.store.rows.tables import VERSION
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

TABLES = ("span_records", "reward_records", "judgement_records", "policy_step_records", "consumption")
FIXTURE = Path(__file__).parent / "data" / "version-1.duckdb.gz"


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path)
    data.store.write_bytes(gzip.decompress(FIXTURE.read_bytes()))
    return data


def check(data: DataDir) -> None:
    spans = research_run("a", "s") + research_run("b", "s") + research_run("half", "t")[:-1]
    with Store.open(data) as store:
        built = store.trajectories()
        assert [t.calls for t in built] == [t.calls for t in build_trajectories(spans)]
        assert [t.revision for t in built] == [t.revision for t in build_trajectories(spans)]
        assert len(store.spans("a")) == len(research_run("a")) + 1
        [reward] = store.trajectory("a").rewards
        assert (reward.id, reward.value) == ("r", 0.25)
        judgement = store.judgement("k")
        assert judgement is not None
        assert judgement.id == "j"
        [step] = store.policy_steps("policy")
        assert (step.consumed[0].trajectory_id, step.consumed[0].revision) == ("a", "8790a85c2a4a8ba8")
        assert sorted(t.id for t in store.trajectories(unconsumed_by="policy")) == ["b", "half"]
        assert store.sql("SELECT version FROM arttrace_schema")[1] == [(VERSION,)]


def test_version_1_is_brought_to_this_version(data: DataDir) -> None:
    check(data)
    assert sorted(path.name for path in data.root.iterdir() if path.is_file()) == ["store.duckdb", "store.duckdb.lock"]
    check(data)


def test_version_2_is_brought_to_this_version(data: DataDir) -> None:
    with gzip.open(FIXTURE.with_name("version-2.duckdb.gz")) as file:
        data.store.write_bytes(file.read())
    with duckdb.connect(str(data.store), read_only=True) as connection:
        before = {table: connection.execute(f"FROM {table} ORDER BY ALL").fetchall() for table in TABLES}
        assert [len(rows) for rows in before.values()] == [35, 2, 1, 1, 1]
    built = build_trajectories(
        research_run("a", "s")
        + research_run("b", "s")
        + research_run("half", "t")[:-1]
        + sessions("one", "two")
        + caller()[0]
        + linked("helper", caller()[1])
    )
    for _ in range(2):
        with Store.open(data) as store:
            assert {table: held(store, table) for table in TABLES} == before
            assert store.sql("SELECT version FROM arttrace_schema")[1] == [(VERSION,)]
            assert [(t.id, t.revision) for t in store.trajectories()] == [(t.id, t.revision) for t in built]
            [foreign] = store.spans("0af7651916cd43dd8448eb211c80319c")
            assert foreign.attributes == {"size": 1.0, "raw": "AAE="}
            assert (foreign.events, foreign.resource) == ([SpanEvent("e", 1)], {"service.name": "shop"})
            agree(store)


def held(store: Store, table: str) -> list[tuple[Any, ...]]:
    """The rows of a table, without what a span record did not have before schema 4."""
    without = " EXCLUDE (arrived_ns)" if table == "span_records" else ""
    return store.sql(f"SELECT *{without} FROM {table} ORDER BY ALL")[1]


def test_version_3_is_brought_to_this_version(data: DataDir) -> None:
    """What came before the store knew when counts as come now: nothing of it is pruned as old too early."""
    with gzip.open(FIXTURE.with_name("version-3.duckdb.gz")) as file:
        data.store.write_bytes(file.read())
    with duckdb.connect(str(data.store), read_only=True) as connection:
        before = {table: connection.execute(f"FROM {table} ORDER BY ALL").fetchall() for table in TABLES}
        with pytest.raises(duckdb.Error):
            connection.execute("FROM trajectories").fetchall()  # one span with the latest time there is
    began = time.time_ns()
    arrived = []
    for _ in range(2):
        with Store.open(data) as store:
            assert {table: held(store, table) for table in TABLES} == before
            assert store.sql("SELECT version FROM arttrace_schema")[1] == [(VERSION,)]
            [(first, last)] = store.sql("SELECT min(arrived_ns), max(arrived_ns) FROM span_records")[1]
            assert began <= first == last <= time.time_ns()
            arrived.append(first)
            assert store.trajectory("a").rewards[0].value == 0.25
            [tagged] = store.sql("SELECT tags, metadata->>'user' FROM trajectories WHERE tags IS NOT NULL")[1]
            assert tagged == (["beta", "eu"], "u1")
            agree(store)
            assert store.prune(before_ns=began, dry_run=True).trajectories == 0
    assert arrived[0] == arrived[1]


def test_views_of_another_day_are_replaced(tmp_path: Path) -> None:
    """A store of this very version that was made before a view changed, or by a program whose views were others."""
    data = DataDir(tmp_path / "other")
    with Store.open(data, create=True) as store:
        store.append(research_run("a"))
        views = store.sql("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1")
    for mark in (
        "UPDATE arttrace_schema SET views = 7",
        "UPDATE arttrace_schema SET views = NULL",
        SAYS_LESS,
    ):
        with duckdb.connect(str(data.store)) as connection:
            connection.execute("CREATE OR REPLACE VIEW rewards AS SELECT 'twice' AS trajectory_id")
            connection.execute("CREATE VIEW gone AS SELECT 1")
            connection.execute(mark)
        for _ in range(2):
            with Store.open(data) as store:
                assert store.sql("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1") == views
                assert store.sql("SELECT version FROM arttrace_schema")[1] == [(VERSION,)]
                agree(store)


def test_views_are_replaced_only_when_they_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDir(tmp_path / "same")
    Store.open(data, create=True).close()
    monkeypatch.setattr(migrations, "_replace_views", lambda *_: pytest.fail("they are the same"))
    Store.open(data).close()


def test_spans_placed_by_other_rules_are_placed_again(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    agent = {"gen_ai.operation.name": "invoke_agent"}
    main = SpanRow("a" * 32, "1" * 16, "main", 1, 9, attributes=agent)
    other = SpanRow("b" * 32, "2" * 16, "other", 2, 3, attributes=agent, links=[SpanLink("a" * 32, "1" * 16)])
    with Store.open(data, create=True) as store:
        store.append([main, other])
        assert store.sql("SELECT id FROM trajectories")[1] == [("a" * 32,)]
    with duckdb.connect(str(data.store)) as connection:
        connection.execute("DELETE FROM placed_spans; UPDATE arttrace_schema SET views = 7")
    with Store.open(data) as store:
        assert store.sql("SELECT id FROM trajectories")[1] == [("a" * 32,)]


def test_a_change_of_views_that_dies_leaves_the_store_as_it_was(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with gzip.open(FIXTURE.with_name("version-2.duckdb.gz")) as file:
        data.store.write_bytes(file.read())
    with monkeypatch.context() as patch:
        patch.setattr("arttrace.store.rows.span_membership.FIND", "SELECT error('no room')")
        with pytest.raises(Exception, match="no room"):
            Store.open(data)
    with duckdb.connect(str(data.store), read_only=True) as connection:
        assert connection.execute("SELECT version FROM arttrace_schema").fetchall() == [(2,)]
        assert connection.execute("SELECT count(*) FROM trajectories").fetchone() is not None
    with Store.open(data) as store:
        agree(store)


def test_a_migration_that_dies_leaves_the_store_as_it_was(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    write = Writer.write

    def dies(self: Writer, records: list[EncodedRecord], *_: object) -> int:
        if not isinstance(records[0], EncodedSpan):
            shutil.copy(data.root / "store.duckdb.new", data.root / "store.duckdb.left")
            raise Killed
        return write(self, records)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", dies)
        with pytest.raises(Killed):
            Store.open(data)
    with duckdb.connect(str(data.store), read_only=True) as connection:
        assert connection.execute("SELECT version FROM arttrace_schema").fetchall() == [(1,)]
    (data.root / "store.duckdb.left").rename(data.root / "store.duckdb.new")  # what a killed process leaves behind
    check(data)


def test_a_copy_that_lacks_something_is_not_taken(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Writer.write
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", lambda self, records, *_: write(self, records[:3]))
        with pytest.raises(Exception, match=r"[0-9]+ rows of span_records missing"):
            Store.open(data)
    check(data)
