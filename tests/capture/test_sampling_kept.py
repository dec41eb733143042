"""Sampling, where a run is kept just as something of it is written."""

from __future__ import annotations

import pytest

from arttrace.capture.export import sampling
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.span import SpanRow


def test_a_run_that_is_kept_while_a_call_of_it_is_counted_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward is given by the user's thread, calls are counted by the recorder's."""
    written: list[bytes] = []
    buffer = sampling.RunBuffer(lambda job: job(), written.append)
    is_call = sampling.summary.is_call

    def rewarded_meanwhile(record: Record) -> bool:
        sampling.keep("run")
        return is_call(record)

    sampling.begin("run", "agent", 0, tags=(), metadata={})
    sampling.join("run")
    monkeypatch.setattr(sampling.summary, "is_call", rewarded_meanwhile)
    call = {semconv.TRAJECTORY_ID: "run", semconv.OPERATION_NAME: semconv.OPERATION_CHAT}
    assert not buffer.takes(SpanRow("1" * 32, "2" * 16, "chat", 1, 2, attributes=call), b"a call")
    buffer.root_ended("run", failed=False)
    assert (written, buffer.left_out) == ([], 0)
