"""Of a process that makes many runs, those that it still knows where they are rewarded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

import arttrace
from arttrace.capture.context import rewards as known_runs
from arttrace.records.record import Record
from arttrace.records.reward import Reward


def test_of_many_runs_the_last_are_known(
    records: Callable[[], list[Record]], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_runs, "_warned", False)
    monkeypatch.setattr(known_runs, "_forgotten", False)
    monkeypatch.setattr(known_runs, "_known_runs", OrderedDict())
    monkeypatch.setattr(known_runs, "_MAX_KNOWN_RUNS", 10)
    for number in range(200):
        known_runs.note_run(f"run-{number}", f"trace-{number}")
    for number in (0, 199):
        arttrace.reward(1, trajectory_id=f"run-{number}")
    rewards = [record for record in records() if isinstance(record, Reward)]
    assert [reward.given_to for reward in rewards] == ["", "trace-199"], "where a receiver of scores finds the run"
    assert len(known_runs._known_runs) <= known_runs._MAX_KNOWN_RUNS
    assert not caplog.records, "nobody knows whether it was one of the first"
