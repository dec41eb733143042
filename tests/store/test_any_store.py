"""The store gives the same answers to its owner and to those that ask its owner."""

from __future__ import annotations

import datetime
import inspect
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from simulated_agent import T0, research_run

from arttrace.records import semconv
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.record import encode_record
from arttrace.records.reward import Judgement, Reward
from arttrace.records.span import SpanRow
from arttrace.store import AnyStore, RemoteStore, Store, open_store
from arttrace.store.access import run_spans
from arttrace.store.access.client import OwnerClient
from arttrace.store.access.operations import OPERATIONS
from arttrace.store.access.run_spans import spans_in_parts, traces_of_run
from arttrace.store.access.summary_pages import summary_pages
from arttrace.store.server import api
from arttrace.store.server.owner import hold_store
from arttrace.system.errors import StoreError
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

OWNERS_ALONE = {"open", "close", "append", "journal", "load", "when_made_again"}


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


@pytest.fixture(params=["owner", "asker"])
def store(request: pytest.FixtureRequest, data: DataDir) -> Iterator[AnyStore]:
    if request.param == "owner":
        with open_store(data, create=True) as store:
            assert isinstance(store, Store)
            yield store
        return
    with hold_store(data, create=True), open_store(data) as store:
        assert isinstance(store, RemoteStore)
        yield store


def test_both_have_the_same_methods() -> None:
    public = {name for name, _ in inspect.getmembers(Store, callable) if not name.startswith("_")}
    own = OWNERS_ALONE | {"sql_pages"}  # which asks an owner by `sql`
    assert public - own == set(OPERATIONS), "a new method of Store: name it in access/any_store.py too"
    for name in (*OPERATIONS, "append", "sql_pages"):
        for other in (RemoteStore, AnyStore):
            assert inspect.signature(getattr(Store, name)) == inspect.signature(getattr(other, name)), name


@pytest.mark.parametrize("since_ns", [None, T0])
def test_an_owner_of_a_version_that_does_not_know_since_is_asked_for_all(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, since_ns: int | None
) -> None:
    fields: list[Any] = [("limit", int), ("before", tuple[int, str] | None, None)]
    before = msgspec.defstruct("recorded_ids", fields, frozen=True, forbid_unknown_fields=True)
    asked = msgspec.structs.replace(OPERATIONS["recorded_ids"], arguments=before)
    monkeypatch.setattr(api, "OPERATIONS", {**OPERATIONS, asked.name: asked})
    with hold_store(data, create=True) as owner, open_store(data) as store:
        owner.append([*research_run("a"), *research_run("b")])
        assert isinstance(store, RemoteStore)
        pages = list(summary_pages(store, since_ns=since_ns))
    assert sorted(run.id for page in pages for run in page) == ["a", "b"]


