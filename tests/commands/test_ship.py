"""`arttrace ship` and captured processes in front of the real collector, `arttrace collect`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from collector_process import ARTTRACE, collecting, environment
from otlp_receiver import receiving

from arttrace.capture.export.shipping.delivery import ShippingLock
from arttrace.commands import cli, main
from arttrace.records.record import encode_record
from arttrace.records.span import SpanRow
from arttrace.system.journal import JournalWriter, list_segments
from arttrace.system.paths import DataDir

DEADLINE_S = 90.0

AGENT = """
import sys, time
import arttrace
@arttrace.trajectory
def whole():
    arttrace.reward(0.5, name="fair")
    return "done"
whole()
if "unfinished" in sys.argv:
    with arttrace.trajectory(name="unfinished"):
        arttrace.flush()
        print("inside", flush=True)
        time.sleep(600)
"""


def python(program: str, data: DataDir, *arguments: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env=environment(data, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def shipped_by_a_process(data: DataDir, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ARTTRACE, "ship", *arguments],
        env=environment(data, **more),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def ship(data: DataDir, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The same command in this process."""
    command, code = ["arttrace", "ship", *arguments], 0
    with (
        mock.patch.dict(os.environ, environment(data, **more), clear=True),
        mock.patch.object(sys, "argv", command),
        mock.patch("arttrace.commands.only_for_its_user"),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"it never came to this: {what}"
        time.sleep(0.05)


@pytest.fixture
def agent_data(tmp_path: Path) -> DataDir:
    """Where the agents record: not where the collector does."""
    return DataDir(tmp_path / "agents")


@pytest.fixture
def collected(tmp_path: Path) -> Iterator[tuple[str, Callable[[], dict[str, dict[str, Any]]]]]:
    """The URL of a running collector, and its trajectories by entry."""
    data = DataDir(tmp_path / "collector")
    with collecting(data) as (_, url):

        def trajectories() -> dict[str, dict[str, Any]]:
            listed = CliRunner().invoke(cli, ["ls", "--json", "--dir", str(data.root)])
            assert listed.exit_code == 0, listed.output
            return {str(each["entry"]).rpartition(":")[2]: each for each in json.loads(listed.stdout)}

        yield url, trajectories


def test_what_a_process_recorded_is_with_the_collector_when_it_ends(
    agent_data: DataDir, collected: tuple[str, Callable[[], dict[str, dict[str, Any]]]]
) -> None:
    url, trajectories = collected
    _, err = python(AGENT, agent_data, ARTTRACE_ENDPOINT=url).communicate(timeout=DEADLINE_S)
    assert err == ""
    until(lambda: "whole" in trajectories(), "the run is in the collector's store")
    whole = trajectories()["whole"]
    assert whole["incomplete"] == ""
    assert [reward["value"] for reward in whole["rewards"]] == [0.5]


FEEDBACK = """
import sys, arttrace
arttrace.reward(0.25, name="stars", trajectory_id=sys.argv[1])
"""


def test_a_reward_by_trajectory_id_from_another_process_reaches_the_trajectory_through_the_collector(
    agent_data: DataDir, tmp_path: Path, collected: tuple[str, Callable[[], dict[str, dict[str, Any]]]]
) -> None:
    url, trajectories = collected
    assert python(AGENT, agent_data, ARTTRACE_ENDPOINT=url).wait(DEADLINE_S) == 0
    until(lambda: "whole" in trajectories(), "the run is in the collector's store")
    feedback = python(FEEDBACK, DataDir(tmp_path / "shop"), trajectories()["whole"]["id"], ARTTRACE_ENDPOINT=url)
    assert feedback.wait(DEADLINE_S) == 0
    until(lambda: len(trajectories()["whole"]["rewards"]) == 2, "the reward is in the collector's store")
    (whole,) = trajectories().values()
    assert [(reward["name"], reward["value"]) for reward in whole["rewards"]] == [("fair", 0.5), ("stars", 0.25)]
    assert whole["incomplete"] == ""


def test_ship_delivers_what_a_killed_process_left_and_an_interrupted_run_shows_as_incomplete(
    agent_data: DataDir, collected: tuple[str, Callable[[], dict[str, dict[str, Any]]]]
) -> None:
    url, trajectories = collected
    away = "http://127.0.0.1:9"
    process = python(AGENT, agent_data, "unfinished", ARTTRACE_ENDPOINT=away)
    assert process.stdout is not None
    process.stdout.readline()

    def in_progress() -> bool:
        return any(b'"end_ns":0' in segment.path.read_bytes() for segment in list_segments(agent_data.outbox))

    until(in_progress, "the unfinished run is in the outbox")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = shipped_by_a_process(agent_data, "--endpoint", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"3 spans delivered to {url}\n"
    assert list_segments(agent_data.outbox) == []
    until(lambda: len(trajectories()) == 2, "both runs are in the collector's store")
    assert trajectories()["whole"]["incomplete"] == ""
    unfinished = trajectories()["unfinished"]
    assert "in progress" in unfinished["incomplete"]
    again = shipped_by_a_process(agent_data, ARTTRACE_ENDPOINT=url)
    assert again.stdout == f"0 spans delivered to {url}\n"


MANY = """
import sys, time
import arttrace
for number in range(int(sys.argv[1])):
    with arttrace.trajectory(name="one", trajectory_id=f"{sys.argv[2]}-{number}"):
        time.sleep(0.01)
"""


def test_a_collector_killed_while_processes_ship_has_every_run_once_in_the_end(
    agent_data: DataDir, tmp_path: Path
) -> None:
    data, runs = DataDir(tmp_path / "collector"), 150
    with collecting(data) as (collector, url):
        processes = [python(MANY, agent_data, str(runs), name, ARTTRACE_ENDPOINT=url) for name in ("a", "b")]
        until(lambda: list_segments(data.spool) or data.store.exists(), "spans are with the collector")
        collector.kill()
        collector.wait(60)
        until(lambda: list_segments(agent_data.outbox), "spans wait for the collector")
        with collecting(data, port=int(url.rpartition(":")[2])):
            for process in processes:
                process.communicate(timeout=DEADLINE_S)
                assert process.returncode == 0
            done = shipped_by_a_process(agent_data, "--endpoint", url)
            assert (done.returncode, list_segments(agent_data.outbox)) == (0, [])
    query = "SELECT count(*) AS spans, count(DISTINCT trajectory_id) AS runs FROM spans"
    counted = subprocess.run(
        [*ARTTRACE, "sql", query, "--json"], env=environment(data), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert json.loads(counted.stdout) == [{"spans": 2 * runs, "runs": 2 * runs}], counted.stderr


def span(number: int) -> bytes:
    return encode_record(SpanRow(f"{number:032x}", f"{number:016x}", f"span {number}", 1, 2))


def test_spans_captured_without_an_endpoint_are_shipped_too_unless_a_store_takes_them(agent_data: DataDir) -> None:
    writer = JournalWriter(agent_data.spool)
    writer.append(span(1))
    writer.close()
    with receiving() as receiver:
        agent_data.store.touch()
        assert ship(agent_data, "--endpoint", receiver.url).stdout.startswith("0 spans")
        agent_data.store.unlink()
        assert ship(agent_data, "--endpoint", receiver.url).stdout.startswith("1 span delivered")
        assert len(receiver.spans) == 1
    assert list_segments(agent_data.spool) == []


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 200, ["there is no collector to ship to", "ARTTRACE_ENDPOINT", "ARTTRACE_LANGFUSE=1"]),
        (["--endpoint", "localhost:4318"], 200, ["not a URL of the form"]),
        (
            ["--endpoint", "{url}"],
            401,
            ["answers 401: send the key; check its key", "ARTTRACE_API_KEY", "Nothing is lost"],
        ),
        (["--endpoint", "{url}/elsewhere"], 200, ["answers 404", "Check the endpoint"]),
        (["--endpoint", "{url}"], 400, ["refused 1 span", "refused"]),
    ],
    ids=["none", "no URL", "wrong key", "wrong path", "refused"],
)
def test_what_cannot_be_shipped_is_said_with_cause_and_hint(
    agent_data: DataDir, arguments: list[str], status: int, words: list[str]
) -> None:
    writer = JournalWriter(agent_data.outbox)
    writer.append(span(1))
    writer.close()
    refusal = (status, {"content-type": "application/json"}, b'{"message": "send the key"}' if status != 200 else b"")
    with receiving(always=lambda _spans: refusal) as receiver:
        done = ship(agent_data, *[argument.format(url=receiver.url) for argument in arguments])
    assert done.returncode == 1
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr
    kept = list_segments(agent_data.outbox) + list_segments(agent_data.outbox / "refused")
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("arguments", "retry_after", "said"),
    [
        (["--timeout", "1.5"], "", "answers 503; 1.1 KB wait in {outbox}; trying again, up to 30 s apart, for "),
        (["--timeout", "0"], "", "answers 503; gave up\n"),
        (["--timeout", "5"], "30", "answers 503; gave up after "),
    ],
    ids=["for a while", "once", "asked to wait for longer"],
)
def test_a_receiver_that_takes_nothing_is_given_up_and_nothing_is_lost(
    agent_data: DataDir, arguments: list[str], retry_after: str, said: str
) -> None:
    writer = JournalWriter(agent_data.outbox)
    writer.append(encode_record(SpanRow(f"{1:032x}", f"{1:016x}", "x" * 900, 1, 2)))
    writer.close()
    with receiving(always=lambda _spans: (503, {"retry-after": retry_after} if retry_after else {}, b"")) as receiver:
        done = ship(agent_data, "--endpoint", receiver.url, *arguments)
        assert (done.returncode, done.stdout) == (1, f"0 spans delivered to {receiver.url}\n")
        assert said.format(outbox=agent_data.outbox) in done.stderr, done.stderr
        assert f"Nothing is lost: 1.1 KB wait in {agent_data.outbox}. Start `arttrace ship` again" in done.stderr
        assert len(receiver.requests) == 1 or "trying again" in said
        receiver.always = lambda _spans: (200, {}, b"")
        assert ship(agent_data, "--endpoint", receiver.url).stdout == f"1 span delivered to {receiver.url}\n"
        assert len(receiver.spans) == 1


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_receiver_that_asks_to_send_it_again_gets_it_again(agent_data: DataDir, status: int) -> None:
    writer = JournalWriter(agent_data.outbox)
    writer.append(span(1))
    writer.close()
    with receiving(script=[lambda _spans: (status, {}, b"")]) as receiver:
        done = ship(agent_data, "--endpoint", receiver.url)
        assert (done.returncode, done.stdout) == (0, f"1 span delivered to {receiver.url}\n"), done.stderr


