from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC
from pathlib import Path

import duckdb
import msgspec
import pytest
from msgspec.structs import replace
from simulated_agent import T0, Run, message, research_run

from arttrace.records import semconv
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.record import Record, encode_record
from arttrace.records.reward import Judgement, Reward
from arttrace.records.span import SpanEvent, SpanLink, SpanRow
from arttrace.store import Store
from arttrace.store.access import local as local_module
from arttrace.system.errors import StoreError
from arttrace.system.journal import JournalWriter, list_segments
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


def spool(data: DataDir, records: Iterable[Record], *, seal: bool = True) -> JournalWriter:
    writer = JournalWriter(data.spool)
    for record in records:
        writer.append(encode_record(record))
    writer.sync()
    if seal:
        writer.close()
    return writer


def count(store: Store, table: str) -> int:
    return int(store.sql(f"SELECT count(*) FROM {table}")[1][0][0])


def test_no_store_says_what_to_do(data: DataDir) -> None:
    with pytest.raises(StoreError, match="no store in") as error:
        Store.open(data)
    assert "arttrace run" in (error.value.hint or "")
    assert not data.root.exists()


def test_a_last_run_that_had_no_room_for_its_words_is_not_quoted(data: DataDir) -> None:
    data.root.mkdir(parents=True)
    (data.root / "last_run").touch()
    with pytest.raises(StoreError, match="no store in") as error:
        Store.open(data)
    assert "arttrace run -- python agent.py" in (error.value.hint or "")


def test_a_spool_makes_the_store_and_is_taken_in_once(data: DataDir) -> None:
    spans = research_run("a", "s") + research_run("b", "s")
    spool(data, spans)
    with Store.open(data) as store:
        assert store.trajectories() == build_trajectories(spans)
        assert list_segments(data.spool) == []
    spool(data, random.Random(0).sample(spans, len(spans)))  # delivered again, in another order
    with Store.open(data) as store:
        assert store.trajectories() == build_trajectories(spans)
        assert count(store, "span_records") == len(spans)


def test_a_live_writer_is_read_as_it_goes(data: DataDir) -> None:
    first, second = research_run("a"), research_run("b")
    writer = spool(data, first, seal=False)
    with Store.open(data) as store:
        assert [t.id for t in store.trajectories()] == ["a"]
        for span in second:
            writer.append(encode_record(span))
        assert store.ingest_spool() == len(second)
        assert store.ingest_spool() == 0
        assert [t.id for t in store.trajectories()] == ["a", "b"]
        assert len(list_segments(data.spool)) == 1
        writer.close()
        assert store.ingest_spool() == 0
        assert list_segments(data.spool) == []
        assert count(store, "ingested_segments") == 0


def test_spans_come_out_as_they_went_in(data: DataDir) -> None:
    span = SpanRow(
        trace_id="1" * 32,
        span_id="2" * 16,
        name="chat ünïcode \x00 end",
        start_ns=2**62,
        end_ns=2**62 + 1,
        kind=3,
        status_code=2,
        status_message="no",
        attributes={"a": [1, 2.5, True, "x"], "gen_ai.operation.name": "chat", "big": 2**53 + 1, "m": {"k": None}},
        events=[SpanEvent("e", 5, {"x": 1})],
        links=[SpanLink("3" * 32, "4" * 16)],
        trace_state="s=1",
        resource={"service.name": "svc"},
        scope_name="lib",
        scope_version="1",
    )
    with Store.open(data, create=True) as store:
        store.append([span])
    with Store.open(data) as store:
        assert store.spans("1" * 32) == [span]