def test_the_spans_of_a_large_trace_come_some_at_a_time(store: AnyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {id: research_run(id) for id in ("a", "b", "c")}
    later = msgspec.structs.replace(runs["b"][-1], name="said again")
    store.append([*runs["b"], *runs["a"], *runs["c"], later])
    traces = [runs[id][0].trace_id for id in ("c", "b", "a")]
    assert traces_of_run(store, "b") == [traces[1]]
    assert traces_of_run(store, "nobody's") == [] == list(spans_in_parts(store, []))

    def written(span: SpanRow) -> bytes:
        return msgspec.json.encode(span, order="sorted")

    expected = sorted(map(written, (*runs["a"], *runs["b"], *runs["c"], later)))

    def parts() -> list[list[SpanRow]]:
        found = list(spans_in_parts(store, traces))
        by_trace = dict.fromkeys(span.trace_id for part in found for span in part)
        assert list(by_trace) == traces
        assert sorted(written(span) for part in found for span in part) == expected
        return found

    assert len(parts()) == 3
    monkeypatch.setattr(run_spans, "BYTES_AT_ONCE", 1)
    starts = {(span.trace_id, span.start_ns) for run in runs.values() for span in run}
    assert len(parts()) == len(starts) > 3


def test_what_went_in_comes_out(store: AnyStore) -> None:
    spans = research_run("a", "s") + research_run("b", "s")
    store.append(spans)
    built = build_trajectories(spans)
    assert store.trajectories() == built
    assert store.trajectory("a") == built[0]
    assert [one.id for one in store.summaries(limit=1)] == ["b"]
    assert sorted(store.spans("a"), key=lambda span: span.span_id) == sorted(spans[:8], key=lambda span: span.span_id)
    reward = Reward(id="r", trajectory_id="a", value=0.25, name="ruler", source="judge", time_ns=2)
    judgement = Judgement(id="j", key="k", group="s", judge="m", rubric_hash="h", scores={"a": 0.25})
    step = PolicyStep("policy", 1, "adapter", consumed=(Consumed("a", "rev"),), metrics={"loss": 0.5})
    store.append(record for record in (reward, judgement, step))
    assert store.trajectory("a").rewards == (reward,)
    assert store.judgement("k") == judgement
    assert store.judgement("other") is None
    assert store.policy_steps("policy") == [step]
    assert store.policy_steps("other") == []


def test_selection(store: AnyStore) -> None:
    store.append(research_run("a1", "s") + research_run("a2", "t") + research_run("b", "t")[:-1])
    store.append([PolicyStep("p", 1, "x", consumed=(Consumed("a1", "r"),))])

    def ids(**conditions: object) -> list[str]:
        return sorted(t.id for t in store.trajectories(**conditions))  # type: ignore[arg-type]

    assert ids() == ["a1", "a2", "b"]
    assert ids(group="s") == ["a1"]
    assert ids(groups=["s", "t"]) == ["a1", "a2"]
    assert ids(entry="agent:run") == ["a1", "a2"]
    assert ids(unconsumed_by="p") == ["a2", "b"]
    assert ids(complete_only=True) == ["a1", "a2"]
    assert ids(ids=("b", "nope")) == ["b"]
    assert [one.id for one in store.summaries(since_ns=T0, group="s")] == ["a1"]


def test_refusals_keep_their_words(store: AnyStore) -> None:
    store.append(research_run("run-1") + research_run("run-2"))
    with pytest.raises(StoreError, match="2 trajectories begin with 'run-'") as error:
        store.trajectory("run-")
    assert error.value.hint == "Give more of the id."
    with pytest.raises(StoreError, match="only a single read-only query"):
        store.sql("DELETE FROM span_records")
    with pytest.raises(StoreError, match="the query failed"):
        store.sql("SELECT nothing FROM nowhere")
    with pytest.raises(TypeError):
        store.summaries(nothing=1)  # type: ignore[call-arg]


def test_values_of_every_type_keep_it(store: AnyStore) -> None:
    columns, [row] = store.sql(
        """SELECT NULL AS n, true AS b, 2::HUGEINT ** 100 AS h, 170141183460469231731687303715884105727::HUGEINT AS g,
        1.5::DOUBLE AS d, 2.50::DECIMAL(5, 2) AS e, 'ü' || chr(0) AS t, '\\xFF'::BLOB AS o, DATE '2026-01-02' AS a,
        TIME '01:02:03.000004' AS i, TIMESTAMP '2026-01-02 03:04:05.000006' AS s, INTERVAL 90 MINUTE AS v,
        '12345678-1234-5678-1234-567812345678'::UUID AS u, [1, NULL] AS l, {'k': [2.0]} AS c, MAP {1: 'x'} AS m,
        [1, 2]::INTEGER[2] AS f"""
    )
    assert columns == list("nbhgdetoaisvulcmf")
    expected = (
        *(None, True, 2.0**100, 2**127 - 1, 1.5, Decimal("2.50"), "ü\0", b"\xff", datetime.date(2026, 1, 2)),
        *(datetime.time(1, 2, 3, 4), datetime.datetime(2026, 1, 2, 3, 4, 5, 6), datetime.timedelta(minutes=90)),
        *(uuid.UUID("12345678-1234-5678-1234-567812345678"), [1, None], {"k": [2.0]}, {1: "x"}, (1, 2)),
    )
    assert row == expected
    assert [type(value) for value in row] == [type(value) for value in expected]


def test_the_spool_is_taken_in_when_asked(store: AnyStore) -> None:
    writer = JournalWriter(store.data.spool)
    for span in research_run("a"):
        writer.append(encode_record(span))
    writer.sync()
    assert store.ingest_spool() == 8
    assert [one.id for one in store.summaries()] == ["a"]
    writer.close()


def test_messages_that_prompts_share_stay_shared(data: DataDir) -> None:
    with hold_store(data, create=True) as owner, open_store(data) as asker:
        owner.append(research_run("a"))
        mine, theirs = owner.trajectory("a"), asker.trajectory("a")
        distinct = [len({id(m) for c in one.calls for m in c.call.messages}) for one in (mine, theirs)]
        assert distinct[0] == distinct[1]


def test_records_larger_than_one_request_all_arrive(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.store.access.client._POST_BYTES", 1000)
    with hold_store(data, create=True) as owner, open_store(data) as asker:
        rewards = [Reward(id=str(n), trajectory_id="t", value=float(n), explanation="x" * 300) for n in range(20)]
        asker.append(rewards)
        assert owner.sql("SELECT count(*) FROM rewards")[1] == [(20,)]
        asker.append([msgspec.structs.replace(one) for one in rewards])
        assert owner.sql("SELECT count(*) FROM rewards")[1] == [(20,)]


def test_what_is_appended_again_is_not_new(store: AnyStore) -> None:
    spans, reward = research_run(), Reward(id="r", trajectory_id="run", value=1.0)
    assert store.append([*spans[:2], reward]) == 3
    assert store.append([*spans, reward]) == len(spans) - 2
    assert store.append([reward]) == 0


@pytest.mark.parametrize("operation", ["append", "sql"])
@pytest.mark.parametrize("headers", [{"content-encoding": "gzip"}, {"content-type": "text/html"}])
def test_an_answer_of_somebody_in_between_is_said_to_be_unreadable(operation: str, headers: dict[str, str]) -> None:
    """As of a proxy, or a page to log in at."""
    client = OwnerClient("http://127.0.0.1:1", "token")
    answer = httpx.MockTransport(lambda _: httpx.Response(200, stream=httpx.ByteStream(b"<html>"), headers=headers))
    client._client = httpx.Client(base_url=client.url, transport=answer)
    with pytest.raises(StoreError, match=client.url):
        client.append(research_run("a")) if operation == "append" else client.request("sql", {"query": "SELECT 1"})


def test_integers_of_any_size_are_what_they_were(store: AnyStore) -> None:
    """A factorial is one, and the maximum in the schema of a tool."""
    large, least = 2**64, -(2**63) - 1
    about = msgspec.json.encode({"n": [large, least, 2**64 - 1]}).decode()
    parts = [{"type": "tool_call_response", "id": "1", "response": {"n": large}}, {"type": "odd", "n": least}]
    run = {semconv.OPERATION_NAME: "invoke_agent", semconv.TRAJECTORY_ID: "a", semconv.ENTRY: "m:f"}
    call = {semconv.OPERATION_NAME: "chat", semconv.TRAJECTORY_ID: "a"}
    said = {semconv.ENTRY_ARGUMENTS: about, semconv.ENTRY_RESULT: str(large), semconv.METADATA: about}
    asked = {
        semconv.INPUT_MESSAGES: [{"role": "tool", "parts": parts}],
        semconv.TOOL_DEFINITIONS: f'[{{"type":"function","maximum":{large}}}]',
    }
    spans = [
        SpanRow("1" * 32, "2" * 16, "f", T0, T0 + 9, attributes=run | said),
        SpanRow("1" * 32, "3" * 16, "chat", T0 + 1, T0 + 5, parent_span_id="2" * 16, attributes=call | asked),
    ]
    assert store.append(spans) == 2
    assert sorted(store.spans("a"), key=lambda span: span.start_ns) == spans
    [expected] = build_trajectories(spans)
    assert (expected.result, expected.arguments) == (large, {"n": [large, least, 2**64 - 1]})
    assert store.trajectory("a") == expected
    assert store.trajectories() == [expected]
    assert [one.metadata for one in store.summaries()] == [{"n": [large, least, 2**64 - 1]}]
