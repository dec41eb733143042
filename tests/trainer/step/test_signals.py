"""The first signal asks a training to end, the second interrupts it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from arttrace.commands.shared.ending import ended_as_by_ctrl_c
from trainer.step.retry import StopRequested
from trainer.step.signals import ended_by_signals, stop_on_signals


def test_the_first_signal_asks_and_the_second_interrupts() -> None:
    stop, said = threading.Event(), []
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals(stop, said.append):
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert said == ["stopping when the running step is done; once more drops the step"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_closed_terminal_never_drops_the_step() -> None:
    """A shell and the system both send it."""
    stop, said = threading.Event(), []
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with ended_as_by_ctrl_c(), stop_on_signals(stop, said.append):
            for _ in range(3):
                signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stop.is_set()
    assert len(said) == 1


def test_where_no_step_runs_the_line_says_so() -> None:
    stop, said = threading.Event(), []
    with stop_on_signals(stop, said.append, lambda: False):
        signal.raise_signal(signal.SIGTERM)
    assert said == ["stopping: no step is running"]


def test_what_leaves_nothing_behind_is_ended_by_the_first_signal() -> None:
    stop, said, reached = threading.Event(), [], []

    def load() -> None:
        with ended_by_signals(stop, said.append):
            signal.raise_signal(signal.SIGTERM)
            reached.append("after the signal")

    with stop_on_signals(stop, said.append):
        kept = signal.getsignal(signal.SIGTERM)
        with pytest.raises(StopRequested):
            load()
        assert signal.getsignal(signal.SIGTERM) is kept
    assert (stop.is_set(), said, reached) == (True, ["stopping: no step is running"], [])


def test_an_interruption_that_a_package_swallows_or_makes_another_error_of_is_still_a_stop() -> None:
    def load(stop: threading.Event, *, ends: bool, fails: bool) -> None:
        with ended_by_signals(stop, lambda _: None):
            try:
                if ends:
                    signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                pass
            if fails:
                raise ImportError("half loaded")

    for fails in (False, True):
        with pytest.raises(StopRequested):
            load(threading.Event(), ends=True, fails=fails)
    with pytest.raises(ImportError):
        load(threading.Event(), ends=False, fails=True)
    load(threading.Event(), ends=False, fails=False)


AMID_THE_IMPORT_OF_THE_ENGINE = """
import signal, sys
from pathlib import Path
from arttrace.commands.shared.ending import ended_as_by_ctrl_c
from trainer.learner import LearnerConfig, make_learner

ENGINE = "trainer.learner.packed.engine"

class Named:
    def __set_name__(self, owner, name):
        signal.raise_signal(signal.SIGTERM)

class AmidTheImport:
    def find_spec(self, name, *_):
        if name == ENGINE:
            type("Holder", (), {"field": Named()})

sys.meta_path.insert(0, AmidTheImport())
try:
    with ended_as_by_ctrl_c():
        make_learner(Path("nowhere"), LearnerConfig())
except KeyboardInterrupt:
    print(hasattr(sys.modules[ENGINE], "PackedLearner"))
"""


def test_a_signal_amid_the_imports_of_a_learner_waits_until_they_are_done() -> None:
    """Python raises it as a RuntimeError there; amid one of logging's calls it left a lock held, for which the thread
    that answers for the store then waited for ever."""
    done = subprocess.run(
        [sys.executable, "-c", AMID_THE_IMPORT_OF_THE_ENGINE], capture_output=True, text=True, timeout=600
    )
    said = "\nends when the libraries that it is loading are loaded; Ctrl-C again does not wait\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", said)
