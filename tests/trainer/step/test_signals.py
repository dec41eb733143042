"""The first signal asks a training to end, the second interrupts it."""

from __future__ import annotations

import signal
import threading

import pytest

from arttrace.commands.shared.ending import ended_as_by_ctrl_c
from trainer.step.signals import stop_on_signals


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
