"""A setting that cannot be read is named, and loses none of the others."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spool import read_spool

import arttrace
from arttrace.capture.base import guard, variables
from arttrace.capture.base.settings import Settings
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.system import native_threads


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("project", 5, "text is expected"),
        ("dir", 5, "text or a path is expected"),
        ("capture_content", 5, "not one of"),
        ("mask", "***", "a function is expected"),
        ("sample", "most", "not a number from 0 to 1"),
        ("sample", [1], "not a number from 0 to 1"),
        ("retain", 30, "'30' is not an age such as 30d"),
        ("retain", datetime.timedelta(days=30), "is not an age such as 30d"),
        ("retain_size", 10, "less than 10MB"),
        ("orphans", 5, "not one of"),
        ("capture_http", "no", "True or False is expected"),
        ("http_spans", 2, "True or False or text or a list is expected"),
        ("http_spans", ["cookies"], "has no 'cookies': it is true or false, or names of headers, bodies"),
        ("trainable", 5, "a list is expected"),
        ("trainable", ["http://a", 5], "text is expected"),
        ("trainable", ["127.0.0.1:8000/v1"], "'127.0.0.1:8000/v1' is no URL"),
        ("propagate", 5, "a list is expected"),
        ("propagate", ["http://search:8080"], "'http://search:8080' is neither `host` nor `host:port`"),
        ("propagate", ["search:port"], "'search:port' is neither"),
        ("endpoint", 4318, "text is expected"),
        ("endpoint", "localhost:4318", "'localhost:4318' is not a URL of the form http://host:port"),
        ("endpoint", "http://[::1:4318", "'http://[::1:4318' is not a URL of the form http://host:port"),
        ("api_key", 5, "text is expected"),
        ("receivers", 5, "a list is expected"),
        ("receivers", ["http://127.0.0.1:9", 5], "text or an arttrace.Receiver is expected"),
        ("langfuse", "yes", "True or False is expected"),
    ],
)
def test_one_that_cannot_be_read_is_named_and_the_others_count(
    name: str, given: object, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    good: dict[str, Any] = {"dir": tmp_path / "data", "project": "mine", "trainable": ["http://b"], "sample": 0.5}
    found = Settings.resolve(**{**good, name: given})
    [line] = [record.getMessage() for record in caplog.records]
    assert said in line
    assert name in line.lower()
    for other in good.keys() - {name, "dir"}:
        assert getattr(found, other) == (tuple(good[other]) if other == "trainable" else good[other]), other
    assert found.data.root == (tmp_path / ".arttrace" if name == "dir" else tmp_path / "data")


def test_a_variable_that_nothing_reads_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content that was not to be recorded would be, in silence."""
    monkeypatch.setattr(variables, "_named", set())
    monkeypatch.setenv("ARTTRACE_DIR", str(tmp_path))
    monkeypatch.setenv("ARTTRACE_CAPTURE_CONTNT", "off")
    monkeypatch.setenv("ARTTRACE_TRAIN_MIN_GROUPS", "2")
    for _ in range(2):
        Settings.resolve()
    [line] = [record.getMessage() for record in caplog.records]
    assert line == "arttrace: nothing reads ARTTRACE_CAPTURE_CONTNT. ARTTRACE_CAPTURE_CONTENT may be meant."


def test_a_run_is_recorded_under_the_settings_that_could_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: dict[str, Any] = {"retain": 30, "receivers": 5, "mask": "***"}
    arttrace.init(dir=tmp_path / "data", project="mine", **wrong)

    @arttrace.trajectory
    def answer(question: str) -> str:
        return question

    assert answer("what was said") == "what was said"
    arttrace.flush()
    [record] = (one for one in read_spool(tmp_path / "data") if isinstance(one, SpanRow))
    assert record.attributes[semconv.PROJECT] == "mine"
    assert "what was said" not in str(record)  # a mask was wanted
    assert len(caplog.records) == 3


def test_a_switch_that_is_neither_on_nor_off_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTTRACE_CAPTURE_HTTP", "maybe")
    monkeypatch.setenv("ARTTRACE_DISABLED", "Off")
    found = Settings.resolve(dir=tmp_path)
    assert (found.capture_http, found.disabled) == (False, False)
    assert [record.getMessage() for record in caplog.records] == [
        "arttrace: ARTTRACE_CAPTURE_HTTP='maybe' is neither 1 nor 0; it counts as 0"
    ]


