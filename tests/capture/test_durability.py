"""Nothing lost: what is spooled, and when, whatever happens to the process, its disk or its spool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import ChatServer
from openai import OpenAI
from spool import read_spans

import arttrace
from arttrace import semconv
from arttrace.capture import recorder as recorder_module
from arttrace.records.span import SpanRow

DEADLINE_S = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a state, not for a time."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"it never came to this: {what}"
        time.sleep(0.01)


def python(program: str, directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A Python process that runs `program` and records into `directory`."""
    env = {**os.environ, "ARTTRACE_DIR": str(directory), "OPENAI_API_KEY": "sk-test-0123456789", **environment}
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# --- in progress -------------------------------------------------------------------------------------------

WAITS = """
import sys, time
import arttrace
from openai import OpenAI
@arttrace.trajectory(metadata={"tier": 1})
def agent(text):
    OpenAI(base_url=sys.argv[1], timeout=300).chat.completions.create(
        model="m", messages=[{"role": "user", "content": text}])
agent("hang")
"""


def test_a_call_and_a_run_in_progress_are_in_the_spool_of_a_killed_process(tmp_path: Path, server: ChatServer) -> None:
    process = python(WAITS, tmp_path / "d", server.url)
    until(lambda: len(read_spans(tmp_path / "d")) >= 2, "the call and the run are in the spool")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run, call = sorted(read_spans(tmp_path / "d"), key=lambda span: span.start_ns)
    assert (run.end_ns, call.end_ns) == (0, 0)
    assert run.attributes[semconv.ENTRY_ARGUMENTS] == '{"text":"hang"}'
    assert run.attributes[semconv.METADATA] == '{"tier":1}'
    assert semconv.TRAJECTORY_SPAN_COUNT not in run.attributes
    assert call.attributes[semconv.OPERATION_NAME] == "chat"
    assert call.parent_span_id == run.span_id
    assert call.attributes[semconv.TRAJECTORY_ID] == run.attributes[semconv.TRAJECTORY_ID]


def test_a_call_in_progress_gives_way_to_the_finished_one(
    spans: Callable[[], list[SpanRow]], server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_SHOWN_AFTER_S", 0.01)
    client = OpenAI(base_url=server.url, api_key="sk-test-0123456789")
    with arttrace.trajectory(name="root"):
        asking = threading.Thread(
            target=client.chat.completions.create,
            kwargs={"model": "m", "messages": [{"role": "user", "content": "hang"}]},
        )
        asking.start()
        until(lambda: len(spans()) == 2, "the run and its call are shown")
        server.hold.set()
        asking.join()
    run, call, whole_call, whole_run = spans()
    assert (run.span_id, call.span_id) == (whole_run.span_id, whole_call.span_id)
    assert (run.end_ns, call.end_ns) == (0, 0)
    assert min(whole_run.end_ns, whole_call.end_ns) > 0
    assert run.start_ns == whole_run.start_ns


def test_a_short_call_is_spooled_once_and_nothing_of_it_stays(
    spans: Callable[[], list[SpanRow]], server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_SHOWN_AFTER_S", 1000.0)
    with arttrace.trajectory(name="root") as run:
        OpenAI(base_url=server.url, api_key="sk-test-0123456789").chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}]
        )
        recorder = run.recorder
        assert recorder.flush()
        assert len(recorder._open) == 1  # the root
    assert len(spans()) == 2
    assert recorder._open == {}