def test_what_another_process_ships_is_not_waited_for_without_end(agent_data: DataDir) -> None:
    writer = JournalWriter(agent_data.outbox)
    writer.append(span(1))
    writer.close()
    held = ShippingLock.take(agent_data.outbox)
    assert held is not None
    done = ship(agent_data, "--endpoint", "http://127.0.0.1:9", "--timeout", "0.5")
    held.release()
    assert done.returncode == 1
    assert f"another process ships {agent_data.outbox}; gave up" in done.stderr


class Clock:
    """In place of `time`: it goes by what is slept, and `meanwhile` happens then."""

    def __init__(self, meanwhile: Callable[[float], None]) -> None:
        self._now, self._meanwhile = 1000.0, meanwhile

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        if seconds:
            self._meanwhile(self._now - 1000.0)


def shipped_by(clock: Clock, data: DataDir, url: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setattr("arttrace.commands.ship.time", clock)
    return CliRunner().invoke(cli, ["ship", "--dir", str(data.root), "--endpoint", url, "--timeout", "2"])


def test_another_process_that_ships_more_slowly_than_it_records_is_waited_for(
    agent_data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, outbox = JournalWriter(agent_data.outbox), agent_data.outbox
    for number in range(1, 11):
        writer.append(span(number))
    [segment] = list_segments(outbox)
    size = segment.path.stat().st_size

    def meanwhile(seconds: float) -> None:
        for number in range(20):
            writer.append(span(int(seconds * 100) + number))
        (outbox / "delivered.json").write_text(json.dumps({segment.name: int(size * min(1.0, seconds / 6.0))}))

    held = ShippingLock.take(outbox)
    assert held is not None
    done = shipped_by(Clock(meanwhile), agent_data, "http://127.0.0.1:9", monkeypatch)
    held.release()
    writer.close()
    assert done.exit_code == 0, done.output
    assert "another process ships" in done.stderr
    assert "gave up" not in done.stderr


def test_what_cannot_be_marked_as_delivered_is_not_waited_for_without_end(
    agent_data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(agent_data.outbox)
    writer.append(span(1))

    def meanwhile(seconds: float) -> None:
        assert seconds < 60.0, "it is waited for without end"

    monkeypatch.setattr("arttrace.capture.export.shipping.delivery._write_offsets", lambda directory, offsets: None)
    with receiving() as receiver:
        done = shipped_by(Clock(meanwhile), agent_data, receiver.url, monkeypatch)
    writer.close()
    assert done.exit_code == 1
    assert "the disk does not take that it was delivered; gave up after 2" in str(done.exception)
    assert len(receiver.spans) == 1
