"""Summaries are made while others ask and write, and a long run's first entries without reading the whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from simulated_agent import Run, message, research_run

from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import SpanLink, SpanRow
from arttrace.store import AnyStore, Store, open_store
from arttrace.store.access import queries
from arttrace.store.ingest.writer import Writer
from arttrace.store.rows.beginning import first_of_tree
from arttrace.store.rows.tables import Row, Table
from arttrace.store.server.owner import hold_store
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories
from arttrace.views.web.models.transcript import transcript

WAIT_S = 60


@pytest.fixture(params=["owner", "asker"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyStore]:
    data = DataDir(tmp_path)
    if request.param == "owner":
        with open_store(data, create=True) as store:
            yield store
        return
    with hold_store(data, create=True), open_store(data) as store:
        yield store


def long_run(id: str, turns: int = 40) -> Run:
    """Two sub-agents side by side, each of which says its history again and again."""
    run = Run(id)
    agents = [run.agent(f"worker {n}", at=5 + n, until=900) for n in range(2)]
    histories = [[message("system", "You work."), message("user", f"task {n}")] for n in range(2)]
    for turn in range(turns):
        for n, parent in enumerate(agents):
            at, history = 10 + 20 * turn + n, histories[n]
            answer = message("assistant", f"step {turn}", calls=((f"{n}-{turn}", "look", "{}"),))
            history.append(run.chat(f"{n} {turn}", list(history), answer, at=at, parent=parent, flow=f"E{n}"))
            shown = {"TOOL_CALL_ID": f"{n}-{turn}", "TOOL_CALL_RESULT": "found"}
            run.tool(f"{n}-{turn}", "look", at=at + 6, until=at + 9, parent=parent, **shown)
            history.append(
                {"role": "tool", "parts": [{"type": "tool_call_response", "id": f"{n}-{turn}", "response": "found"}]}
            )
    run.end(at=1000)
    return run


def test_a_run_begins_as_its_transcript_does(store: AnyStore) -> None:
    store.append([*long_run("long").spans, *research_run("other")])
    store.append([Reward("r", "long", 0.5, "mine", "human", time_ns=1)])
    whole = transcript(store.trajectory("long"))
    begun = store.beginning("long", spans=40)
    assert len(begun.calls) + len(begun.tool_calls) + len(begun.agents) <= 41
    entries = transcript(begun)
    assert entries[:35] == whole[:35]
    assert len(entries) < len(whole) / 2
    assert [one.value for one in begun.rewards] == [0.5]
    assert transcript(store.beginning("long", spans=10_000)) == whole
    with pytest.raises(StoreError, match="no run was recorded as 'nothing'"):
        store.beginning("nothing", spans=40)


def test_the_first_of_a_tree_are_taken_depth_first_in_the_order_given() -> None:
    parents = {name: ("t", above) for name, above in (("a", ""), ("b", "a"), ("e", "gone"), ("c", "b"), ("d", "a"))}
    tree = {("t", name): parent for name, parent in parents.items()}
    assert [name for _, name in first_of_tree(tree, 9)] == ["a", "b", "c", "d", "e"]
    assert [name for _, name in first_of_tree(tree, 3)] == ["a", "b", "c"]
    assert first_of_tree({("t", "x"): ("t", "y"), ("t", "y"): ("t", "x")}, 9) == [], "a circle has no top"


@pytest.fixture
def building(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Store, threading.Event, threading.Event]]:
    """A store whose first trajectories are built once they may: begun, and free to go on."""
    begun, go = threading.Event(), threading.Event()

    def slowly(*args: Any, **given: Any) -> Any:
        if not begun.is_set():
            begun.set()
            assert go.wait(WAIT_S)
        return build_trajectories(*args, **given)

    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("a", "s")[:-1])
        monkeypatch.setattr(queries, "build_trajectories", slowly)
        yield store, begun, go
        go.set()


def in_thread(ask: Callable[[], Sequence[Any]]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(ask()))
    thread.start()
    return thread, found


def test_nobody_waits_while_a_summary_is_made(building: tuple[Store, threading.Event, threading.Event]) -> None:
    store, begun, go = building
    thread, found = in_thread(store.summaries)
    assert begun.wait(WAIT_S)
    asked, rows = in_thread(lambda: store.sql("SELECT count(*) FROM span_records")[1])
    asked.join(WAIT_S)
    assert rows == [(7,)]
    go.set()
    thread.join(WAIT_S)
    assert [one.id for one in found] == ["a"]


def test_a_span_that_comes_while_a_summary_is_made_is_in_it(
    building: tuple[Store, threading.Event, threading.Event],
) -> None:
    store, begun, go = building
    thread, found = in_thread(store.summaries)
    assert begun.wait(WAIT_S)
    writer, _ = in_thread(lambda: [store.append(research_run("a", "s")[-1:])])
    writer.join(WAIT_S)
    assert not writer.is_alive()
    go.set()
    thread.join(WAIT_S)
    [run] = store.trajectories()
    assert not run.incomplete
    assert [one.revision for one in found] == [one.revision for one in store.summaries()] == [run.revision]


def test_what_two_made_at_once_is_kept_once(building: tuple[Store, threading.Event, threading.Event]) -> None:
    store, begun, go = building
    thread, _ = in_thread(store.summaries)
    assert begun.wait(WAIT_S)
    other, _ = in_thread(store.summaries)
    other.join(WAIT_S)
    assert not other.is_alive()
    go.set()
    thread.join(WAIT_S)
    assert store.sql("SELECT count(*) FROM summaries WHERE document LIKE '{\"id\":%'")[1] == [(1,)]


def test_what_is_kept_is_there_while_it_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever counts tool calls at that moment counts those that are kept here alone too."""
    count = "SELECT count(*) FROM summaries"
    insert = Writer._insert
    seen: list[list[Any]] = []

    with Store.open(DataDir(tmp_path), create=True) as opened:

        def looking(writer: Writer, table: Table, rows: Sequence[Row]) -> None:
            with opened._file.reading() as connection:
                seen.append(connection.execute(count).fetchall())
            insert(writer, table, rows)

        opened.append(research_run("a"))
        opened.summaries()
        kept = opened.sql(count)[1]
        monkeypatch.setattr(Writer, "_insert", looking)
        opened._summarise(["a"])
        assert seen == [kept] == [opened.sql(count)[1]] != [[(0,)]]


