"""A query reads the store and nothing else, whoever asks; pruning and spilling to the disk are not hindered by that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_agent import T0, research_run

from arttrace import semconv
from arttrace.collector.owner import hold_store
from arttrace.errors import StoreError
from arttrace.paths import DataDir
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.store import Store, open_store

HOUR = 3600 * 10**9


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


@pytest.fixture
def store(data: DataDir) -> Iterator[Store]:
    with Store.open(data, create=True) as store:
        yield store


@pytest.mark.parametrize(
    "query",
    [
        "SELECT content FROM read_text('{secret}')",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM glob('{root}/*')",
        "SELECT * FROM read_text('http://127.0.0.1:1/')",
        "SELECT (SELECT content FROM read_blob('{secret}')) FROM spans",
        "EXPLAIN ANALYZE SELECT content FROM read_text('{secret}')",
    ],
)
def test_no_query_reads_a_file_or_the_network(store: Store, tmp_path: Path, query: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    with pytest.raises(StoreError, match="Cannot access file") as error:
        store.sql(query.format(secret=secret, root=tmp_path))
    assert "a DuckDB of your own" in str(error.value)


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM span_records",
        "WITH gone AS (DELETE FROM span_records RETURNING trace_id) SELECT * FROM gone",
        "EXPLAIN ANALYZE DELETE FROM span_records",
        "EXPLAIN (ANALYZE) DELETE FROM span_records",
        "EXPLAIN ANALYZE WITH gone AS (DELETE FROM span_records RETURNING trace_id) SELECT * FROM gone",
        "EXPLAIN ANALYZE COPY span_records TO '{store}' (USE_TMP_FILE false)",
        "COPY span_records TO '{store}.new'",
        "ATTACH '{store}.new' AS other",
        "SET enable_external_access = true",
        "SELECT 1; DELETE FROM span_records",
        "COMMIT",
    ],
)
def test_no_query_changes_anything(store: Store, data: DataDir, query: str) -> None:
    store.append(research_run("a"))
    with pytest.raises(StoreError):
        store.sql(query.format(store=data.store))
    assert store.sql("SELECT count(*) FROM span_records")[1] == [(8,)]
    store.append(research_run("b"))
    assert [one.id for one in store.trajectories()] == ["a", "b"]
    assert not list(data.root.glob("*.new"))


@pytest.mark.parametrize(
    "query",
    [
        "EXPLAIN SELECT * FROM spans",
        "explain analyze\n SELECT * FROM spans",
        "FROM spans",
        "DESCRIBE trajectories",
        "SHOW TABLES",
        "SUMMARIZE calls",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT * FROM n",
        "SELECT now(), document->'attributes' FROM spans",
    ],
)
def test_what_reads_is_answered(store: Store, query: str) -> None:
    store.append(research_run("a"))
    _, rows = store.sql(query)
    assert rows


def test_who_asks_the_owner_gets_no_more(data: DataDir, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    with hold_store(data, create=True), open_store(data) as store:
        store.append(research_run("a"))
        with pytest.raises(StoreError, match="Cannot access file"):
            store.sql(f"SELECT * FROM read_csv('{secret}')")
        with pytest.raises(StoreError, match="read-only"):
            store.sql("WITH gone AS (DELETE FROM span_records RETURNING trace_id) SELECT * FROM gone")
        assert store.sql("SELECT count(*) FROM span_records")[1] == [(8,)]


def test_after_a_failed_query_comes_the_next(store: Store) -> None:
    with pytest.raises(StoreError, match="nope"):
        store.sql("SELECT nope")
    assert store.sql("SELECT 1")[1] == [(1,)]


def test_a_store_named_from_where_one_stands_is_pruned_and_spills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = DataDir(Path("it's here"))
    small = {"memory_limit": "50MB", "threads": 1}
    sort = """SELECT md5(range::VARCHAR) || md5((range + 1)::VARCHAR) AS s FROM range(1000000)
        ORDER BY s OFFSET 999999"""
    monkeypatch.setattr("arttrace.store.database.SETTINGS", {**small, "temp_directory": ""})
    with Store.open(data, create=True) as store, pytest.raises(StoreError, match="Out of Memory"):
        store.sql(sort)
    monkeypatch.setattr("arttrace.store.database.SETTINGS", small)
    with Store.open(data) as store:
        store.append(research_run("old"))
        assert len(store.sql(sort)[1]) == 1
        with pytest.raises(StoreError, match="Cannot access file"):
            store.sql(f"SELECT * FROM glob('{tmp_path}/*')")
        assert store.prune(before_ns=T0 + HOUR).trajectories == 1
        assert store.sql("SELECT count(*) FROM span_records")[1] == [(0,)]
        store.append(research_run("new"))
    with Store.open(data) as store:
        assert [one.id for one in store.summaries()] == ["new"]


# --- rewards --------------------------------------------------------------------------------------------------


def with_reward(span: SpanRow, value: float = 1.0) -> SpanRow:
    attributes = {semconv.EVALUATION_NAME: "r", semconv.EVALUATION_SCORE: value, semconv.REWARD_ID: "one"}
    return SpanRow(
        span.trace_id,
        span.span_id,
        span.name,
        span.start_ns,
        span.end_ns,
        span.parent_span_id,
        attributes=span.attributes,
        events=[SpanEvent(semconv.EVALUATION_EVENT, T0, attributes)],
    )


def agent(trace: str, id: str, *, parent: str | None = None, conversation: str | None = None) -> SpanRow:
    attributes = {semconv.OPERATION_NAME: "invoke_agent"}
    if conversation is not None:
        attributes[semconv.CONVERSATION_ID] = conversation
    return SpanRow(trace * 32, id * 16, "agent", T0, T0 + 9, parent and parent * 16, attributes=attributes)


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([agent("7", "1"), agent("7", "2", parent="1")], id="root and child"),
        pytest.param(
            [agent("7", "1", conversation="a"), agent("7", "2", conversation="b")], id="two conversations of a trace"
        ),
        pytest.param(
            [agent("7", "1", conversation="a"), agent("8", "2", conversation="b")], id="conversations of two traces"
        ),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_reward_met_on_two_spans_is_one_reward(data: DataDir, spans: list[SpanRow], turned: bool) -> None:
    rewarded = [with_reward(span) for span in spans]
    with Store.open(data, create=True) as store:
        for span in reversed(rewarded) if turned else rewarded:
            store.append([span])
        built = {t.id: {r.name: r.value for r in t.rewards} for t in store.trajectories()}
        asked = {id: rewards or {} for id, rewards in store.sql("SELECT id, rewards FROM trajectories")[1]}
        assert asked == built
        assert sum(rewards.get("r", 0.0) for rewards in asked.values()) == 1.0
        assert store.sql("SELECT count(*) FROM rewards")[1] == [(1,)]