def test_records_of_every_kind(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        store.append(research_run("a", "s"))
        reward = Reward(id="r", trajectory_id="a", value=0.25, name="ruler", source="judge", time_ns=2)
        older = msgspec.structs.replace(reward, value=1.0, time_ns=1)
        judgement = Judgement(id="j", key="k", group="s", judge="m", rubric_hash="h", scores={"a": 0.25})
        step = PolicyStep("policy", 1, "adapter", consumed=(Consumed("a", "rev"),), metrics={"loss": 0.5})
        store.append([reward, older, judgement, step])
        store.append([step, judgement, reward])
        assert store.trajectory("a").rewards == (reward,)
        assert store.judgement("k") == judgement
        assert store.judgement("other") is None
        assert store.policy_steps("policy") == [step]
        assert store.policy_steps("other") == []
        assert count(store, "consumption") == 1
        assert store.sql("SELECT value, source FROM rewards")[1] == [(0.25, "judge")]
        assert store.sql("SELECT version, trajectories FROM policy_steps")[1] == [("policy@1", 1)]
        assert store.sql('SELECT id, "group", calls, rewards FROM trajectories')[1] == [("a", "s", 7, {"ruler": 0.25})]
        assert store.sql("SELECT count(*), any_value(policy_version) FROM calls")[1] == [(7, "policy@1")]


def test_selection(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        store.append(research_run("a1", "s") + research_run("a2", "t") + research_run("b", "t")[:-1])
        store.append([PolicyStep("p", 1, "x", consumed=(Consumed("a1", "r"),))])

        def ids(**conditions: object) -> list[str]:
            return sorted(t.id for t in store.trajectories(**conditions))  # type: ignore[arg-type]

        assert ids() == ["a1", "a2", "b"]
        assert ids(group="s") == ["a1"]
        assert ids(groups=["s", "t"]) == ["a1", "a2"]
        assert ids(group="b") == ["b"]
        assert ids(entry="agent:run") == ["a1", "a2"]
        assert ids(unconsumed_by="p") == ["a2", "b"]
        assert ids(unconsumed_by="other") == ["a1", "a2", "b"]
        assert ids(complete_only=True) == ["a1", "a2"]
        assert ids(ids=["b", "nope"]) == ["b"]
        assert store.trajectory("b").id == "b"
        with pytest.raises(StoreError, match="2 trajectories begin with 'a'"):
            store.trajectory("a")
        with pytest.raises(StoreError, match="no trajectory 'zz'"):
            store.trajectory("zz")


def test_a_late_span_completes_the_trajectory_under_a_new_revision(data: DataDir) -> None:
    spans = research_run("a", "s")
    with Store.open(data, create=True) as store:
        store.append(spans[:-1])
        before = store.trajectory("a")
        store.append(spans[-1:])
        after = store.trajectory("a")
    assert (before.incomplete, after.incomplete) == ("root missing", "")
    assert before.revision != after.revision


def test_two_contents_of_one_span_give_the_same_trajectory_in_any_order(data: DataDir, tmp_path: Path) -> None:
    spans = research_run("a", "s")
    spans.append(msgspec.structs.replace(spans[0], attributes={}))
    seen = []
    for number, order in enumerate((spans, spans[::-1])):
        with Store.open(DataDir(tmp_path / str(number)), create=True) as store:
            for span in order:
                store.append([span])
            seen.append((store.trajectory("a"), count(store, "spans"), count(store, "span_records")))
    assert seen[0] == seen[1]
    assert seen[0][1:] == (8, 9)


def test_summaries_newest_first(data: DataDir) -> None:
    later = [
        msgspec.structs.replace(s, start_ns=s.start_ns + 10**9, end_ns=s.end_ns + 10**9) for s in research_run("b")
    ]
    with Store.open(data, create=True) as store:
        store.append(research_run("a", "s") + later)
        first, second = store.summaries()
        assert (first.id, second.id) == ("b", "a")
        assert (second.agents, second.calls, second.tool_calls, second.group) == (3, 7, 4, "s")
        assert second.trained_tokens == second.captured_tokens > 0
        assert [s.id for s in store.summaries(limit=1)] == ["b"]
        assert [s.id for s in store.summaries(group="s")] == ["a"]
        assert [s.id for s in store.summaries(since_ns=T0 + 10**9)] == ["b"]


@pytest.mark.parametrize("made_by", ["arttrace", "another SDK", "nobody above the calls", "two of its processes"])
def test_the_newest_of_a_list_are_the_list_of_the_newest(data: DataDir, made_by: str) -> None:
    """Also where the clock of another process is behind: what ran there began before its run did."""
    ids = ("a" * 32, "b" * 32, "c" * 32)
    with Store.open(data, create=True) as store:
        for number, (id, behind) in enumerate(zip(ids, (0, 500, 50), strict=True)):
            run = Run(id)
            run.chat("c", [message("user", "u")], message("assistant", "x"), at=-behind)
            root = run.end(at=100)[-1]
            if made_by == "nobody above the calls":
                run.spans.remove(root)
            if made_by == "two of its processes":
                run.spans.append(replace(root, span_id="d" * 16, start_ns=root.start_ns - 300_000))
            if made_by == "another SDK":
                unknown = (semconv.TRAJECTORY_ID, semconv.ENTRY, semconv.TRAJECTORY_SPAN_COUNT, semconv.EXECUTION_ID)
                for span in run.spans:
                    for name in unknown:
                        span.attributes.pop(name, None)
            later = [replace(s, trace_id=id, start_ns=s.start_ns + number * 100_000) for s in run.spans]
            store.append([*later, *[replace(s, end_ns=0) for s in later]])
        everything = [one.id for one in store.summaries()]
        assert sorted(everything) == sorted(ids)
        for limit in (1, 2, 3):
            assert [one.id for one in store.summaries(limit=limit)] == everything[:limit]
        pages, before = [], None
        while page := store.recorded_ids(limit=1, before=before):
            before = page[-1]
            pages.append(before[1])
        assert pages == everything
        if made_by in ("arttrace", "another SDK"):
            assert everything == [*ids[::-1]]


def test_sql_only_reads(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        with pytest.raises(StoreError, match="only a single read-only query"):
            store.sql("DELETE FROM span_records")
        with pytest.raises(StoreError, match="the query failed"):
            store.sql("SELECT nothing FROM nowhere")
        names, [(time, one)] = store.sql('SELECT now() AS "a ""time", 1 AS one;')
        assert (names, one, time.tzinfo) == (['a "time', "one"], 1, UTC)


HOLD = """
import signal, sys
from pathlib import Path
from arttrace.system.paths import DataDir
from arttrace.store import Store

with Store.open(DataDir(Path(sys.argv[1])), create=True):
    print("ready", flush=True)
    signal.pause()
"""


def test_a_store_in_use_names_the_process(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.store.file.connect._LOCK_PATIENCE_S", 0.1)
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(data.root)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(StoreError, match=f"in use by process {child.pid}"):
            Store.open(data)
    finally:
        child.kill()
        child.communicate()
    Store.open(data).close()  # a dead process holds nothing


def test_unknown_schema_and_foreign_files_are_refused(data: DataDir) -> None:
    Store.open(data, create=True).close()
    with duckdb.connect(str(data.store)) as connection:
        connection.execute("UPDATE arttrace_schema SET version = 99")
    with pytest.raises(StoreError, match="schema version 99"):
        Store.open(data)
    data.store.unlink()
    with duckdb.connect(str(data.store)) as connection:
        connection.execute("CREATE TABLE t (x INTEGER)")
    with pytest.raises(StoreError, match="not a store of arttrace"):
        Store.open(data)
    data.store.write_bytes(b"something else entirely" * 1000)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store.open(data)


def test_what_reached_the_journal_is_loaded_at_the_next_open(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = research_run("a", "s")
    store = Store.open(data, create=True)

    def full_disk(*_: object) -> int:
        raise duckdb.IOException("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(local_module, "ingest_segments", full_disk)
        with pytest.raises(StoreError, match=r"could not be written(.|\n)*Nothing is lost"):
            store.append(spans)
    store.append([Reward(id="r", trajectory_id="a", value=1.0)])  # the store goes on
    assert len(store.trajectory("a").calls) == 7
    store.close()
    store.close()
    assert list_segments(data.journal) == []


_KILLED = """
import os, sys
from pathlib import Path
from arttrace.system.paths import DataDir
from arttrace.records.reward import Reward
from arttrace.store import Store
store = Store.open(DataDir(Path(sys.argv[1])), create=True)
for number in range(10_000):
    store.append([Reward(id=str(number), trajectory_id="t", value=1.0)])
    print(number, flush=True)
"""


def test_a_killed_owner_loses_nothing_acknowledged(data: DataDir) -> None:
    acknowledged: set[int] = set()
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", _KILLED, str(data.root)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for line in child.stdout:
            acknowledged.add(int(line))
            if int(line) >= 20:
                break
        os.kill(child.pid, signal.SIGKILL)
        acknowledged.update(int(line) for line in child.stdout if line.endswith("\n"))
        child.wait()
    with Store.open(data) as store:
        _, rows = store.sql("SELECT id FROM reward_records")
    assert acknowledged <= {int(id) for (id,) in rows}
    assert len(rows) == len({id for (id,) in rows})


def test_damaged_segments_are_kept_aside_and_the_rest_is_read(data: DataDir) -> None:
    spans = research_run("a", "s")
    spool(data, spans)
    [segment] = list_segments(data.spool)
    content = bytearray(segment.path.read_bytes())
    content[40] ^= 0xFF  # in the first frame
    segment.path.write_bytes(content)
    unknown = JournalWriter(data.spool)
    unknown.append(b'{"type": "from the future"}')
    unknown.append(encode_record(Reward(id="r", trajectory_id="a", value=1.0)))
    unknown.close()
    with Store.open(data) as store:
        assert len(store.spans("a")) == len(spans) - 1
        assert len(store.trajectory("a").rewards) == 1
    assert len(list(data.spool.glob("*.damaged"))) == 2


def test_content_off_still_counts_tokens(data: DataDir) -> None:
    run = Run("a")
    run.chat("c", [message("user", "u")], message("assistant", "x"), at=1, INPUT_MESSAGES=None, OUTPUT_MESSAGES=None)
    with Store.open(data, create=True) as store:
        store.append(run.end())
        [summary] = store.summaries()
    assert summary.trained_tokens > 0
