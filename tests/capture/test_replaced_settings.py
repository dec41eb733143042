"""Settings that are replaced while a run is open: it ends under those that it began under."""

from __future__ import annotations

from pathlib import Path

from otlp_receiver import receiving
from spool import finished_spans

import arttrace
from arttrace.system.journal import list_segments
from arttrace.system.paths import DataDir

DEADLINE_S = 60.0


def test_shutdown_waits_for_a_run_that_outlasted_its_settings(tmp_path: Path) -> None:
    with receiving() as receiver:
        arttrace.init(project="before", dir=tmp_path, receivers=[receiver.url])
        with arttrace.trajectory(name="run"):
            arttrace.init(project="after", dir=tmp_path)
        assert arttrace.shutdown(DEADLINE_S)
        assert [span.name for span in receiver.spans] == ["invoke_agent run"]
    assert [span.name for span in finished_spans(tmp_path)] == ["invoke_agent run"]
    assert all(segment.finished() for segment in list_segments(DataDir(tmp_path).spool))
