"""`arttrace status --watch` in a real terminal, and the daemon's numbers where Prometheus finds them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from recorded_runs import recorded_group
from reserved_port import reserved_port

from arttrace.store import Store, open_store
from arttrace.system.paths import DataDir
from trainer.commands.status import command as status
from trainer.commands.train.cli import command as train
from trainer.daemon.prometheus import render
from trainer.daemon.state import DaemonState, Pause, Queue, Unscored, read_state, write_state
from trainer.grpo.metrics import GroupReward
from trainer.policies.checkpoints import Checkpoints

WITHIN_S = 90


class Terminal:
    """`arttrace ARGUMENT...` in a pseudo-terminal of its own, and all that it has drawn."""

    def __init__(self, *arguments: str) -> None:
        self._own, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from arttrace.commands import main; main()", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        )
        os.close(theirs)
        self.drawn = b""

    def until(self, pattern: str, since: int = 0) -> None:
        """Reads until what was drawn from byte `since` on matches."""
        deadline = time.monotonic() + WITHIN_S
        while not re.search(pattern.encode(), self.drawn[since:], re.DOTALL):
            assert time.monotonic() < deadline, self.drawn.decode()
            if select.select([self._own], [], [], 0.1)[0]:
                self.drawn += os.read(self._own, 65536)

    def end(self) -> int:
        """Ctrl-C; the exit code, with the rest of what was drawn read."""
        self.process.send_signal(signal.SIGINT)
        try:
            while data := os.read(self._own, 65536):
                self.drawn += data
        except OSError:  # Linux's way to say that the other side is closed
            pass
        os.close(self._own)
        return self.process.wait(WITHIN_S)


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals on Windows")
def test_watching_follows_the_daemon_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    checkpoints = Checkpoints(DataDir(tmp_path).policies, "policy")
    with checkpoints.only_writer():
        state = DaemonState(policy="policy", pid=os.getpid(), state="wait", since_ns=time.time_ns(), step=3)
        write_state(checkpoints.directory, state)
        terminal = Terminal("status", "--watch", "--dir", str(tmp_path))
        try:
            terminal.until(r"policy@3.*wait for \d+ s.*0 ready")
            seen = len(terminal.drawn)
            later = DaemonState(
                policy="policy",
                pid=os.getpid(),
                state="step",
                since_ns=time.time_ns(),
                step=4,
                queue=Queue(7, 2),
                last={"reward_mean": 0.625, "step_s": 1.5},
            )
            write_state(checkpoints.directory, later)
            terminal.until(r"policy@4.*step for \d+ s.*7 ready, 2 waiting.*reward_mean 0\.625.*step 1\.50", seen)
            seen = len(terminal.drawn)
            (checkpoints.directory / "daemon.json").write_text("{")  # never seen so, but it must not end the view
            terminal.until(r"daemon\.json.{0,40}cannot.{0,40}read", seen)
            seen = len(terminal.drawn)
            write_state(checkpoints.directory, later)
            terminal.until(r"policy@4", seen)
        finally:
            code = terminal.end()
    assert code == 0
    assert b"Traceback" not in terminal.drawn
    assert terminal.drawn.rstrip().endswith(b"\x1b[?25h"), "the cursor is shown again"


def test_how_far_learner_and_engine_agree_is_shown_everywhere(tmp_path: Path) -> None:
    measured = {"logprob_difference_mean": 0.000123, "logprob_difference_max": 0.0456}
    state = DaemonState(policy="policy", last={"loss": 0.5, **measured})
    directory = Checkpoints(DataDir(tmp_path).policies, "policy").directory
    directory.mkdir(parents=True)
    write_state(directory, state)
    shown = " ".join(CliRunner().invoke(status, ["--dir", str(tmp_path)]).stdout.split())
    assert (
        "agreement log-probabilities of engine and learner differ by 0.000123 in the mean, by 0.0456 at most" in shown
    )
    (document,) = json.loads(CliRunner().invoke(status, ["--dir", str(tmp_path), "--json"]).stdout)
    assert measured.items() <= document["last"].items()
    assert b'arttrace_train_last_logprob_difference_max{policy="policy"} 0.0456\n' in render(state)
    assert b'arttrace_train_last_logprob_difference_mean{policy="policy"} 0.000123\n' in render(state)
    assert "earlier versions" not in shown
    state.last["staleness_max"] = 2.0
    write_state(directory, state)
    shown = " ".join(CliRunner().invoke(status, ["--dir", str(tmp_path)]).stdout.split())
    assert "by 0.0456 at most; runs of earlier versions are among them" in shown, "no fault of the engine"


def test_runs_that_got_spans_after_they_were_trained_on_are_reported(tmp_path: Path) -> None:
    directory = Checkpoints(DataDir(tmp_path).policies, "policy").directory
    directory.mkdir(parents=True)
    write_state(directory, DaemonState(policy="policy", queue=Queue(late=2)))
    shown = " ".join(CliRunner().invoke(status, ["--dir", str(tmp_path)]).stdout.split())
    assert "late spans came to 2 runs after a version took them; `arttrace ls` names them" in shown


def test_in_a_pipe_a_line_of_status_stays_one(tmp_path: Path) -> None:
    directory = Checkpoints(DataDir(tmp_path).policies, "policy").directory
    directory.mkdir(parents=True)
    reason = " ".join(f"word{n}" for n in range(60))
    write_state(directory, DaemonState(policy="policy", reason=reason))
    assert reason in CliRunner().invoke(status, ["--dir", str(tmp_path)]).stdout


def test_scenarios_that_are_skipped_for_a_while_are_counted(tmp_path: Path) -> None:
    directory = Checkpoints(DataDir(tmp_path).policies, "policy").directory
    directory.mkdir(parents=True)
    now = time.time_ns()
    pauses = tuple(Pause(key, 1, now + hours * 3600 * 10**9) for key, hours in (("a", 99), ("b", 2)))
    write_state(directory, DaemonState(policy="policy", queue=Queue(paused=1), pauses=pauses))
    shown = " ".join(CliRunner().invoke(status, ["--dir", str(tmp_path)]).stdout.split())
    assert "2 whose rewards were all equal, 1 group of them waits; the next is looked at again in 2 h 0 min" in shown


@pytest.mark.parametrize(
    ("state", "runs", "idle_s", "said"),
    [
        ("wait", True, 0, ""),
        ("step", True, 9999, ""),
        ("wait", False, 0, "No daemon runs"),
        ("failed", True, 0, "The daemon of policy failed"),
        ("stopped", False, 0, "No daemon runs"),
        ("wait", True, 9999, "has not looked for runs for 2 h 46 min"),
    ],
)
@pytest.mark.parametrize("reason", ["", "round skipped: all rewards within each group are equal"])
def test_a_check_fails_where_no_daemon_goes_on(
    tmp_path: Path, state: str, runs: bool, idle_s: int, said: str, reason: str
) -> None:
    checkpoints = Checkpoints(DataDir(tmp_path).policies, "policy")
    with checkpoints.only_writer() if runs else contextlib.nullcontext():
        checkpoints.directory.mkdir(parents=True, exist_ok=True)
        write_state(checkpoints.directory, DaemonState(policy="policy", pid=os.getpid(), state=state, reason=reason))
        seen = time.time() - idle_s
        os.utime(checkpoints.directory / "daemon.json", (seen, seen))
        plain = CliRunner().invoke(status, ["--dir", str(tmp_path)])
        checked = CliRunner().invoke(status, ["--dir", str(tmp_path), "--check"])
    assert (plain.exit_code, plain.stdout) == (0, checked.stdout)
    assert checked.exit_code == (1 if said else 0)
    assert said in str(checked.exception or "")


@pytest.mark.parametrize(
    ("phase", "for_s", "before_s", "found"),
    [
        ("step", 7300, 700, "has been in step for 2 h 1 min, which took 11 min 40 s for its last version"),
        ("step", 3700, 1, "has been in step for 1 h 1 min"),
        ("step", 3500, 1, ""),
        ("step", 7300, 800, ""),
        ("step", 10**6, None, ""),
        ("wait", 10**6, 1, ""),
    ],
)
def test_a_check_fails_where_a_phase_takes_far_longer_than_for_the_last_version(
    tmp_path: Path, phase: str, for_s: int, before_s: float | None, found: str
) -> None:
    checkpoints = Checkpoints(DataDir(tmp_path).policies, "policy")
    last = {} if before_s is None else {f"{phase}_s": float(before_s)}
    since_ns = time.time_ns() - for_s * 10**9
    with checkpoints.only_writer():
        state = DaemonState(policy="policy", pid=os.getpid(), state=phase, since_ns=since_ns, last=last)
        write_state(checkpoints.directory, state)
        checked = CliRunner().invoke(status, ["--dir", str(tmp_path), "--check"])
    assert checked.exit_code == (1 if found else 0), checked.exception
    assert found in str(checked.exception or "")


def test_no_name_of_a_group_steers_the_terminal(tmp_path: Path) -> None:
    directory = Checkpoints(DataDir(tmp_path).policies, "policy").directory
    directory.mkdir(parents=True)
    name = "\x1b[2J\x1b]0;title\x07"
    groups = (GroupReward(name, 2, 0.5, 1.0),)
    write_state(
        directory, DaemonState(policy="policy", reason=name, last_groups=groups, queue=Queue(left_out={name: 1}))
    )
    shown = CliRunner().invoke(status, ["--dir", str(tmp_path)]).stdout
    assert shown.count("·[2J·]0;title·") == 3
    assert {"\x1b", "\x07"}.isdisjoint(shown)


def test_groups_that_the_judge_fails_for_are_shown_with_why_and_until_when(tmp_path: Path) -> None:
    directory = Checkpoints(DataDir(tmp_path).policies, "policy").directory
    directory.mkdir(parents=True)
    now = time.time_ns()
    unscored = tuple(Unscored(key, 1, now + s * 10**9, f"{key} failed") for key, s in (("a", 99), ("b", 45), ("c", -1)))
    write_state(directory, DaemonState(policy="policy", queue=Queue(unscored=2), unscored=unscored))
    shown = " ".join(CliRunner().invoke(status, ["--dir", str(tmp_path)]).stdout.split())
    assert "not scored 2 groups; the judge is asked about b again in 4" in shown
    assert "since b failed" in shown


def test_scenarios_whose_pause_is_over_are_not_counted(tmp_path: Path) -> None:
    directory = Checkpoints(DataDir(tmp_path).policies, "policy").directory
    directory.mkdir(parents=True)
    ends = {"a": time.time_ns() - 1, "b": time.time_ns() + 2 * 3600 * 10**9}
    for pauses, line in ((ends, "1 whose rewards were all equal, 0 groups"), ({"a": 1}, "")):
        state = DaemonState(policy="policy", pauses=tuple(Pause(key, 1, end) for key, end in pauses.items()))
        write_state(directory, state)
        shown = " ".join(CliRunner().invoke(status, ["--dir", str(tmp_path)]).stdout.split())
        assert (f"scenarios skipped {line}" in shown) == bool(line), shown
        assert ("looked at again in 2 h 0 min" in shown) == bool(line)


def test_a_clock_that_stepped_back_gives_no_time_below_zero(tmp_path: Path) -> None:
    directory = Checkpoints(DataDir(tmp_path).policies, "policy").directory
    directory.mkdir(parents=True)
    write_state(directory, DaemonState(policy="policy", state="stopped", since_ns=time.time_ns() + 3600 * 10**9))
    assert "stopped, 0 s ago" in CliRunner().invoke(status, ["--dir", str(tmp_path)]).stdout


@pytest.mark.parametrize("name", ["/etc", "**", "*", "../policy"])
def test_what_cannot_name_a_policy_is_refused(tmp_path: Path, name: str) -> None:
    directory = Checkpoints(DataDir(tmp_path).policies, "policy").directory
    directory.mkdir(parents=True)
    write_state(directory, DaemonState(policy="policy"))
    refused = CliRunner().invoke(status, ["--dir", str(tmp_path), "--policy", name])
    assert str(refused.exception).startswith(f"{name!r} cannot name a policy."), refused.output


def test_the_numbers_of_an_older_daemon_that_lack_one_are_shown(tmp_path: Path) -> None:
    directory = Checkpoints(DataDir(tmp_path).policies, "policy").directory
    directory.mkdir(parents=True)
    write_state(directory, DaemonState(policy="policy", last={"loss": 0.5, "logprob_difference_mean": 0.000123}))
    shown = CliRunner().invoke(status, ["--dir", str(tmp_path)])
    assert shown.exception is None
    assert "loss 0.5" in shown.stdout
    assert "agreement" not in shown.stdout


class IdleLearner:
    """Stands in for one that loads a model."""

    def __init__(self, _base_model: object, config: object, *_: object) -> None:
        self.config = config


def test_the_numbers_of_a_daemon_that_owns_the_store_are_beside_the_store_s_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.learner.packed.engine.PackedLearner", IdleLearner)
    monkeypatch.setattr("trainer.commands.train.report.read_model", lambda _: None)
    stop: list[Callable[[], None]] = []
    monkeypatch.setattr(
        "trainer.commands.train.daemon_options.stop_on_signals", lambda event, *_: keep(stop, event.set)
    )
    monkeypatch.setattr("trainer.commands.train.daemon_options.ended_by_signals", lambda *_: nullcontext())
    data = DataDir(tmp_path)
    with Store.open(data, create=True) as store:
        store.append(recorded_group("g", (0.0,)))
    arguments = ["--daemon", "--dir", str(tmp_path), "--base-model", str(tmp_path), "--poll", "0.05"]
    running = threading.Thread(target=CliRunner().invoke, args=(train, arguments))
    running.start()
    try:
        policy = Checkpoints(data.policies, "policy").directory
        deadline = time.monotonic() + WITHIN_S
        while (state := read_state(policy)) is None or state.queue.waiting != 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        answer = httpx.get(state.metrics)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'arttrace_train_groups_waiting{policy="policy"} 1\n' in answer.text
        assert 'arttrace_train_state{policy="policy",state="wait"} 1\n' in answer.text
        assert httpx.get(state.metrics, headers={"host": "elsewhere.example"}).status_code == 403
        assert state.metrics in " ".join(CliRunner().invoke(status, ["--dir", str(tmp_path)]).stdout.split())
        with open_store(data) as asked:
            assert len(asked.summaries()) == 1, "the same server"
    finally:
        for each in stop:
            each()
        running.join(WITHIN_S)


def test_the_numbers_are_at_the_port_that_was_named_and_a_long_step_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AskedOnce:
        """Stands in for the daemon: looks at what it was given, and ends."""

        def __init__(self, _config: Any, *, learner: Callable[[], Any], metrics_url: str, **_: Any) -> None:
            self.state = DaemonState(policy="policy", step=7, reason="asked to stop")
            self._learner, self._metrics_url = learner, metrics_url

        def run(self) -> None:
            asked.append(self._metrics_url)
            answers.append(httpx.get(self._metrics_url).text)
            self._learner().progress(4)(2)

    asked: list[str] = []
    answers: list[str] = []
    monkeypatch.setattr("trainer.learner.packed.engine.PackedLearner", IdleLearner)
    monkeypatch.setattr("trainer.commands.train.report.read_model", lambda _: None)
    monkeypatch.setattr("trainer.commands.train.daemon_options.Daemon", AskedOnce)
    monkeypatch.setattr("trainer.commands.train.daemon_options._PROGRESS_S", 0.0)
    arguments = ["--daemon", "--dir", str(tmp_path), "--base-model", str(tmp_path)]
    with reserved_port() as port:
        ran = CliRunner().invoke(train, [*arguments, "--metrics-port", str(port)])
    assert ran.exit_code == 0, ran.output
    assert asked == [f"http://127.0.0.1:{port}/metrics"]
    assert 'arttrace_train_step{policy="policy"} 7\n' in answers[0]
    assert f"metrics: http://127.0.0.1:{port}/metrics" in ran.stderr
    assert "2 of 4 tokens of the step" in ran.stderr


class keep:
    """A context in which `action` is in `into`."""

    def __init__(self, into: list[Callable[[], None]], action: Callable[[], None]) -> None:
        into.append(action)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
