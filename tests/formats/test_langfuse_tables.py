"""Rows of the tables that Langfuse exports, to blob storage and from its pages, are the runs of its traces."""

from __future__ import annotations

import datetime
import decimal
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from system_files import lines, read, runs_of

from arttrace.formats.files.unpacked import Unreadable
from arttrace.formats.imported_files import read_file
from arttrace.records.reward import Reward
from arttrace.trajectories.identity.counting_rewards import latest

ASKED, ANSWER = [{"role": "user", "content": "2 + 2?"}], {"role": "assistant", "content": "4"}
BEGAN, ENDED = "2026-05-29 13:46:19.963000", "2026-05-29 13:46:21.963000"
ROOT = {
    "id": "o0", "trace_id": "t1", "project_id": "p", "environment": "default", "type": "SPAN", "name": "root",
    "parent_observation_id": "", "start_time": BEGAN, "end_time": ENDED, "metadata": {"shop": "bern"}, "input": "",
    "output": "", "level": "DEFAULT", "user_id": "u", "session_id": "", "tags": ["beta"], "usage_details": {},
    "cost_details": {}, "total_cost": 0, "tool_calls": [], "release": "",
}  # fmt: skip
CALL = ROOT | {
    "id": "o1", "type": "GENERATION", "parent_observation_id": "o0", "metadata": {}, "input": json.dumps(ASKED),
    "output": json.dumps(ANSWER), "provided_model_name": "m", "model_parameters": '{"temperature":0.5}',
    "usage_details": {"input": 9, "output": 3, "total": 12}, "cost_details": {"total": 0.25}, "total_cost": 0.25,
}  # fmt: skip
SCORE = {
    "id": "s1", "timestamp": ENDED, "project_id": "p", "trace_id": "t1", "observation_id": None, "session_id": None,
    "name": "good", "value": 0.5, "string_value": None, "data_type": "NUMERIC", "source": "EVAL", "comment": "so-so",
}  # fmt: skip


def parquet(*rows: dict[str, Any]) -> bytes:
    """As the server's database writes them: maps, times and decimals of its own."""
    counts, costs = pa.map_(pa.string(), pa.uint64()), pa.map_(pa.string(), pa.decimal128(18, 12))
    kinds: dict[str, pa.DataType] = {"usage_details": counts, "cost_details": costs, "total_cost": costs.item_type}
    kinds |= {"metadata": pa.map_(pa.string(), pa.string()), "start_time": pa.timestamp("us")}
    kinds |= {"end_time": pa.timestamp("us"), "tags": pa.list_(pa.string()), "tool_calls": pa.list_(pa.string())}
    written = [
        {
            **row,
            **{name: datetime.datetime.fromisoformat(row[name]) for name in ("start_time", "end_time")},
            "cost_details": {name: decimal.Decimal(str(cost)) for name, cost in row["cost_details"].items()},
            "total_cost": decimal.Decimal(str(row["total_cost"])),
        }
        for row in rows
    ]
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in CALL])
    pq.write_table(pa.Table.from_pylist(written, schema), file := io.BytesIO())
    return file.getvalue()


@pytest.mark.parametrize("data", [lines(ROOT, CALL), parquet(ROOT, CALL)], ids=["jsonl", "parquet"])
def test_rows_of_observations_are_a_run(data: bytes) -> None:
    found, [run] = read(data)
    [placed] = run.calls
    call = placed.call
    assert (call.request_model, call.temperature, call.input_tokens, call.output_tokens) == ("m", 0.5, 9, 3)
    assert [one.text for one in (*call.messages, call.choices[0].message)] == ["2 + 2?", "4"]
    assert (run.tags, run.metadata) == (("beta",), {"shop": "bern", "user_id": "u"})
    assert (run.incomplete, run.end_ns - run.start_ns, found.left_out) == ("", 2_000_000_000, {})
    assert '"total":0.25' in str(found.records)


def test_rows_of_scores_are_rewards_and_categories_are_none() -> None:
    """The value of a category is its place among others, that of a text 0, whatever it says."""
    observed = SCORE | {"id": "s2", "observation_id": "o1", "value": 1, "data_type": "BOOLEAN", "source": "API"}
    none = [
        SCORE | {"id": f"x{kind}", "value": 0, "data_type": kind, "string_value": "?"}
        for kind in ("CATEGORICAL", "TEXT")
    ]
    of_session = SCORE | {"trace_id": None, "session_id": "s"}
    found = read_file(lines(SCORE, observed, *none, of_session), "scores")
    [run] = runs_of(read_file(lines(ROOT, CALL), "rows").records)
    given = [one for one in found.records if isinstance(one, Reward)]
    assert [(one.trajectory_id, one.value, one.source, one.explanation) for one in given] == [
        (run.id, 0.5, "judge", "so-so"),
        (run.id, 1.0, "code", "so-so"),
    ]
    assert [one.of_span for one in given] == [False, True]
    assert found.left_out == {"scores that are no numbers": 2, "scores of sessions and experiments": 1}
    exported = {"id": "t1", "timestamp": BEGAN, "observations": [], "scores": [{**none[0], "dataType": "CATEGORICAL"}]}
    assert read_file(lines(exported), "traces").left_out == {"scores that are no numbers": 1}


def test_scores_that_stand_beside_an_observation_as_columns_are_its_rewards() -> None:
    """As its pages export them; of one that nobody gave the column is empty."""
    row = {
        "id": "o1", "traceId": "t1", "type": "GENERATION", "name": "call", "startTime": BEGAN, "endTime": ENDED,
        "parentObservationId": "", "input": ASKED, "output": ANSWER, "traceTags": ["beta"], "comments": [],
        "good": [0.5, 1], "tone": ["kind"], "unused": None,
    }  # fmt: skip
    found, [run] = read(lines(row))
    assert [(one.name, one.value) for one in found.records if isinstance(one, Reward)] == [("good", 0.5), ("good", 1.0)]
    assert len({one.id for one in found.records if isinstance(one, Reward)}) == 2
    assert (found.left_out, run.tags) == ({"scores that are no numbers": 1}, ("beta",))


def test_rows_of_traces_say_what_to_import_in_their_place() -> None:
    row = {"id": "t1", "timestamp": BEGAN, "name": "root", "bookmarked": False, "tags": [], "input": "hi"}
    with pytest.raises(Unreadable, match="the rows of its observations"):
        read_file(lines(row), "traces")


@pytest.mark.parametrize(
    "head", ['"id","traceId","name"\n"o1","t1","call"\n', "id,trace_id,start_time,score one\r\n1,2,3,4\r\n"]
)
def test_a_table_in_csv_is_named(head: str) -> None:
    with pytest.raises(Unreadable, match="it is CSV: export it as JSON"):
        read_file(head.encode(), "table")


def test_of_a_score_that_was_changed_the_later_value_counts_whichever_is_read_first() -> None:
    """Its id and its timestamp stay; of LangSmith's averages that of more feedback counts."""
    score = SCORE | {"updated_at": "2026-05-29 13:47:00.000000", "value": 0.9}
    run = {"id": "r1", "trace_id": "r1", "run_type": "llm", "name": "m", "start_time": BEGAN, "end_time": ENDED}
    averages = [run | {"feedback_stats": {"good": {"n": n, "avg": avg}}} for n, avg in ((1, 0.9), (2, 0.5))]
    for first, later in ((score, SCORE | {"updated_at": "2026-05-30 10:00:00.000000"}), averages):
        for order in ((first, later), (later, first)):
            given = [one for item in order for one in read_file(lines(item), "f").records if isinstance(one, Reward)]
            assert [one.value for one in latest(given)] == [0.5]
