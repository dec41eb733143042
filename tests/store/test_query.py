"""A query reads the store and nothing else, whoever asks; pruning and spilling to the disk are not hindered by that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_agent import T0, research_run

from arttrace.records import semconv
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.store import Store, open_store
from arttrace.store.server.owner import hold_store
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir

HOUR = 3600 * 10**9


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


@pytest.fixture
def store(data: DataDir) -> Iterator[Store]:
    with Store.open(data, create=True) as store:
        yield store


def test_nothing_is_printed_while_duckdb_works_long(data: DataDir) -> None:
    """DuckDB draws a progress bar where it takes a program for interactive: in a notebook, and in `python -c`."""
    program = """
import sys
from pathlib import Path
from arttrace.system.paths import DataDir
from arttrace.store import Store
with Store.open(DataDir(Path(sys.argv[1])), create=True) as store:
    setting = "SELECT current_setting('enable_progress_bar')"
    print(store._file.connection.execute(setting).fetchall(), store.sql(setting)[1])
"""
    command = [sys.executable, "-c", program, str(data.root)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[(False,)] [(False,)]\n"


HIDDEN = [
    "{copy}",
    "EXPLAIN ANALYZE {copy}",
    "EXPLAIN (ANALYZE) {copy}",
    "EXPLAIN (FORMAT json, ANALYZE) {copy}",
    "EXPLAIN(ANALYZE){copy}",
    "EXPLAIN ANALYZE (FORMAT json) {copy}",
    "EXPLAIN EXPLAIN ANALYZE {copy}",
    "--a EXPLAIN\nEXPLAIN ANALYZE COPY (/*\nSELECT 1 --*/ SELECT 42 AS hacked) TO '{store}' {options}",
    "--a EXPLAIN\nEXPLAIN ANALYZE COPY (/*\nSELECT 1 --*/ SELECT 42 AS hacked) TO '{store}.new' {options}",
    "/* EXPLAIN */ EXPLAIN ANALYZE {copy}",
    "/* EXPLAIN SELECT 1 -- */ EXPLAIN ANALYZE {copy}",
    "EXPLAIN /* SELECT 1 -- */ ANALYZE {copy}",
    "EXPLAIN -- SELECT 1\nANALYZE {copy}",
    "EXPLAIN/**/ANALYZE {copy}",
    "EXPLAIN ANALYZE/**/{copy}",
    "EXPLAIN (ANALYZE /* ) SELECT 1 -- */) {copy}",
    "EXPLAIN ANALYZE SELECT 1; {copy}",
    "EXPLAIN ANALYZE; {copy}",
    "\u00a0EXPLAIN\u00a0ANALYZE\u00a0{copy}",
    "\ufeffEXPLAIN ANALYZE {copy}",
    "EXPLAIN ANALYZE\u2028{copy}",
    "EXPLAIN ANALYZE WITH gone AS ({copy}) SELECT * FROM gone",
    "WITH gone AS ({copy}) SELECT * FROM gone",
    "WITH gone AS (EXPLAIN ANALYZE {copy}) SELECT * FROM gone",
    "FROM (EXPLAIN ANALYZE {copy})",
    "DESCRIBE {copy}",
    "SUMMARIZE {copy}",
    "SELECT 1;{copy}",
    "SELECT 1 /*;*/;{copy}--",
    "SELECT 1;;{copy}",
    "SELECT 1\0; {copy}",
    "PREPARE harm AS {copy}",
    "EXECUTE harm",
    "FROM query('{quoted}')",
    "FROM query('EXPLAIN ANALYZE {quoted}')",
    "FROM query_table('{quoted}')",
    "FROM json_execute_serialized_sql(json_serialize_sql('{quoted}'))",
    "FROM json_execute_serialized_sql(json_serialize_sql('WITH gone AS ({quoted}) FROM gone'))",
    "FROM json_execute_serialized_sql(json_serialize_sql('WITH g AS (DELETE FROM span_records) FROM g'))",
    "FROM system.main.\"JSON_execute_serialized_sql\"(json_serialize_sql('WITH g AS ({quoted}) FROM g'))",
    "FROM query('FROM json_' || 'execute_serialized_sql(json_serialize_sql(''WITH g AS (DELETE FROM span_records) "
    "FROM g''))')",
    "SUMMARIZE FROM json_execute_serialized_sql(json_serialize_sql('WITH g AS ({quoted}) FROM g'))",
    "EXPLAIN ANALYZE FROM json_execute_serialized_sql(json_serialize_sql('WITH g AS ({quoted}) FROM g'))",
    "WITH gone AS NOT MATERIALIZED ({copy}) SELECT 1",
    "(WITH gone AS ({copy}) FROM gone) UNION ALL SELECT 1",
    "SELECT now() AS t, (WITH gone AS ({copy}) FROM gone)",
    "WITH gone AS ({copy}) SELECT now() AS t FROM gone",
    "SELECT now() AS t) TO '{store}' (FORMAT csv) --",
    "SELECT now() AS t; {copy}",
    'SELECT now() AS "t) FROM (SELECT 1); {copy} --", 1 AS t FROM nothing',
    "EXPORT DATABASE '{store}.new'",
    "IMPORT DATABASE '{store}.new'",
    "PRAGMA import_database('{store}.new')",
    "PRAGMA disable_checkpoint_on_shutdown",
    "PRAGMA enable_profiling",
    "CALL checkpoint()",
    "CALL enable_logging()",
    "FROM enable_logging(storage = 'file', storage_path = '{store}.new')",
    "FROM enable_profiling(save_location = '{store}.new')",
    "FROM force_checkpoint()",
    "CREATE TRIGGER harm AFTER INSERT ON span_records FOR EACH STATEMENT DELETE FROM span_records",
    "DETACH store",
    "USE memory",
    "LOAD json",
    "INSTALL httpfs",
    "VACUUM",
]


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


def test_no_query_hides_one_that_writes(store: Store, data: DataDir) -> None:
    """A COPY is not stopped by a transaction that only reads, and the store is a file that it may write."""
    store.append(research_run("a"))
    options = "(FORMAT csv, USE_TMP_FILE false)"
    copy = f"COPY (SELECT 42 AS hacked) TO '{data.store}' {options}"
    quoted = copy.replace("'", "''")
    for query in HIDDEN:
        with pytest.raises(StoreError):
            print(query, store.sql(query.format(store=data.store, options=options, copy=copy, quoted=quoted)))
        assert data.store.read_bytes()[8:12] == b"DUCK", query
        assert store.sql("SELECT count(*) FROM span_records")[1] == [(8,)], query
        assert not list(data.root.glob("*.new")), query
    store.append(research_run("b"))
    assert [one.id for one in store.trajectories()] == ["a", "b"]


@pytest.mark.parametrize(
    "query",
    [
        "EXPLAIN SELECT * FROM spans",
        "explain analyze\n SELECT * FROM spans",
        "EXPLAIN (FORMAT json) SELECT 1",
        "EXPLAIN (ANALYZE) SELECT 1",
        "EXPLAIN (ANALYZE, FORMAT json) SELECT '--' /* as it is */ FROM spans; -- the end",
        "EXPLAIN(SELECT 1)",
        "EXPLAIN FROM spans",
        "SELECT now() -- the time",
        "SELECT now(), ';' AS \"é;\" -- now;\n; -- the time ;\n;",
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
        with pytest.raises(StoreError, match="read-only query"):
            store.sql("WITH gone AS (DELETE FROM span_records RETURNING trace_id) SELECT * FROM gone")
        assert store.sql("SELECT count(*) FROM span_records")[1] == [(8,)]


@pytest.mark.parametrize(
    ("query", "answer"), [(f"SELECT {'NOT ' * 900}true", True), (f"SELECT {'+'.join(['1'] * 900)}", 900)]
)
def test_a_query_nested_too_deep_is_refused_or_read_to_its_end(
    store: Store, query: str, answer: object, request: pytest.FixtureRequest
) -> None:
    """DuckDB parses it, and what it parsed may be deeper than JSON is read: nothing of it may run unchecked. How deep
    that is follows Python's recursion limit, which libraries that are imported here raise; 3.13 goes deeper."""
    limit = sys.getrecursionlimit()
    request.addfinalizer(lambda: sys.setrecursionlimit(limit))
    sys.setrecursionlimit(1000)
    if sys.version_info >= (3, 13):
        assert store.sql(query)[1] == [(answer,)]
    else:
        with pytest.raises(StoreError, match="nested too deep"):
            store.sql(query)
    with pytest.raises(StoreError, match=r"nested too deep|read-only query"):
        store.sql(f"SELECT {'NOT ' * 800} (SELECT count(*) FROM force_checkpoint()) = 0")
    assert store.sql("SELECT 1")[1] == [(1,)]