def test_a_store_is_closed_when_its_readers_have_their_answers(tmp_path: Path) -> None:
    store = Store.open(DataDir(tmp_path), create=True)
    reads, never = threading.Event(), threading.Event()

    def long() -> int:
        reads.set()
        while not store._file.closed:
            never.wait(0.01)
        never.wait(1)  # long enough for a close that does not wait
        return 7

    def read() -> list[tuple[int]]:
        with store._file.reading() as connection:
            connection.create_function("long", long, [], "BIGINT")
            return connection.execute("SELECT long()").fetchall()

    thread, found = in_thread(read)
    assert reads.wait(WAIT_S)
    store.close()
    thread.join(WAIT_S)
    assert found == [(7,)]


def test_a_summary_that_is_made_when_the_store_is_closed_is_not_kept(
    building: tuple[Store, threading.Event, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    store, begun, go = building

    def refused() -> list[str]:
        with pytest.raises(StoreError) as error:
            store.summaries()
        return [error.value.message]

    thread, said = in_thread(refused)
    assert begun.wait(WAIT_S)
    store.close()
    go.set()
    thread.join(WAIT_S)
    assert said == [f"the store {store.data.store} was closed"]
    assert not caplog.records


@pytest.mark.parametrize("complete_only", [False, True])
def test_the_newest_runs_are_listed_without_reading_all_where_one_has_a_part_in_a_trace_of_its_own(
    tmp_path: Path, complete_only: bool
) -> None:
    """Which counted as one of the newest, and then every run of the store was read."""

    def agent(number: int, *links: SpanLink, **named: str) -> SpanRow:
        said = {semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT, **named}
        return SpanRow(f"{number:032x}", f"{number:016x}", "agent", number, number + 1, attributes=said, links=[*links])

    roots = [agent(number, **{semconv.TRAJECTORY_ID: f"run {number}"}) for number in range(1, 100)]
    linked = agent(100, SpanLink(roots[-1].trace_id, roots[-1].span_id))
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*roots, linked])
        listed = store.summaries(limit=3, complete_only=complete_only)
        assert [one.id for one in listed] == ["run 99", "run 98", "run 97"]
        assert [one.agents for one in listed] == [2, 1, 1]
        [(read,)] = store.sql("SELECT count(DISTINCT trajectory_id) FROM summaries")[1]
        assert read < 20
        assert [one.id for one in store.summaries(limit=1000)] == [f"run {number}" for number in range(99, 0, -1)]