def test_one_receiver_may_stand_without_a_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one: Any = "http://127.0.0.1:4318"
    assert Settings.resolve(dir=tmp_path, receivers=one).receivers == (arttrace.Receiver(one),)
    assert Settings.resolve(dir=tmp_path, receivers=[one, one]).receivers == (arttrace.Receiver(one),)
    assert Settings.resolve(dir=tmp_path, receivers=arttrace.Receiver(one)).receivers == (arttrace.Receiver(one),)  # type: ignore[arg-type]
    assert not caplog.records


@pytest.mark.parametrize("address", ["http://[::1:3000", "http://langfuse..example", "http://langfuse:99999"])
def test_an_address_of_langfuse_that_is_none_is_named(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in (("PUBLIC_KEY", "pk-lf-1"), ("SECRET_KEY", "sk-lf-1"), ("BASE_URL", address)):
        monkeypatch.setenv(f"LANGFUSE_{name}", value)
    assert Settings.resolve(dir=tmp_path, langfuse=True).receivers == ()
    assert f"nothing is sent to Langfuse: {address!r} is not the address of a Langfuse server" in caplog.text


def test_an_endpoint_that_is_no_url_is_reported_without_a_traceback(tmp_path: Path) -> None:
    said = "import arttrace\n@arttrace.trajectory\ndef f(): pass\nf()\narttrace.flush()\n"
    env = {name: value for name, value in os.environ.items() if name != "ARTTRACE_RAISE"}
    env |= {"ARTTRACE_ENDPOINT": "127.0.0.1:9", "ARTTRACE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", said], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0
    assert "not a URL of the form http://host:port" in ran.stderr
    assert "Set ARTTRACE_ENDPOINT" in ran.stderr
    assert f"what is recorded waits in {tmp_path / 'outbox'}" in ran.stderr
    assert "is not recorded" not in ran.stderr
    assert list((tmp_path / "outbox").glob("*.seg"))
    assert "Traceback" not in ran.stderr


_STAMPED = """
import logging, sys
import httpx
import arttrace
class OfTheRun(logging.Filter):
    def filter(self, record):
        run = arttrace.current_trajectory()
        record.run = run is not None
        return True
class Sent(logging.Handler):
    def emit(self, record):
        try:
            httpx.post("http://127.0.0.1:9/v1/chat/completions", json={"said": record.getMessage()})
        except httpx.ConnectError:
            print(record.run, record.getMessage())
handler = Sent()
handler.addFilter(OfTheRun())
logging.getLogger("arttrace").addHandler(handler)
arttrace.update(tags=["first"])
with arttrace.trajectory(name="second"):
    pass
"""


@pytest.mark.parametrize("started", [[], ["-m", "arttrace", "run", "--quiet", "--", sys.executable]])
def test_what_is_logged_of_settings_may_be_asked_which_run_it_is_of(started: list[str], tmp_path: Path) -> None:
    """A filter that stamps each record with its run, or a handler that sends it, came to a lock that was held."""
    program = tmp_path / "program.py"
    program.write_text(_STAMPED)
    env = {**os.environ, "ARTTRACE_DIR": str(tmp_path / "d"), "ARTTRACE_SAMPLED": "1"}
    command = [sys.executable, *started, str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    said = "arttrace: nothing reads ARTTRACE_SAMPLED. ARTTRACE_SAMPLE may be meant."
    assert (done.stdout, done.stderr) == (f"{bool(started)} {said}\n", "")


def test_a_block_that_is_cut_short_holds_back_nothing_that_is_said_after_it(caplog: pytest.LogCaptureFixture) -> None:
    """As by Ctrl-C as it ends: all that arttrace said on that thread from then on was lost, and kept in memory."""
    lock = native_threads.Lock()
    guard.SaidLater(lock).__enter__()
    with lock:
        guard.logger.warning("inside")
        assert caplog.messages == []
    guard.logger.warning("after it")
    assert caplog.messages == ["inside", "after it"]
    caplog.clear()
    guard.SaidLater(lock).__enter__()
    with guard.SaidLater(lock), lock, guard.SaidLater(other := native_threads.Lock()), other:
        guard.logger.warning("in a later one")
        assert caplog.messages == []
    assert caplog.messages == ["in a later one"]