def test_after_a_failed_query_comes_the_next(store: Store) -> None:
    with pytest.raises(StoreError, match="nope"):
        store.sql("SELECT nope")
    assert store.sql("SELECT 1")[1] == [(1,)]


def test_an_answer_that_is_too_large_is_refused_after_some_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand rows at a time many gigabytes were in memory before the first look at their size."""
    monkeypatch.setattr("arttrace.store.access.sql.MAX_ANSWER_BYTES", 1 << 20)
    with pytest.raises(StoreError, match=r"after 1000 rows"):
        store.sql("SELECT repeat('x', 500) FROM range(10000)")


@pytest.mark.parametrize(
    "query",
    ["SELECT {0}", "SELECT [{0}]", "SELECT {{'a': {0}, 'n': [{0}]}}", "SELECT MAP {{{0}: {0}}}", "SELECT ({0}, {0})"],
)
def test_times_are_in_utc_wherever_they_stand(store: Store, query: str) -> None:
    [(found,)] = store.sql(query.format("'2026-01-02 03:04:05+00'::TIMESTAMPTZ"))[1]
    assert "datetime.datetime" in repr(found)
    assert repr(found).count("datetime.datetime(") == repr(found).count("tzinfo=datetime.timezone.utc")
    assert "2026, 1, 2, 3, 4, 5" in repr(found)


def test_a_query_with_bytes_that_are_no_text_is_refused(store: Store) -> None:
    """As an argument of the command it stands for a byte that is not UTF-8."""
    with pytest.raises(StoreError, match=r"the query failed: .*not UTF-8"):
        store.sql("SELECT '\udcff'")


def test_a_number_beyond_a_column_does_not_say_that_the_store_is_damaged(store: Store) -> None:
    """Who moved it away would lose what is in it."""
    with pytest.raises(StoreError, match="out of range") as error:
        store._column("SELECT CAST(? AS BIGINT)", [10**20])  # as a limit is, or was before DuckDB 2.0.1
    assert "move it away" not in str(error.value)


def test_a_store_named_from_where_one_stands_is_pruned_and_spills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = DataDir(Path("it's here"))
    small = {"memory_limit": "50MB", "threads": 1}
    sort = """SELECT md5(range::VARCHAR) || md5((range + 1)::VARCHAR) AS s FROM range(600000)
        ORDER BY s OFFSET 599999"""
    monkeypatch.setattr("arttrace.store.file.duckdb_file._SETTINGS", {**small, "temp_directory": ""})
    with Store.open(data, create=True) as store, pytest.raises(StoreError, match="Out of Memory"):
        store.sql(sort)
    monkeypatch.setattr("arttrace.store.file.duckdb_file._SETTINGS", small)
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
