"""Settings that are replaced while a run is open: it ends under those that it began under."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from otlp_receiver import receiving
from spool import finished_spans, read_spool

import arttrace
from arttrace.capture.export import lifecycle
from arttrace.capture.export.recorder import Recorder
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


def recorders() -> int:
    gc.collect()
    return sum(isinstance(one, Recorder) for one in gc.get_objects())


def test_settings_that_are_replaced_again_and_again_are_not_kept(tmp_path: Path) -> None:
    """As where each request of a server configures capture, with a mask of its own."""
    arttrace.init(dir=tmp_path, project="first")
    before, recorded = recorders(), lifecycle.counts().recorded
    with arttrace.trajectory(name="open"):
        arttrace.init(dir=tmp_path, mask=lambda content, *, kind: content)
        with arttrace.trajectory(name="beside"):
            for _ in range(50):
                arttrace.init(dir=tmp_path, mask=lambda content, *, kind: content)
                with arttrace.trajectory(name="short"):
                    pass
            assert recorders() - before <= 5
        arttrace.init(dir=tmp_path, mask=lambda content, *, kind: content)
    assert arttrace.shutdown(DEADLINE_S)
    ended = sorted(span.name for span in finished_spans(tmp_path))
    assert ended == ["invoke_agent beside", "invoke_agent open", *["invoke_agent short"] * 50]
    assert lifecycle.counts().recorded - recorded == len(read_spool(tmp_path))


def test_a_run_that_outlasted_its_settings_ends_with_the_process_where_these_were_let_go(tmp_path: Path) -> None:
    program = f"""
import gc, arttrace
from arttrace.capture.export import lifecycle
arttrace.init(dir={str(tmp_path)!r}, project="first")
run = arttrace.trajectory(name="run")
run.__enter__()
for number in range(5):
    arttrace.init(dir={str(tmp_path)!r}, project=str(number))
    gc.collect()
arttrace.uninstrument()
arttrace.init(dir={str(tmp_path)!r}, project="last")
run.__exit__(None, None, None)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE_S)
    [span] = finished_spans(tmp_path)
    assert (span.name, span.resource["service.name"]) == ("invoke_agent run", "first")
