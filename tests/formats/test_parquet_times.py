"""Times in Parquet and as numbers: of any unit, in a column or in a message, and whether or not pandas is installed."""

from __future__ import annotations

import datetime
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arttrace.formats.imported_files import read_file
from arttrace.records.span import SpanRow
from arttrace.records.values.times import time_ns

_BEGAN_NS = 1_740_830_400_123_456_789
_SAID = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
_WITHOUT_PANDAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from arttrace.formats.imported_files import read_file
found = read_file(open(sys.argv[1], "rb").read(), "file")
print(found.kinds, found.refused, found.traces)
"""


@pytest.mark.parametrize("zone", [None, "UTC", "+02:00"])
@pytest.mark.parametrize(("unit", "digits"), [("ns", 3), ("us", 3), ("ms", 6)])
def test_a_conversation_stands_at_the_time_that_its_row_has(unit: str, digits: int, zone: str | None) -> None:
    """pandas writes nanoseconds."""
    count = {"ns": _BEGAN_NS, "us": _BEGAN_NS // 10**3, "ms": _BEGAN_NS // 10**6}[unit]
    root = imported("created_at", pa.array([count], pa.timestamp(unit, zone)))
    assert root.start_ns == _BEGAN_NS // 10**digits * 10**digits


@pytest.mark.parametrize("digits", [9, 6, 3, 0])
@pytest.mark.parametrize("form", [int, float])
def test_a_number_is_taken_for_the_unit_that_its_size_shows(digits: int, form: type) -> None:
    """JavaScript writes milliseconds: a conversation with them had no time, in silence."""
    root = imported("created_at", pa.array([form(_BEGAN_NS // 10**digits)]))
    assert abs(root.start_ns - _BEGAN_NS) < max(10**digits, 1_000)


@pytest.mark.parametrize("value", [0, -1, 1 << 63, float("nan"), float("inf"), True])
def test_a_number_that_no_clock_shows_is_no_time(value: object) -> None:
    assert time_ns(value) is None


def test_times_below_a_column_are_read_as_others() -> None:
    moment = pa.array([[{"at": _BEGAN_NS}]], pa.list_(pa.struct([("at", pa.timestamp("ns", "UTC"))])))
    root = imported("steps", moment)
    assert root.attributes["arttrace.metadata"] == '{"steps":[{"at":"2025-03-01T12:00:00.123456Z"}]}'


def test_days_and_spans_of_time_are_metadata() -> None:
    assert imported("day", pa.array([datetime.date(2025, 3, 1)])).attributes["arttrace.metadata"] == (
        '{"day":"2025-03-01"}'
    )
    took = imported("took", pa.array([1_500_000_001], pa.duration("ns")))
    assert took.attributes["arttrace.metadata"] == '{"took":"PT1.5S"}'
    clock = imported("clock", pa.array([3_600_000_000_001], pa.time64("ns")))
    assert clock.attributes["arttrace.metadata"] == '{"clock":"01:00:00"}'


def test_nanoseconds_are_read_where_pandas_is_not_installed(tmp_path: Path) -> None:
    file = tmp_path / "runs.parquet"
    moments = pa.array([_BEGAN_NS], pa.timestamp("ns"))
    pq.write_table(pa.table({"messages": [_SAID], "created_at": moments}), file)
    asked = [sys.executable, "-c", _WITHOUT_PANDAS, str(file)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.stdout == "{'conversations': 1} 0 1\n", done.stderr


def imported(column: str, values: pa.Array) -> SpanRow:
    """The run's own span, of a file with one conversation and that column beside it."""
    file = io.BytesIO()
    pq.write_table(pa.table({"messages": [_SAID], column: values}), file)
    found = read_file(file.getvalue(), "file")
    assert (found.kinds, found.refused) == ({"conversations": 1}, 0)
    spans: list[Any] = [one for one in found.records if isinstance(one, SpanRow) and one.parent_span_id is None]
    [root] = spans
    return root
