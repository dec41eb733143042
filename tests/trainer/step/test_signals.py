"""The first signal asks a training to end, the second interrupts it."""

from __future__ import annotations

import signal
import threading

import pytest

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
