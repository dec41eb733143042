"""When the worker gathers, writes and gives way, by times that are made up."""

from __future__ import annotations

from arttrace.capture.export.worker_pacing import GATHER_S, PAUSE_S, Turns


def crowded(now: float) -> Turns:
    turns = Turns()
    turns.woke(now - 0.05, now)
    return turns


def test_outside_a_crowd_a_turn_is_short_and_gives_way() -> None:
    turns = Turns()
    turns.woke(9.995, 10.0)  # one busy thread gave up the interpreter after its 5 ms
    assert not turns.is_crowded(10.0)
    turns.begin(10.0)
    turns.took(9.9)
    assert not turns.is_over(10.0009)
    assert turns.is_over(10.0011)
    assert turns.gives_way(10.0011)


def test_the_waits_before_a_write_leave_time_for_it_within_200_ms() -> None:
    turns = Turns()
    turns.begin(10.0)
    turns.took(10.0 - GATHER_S)
    longest_turn = next(ms / 1000 for ms in range(200) if turns.is_over(10.0 + ms / 1000))
    assert GATHER_S + longest_turn + PAUSE_S <= 0.15


def test_in_a_crowd_a_turn_is_as_long_as_the_interpreter_allows_and_ends_with_its_write_alone() -> None:
    turns = crowded(10.0)
    assert turns.is_crowded(10.0)
    turns.begin(10.0)
    turns.took(9.9)
    assert not turns.is_over(10.0035)
    assert turns.is_over(10.0041)
    assert not turns.gives_way(10.0041)


def test_a_crowd_that_is_gone_is_forgotten() -> None:
    turns = crowded(10.0)
    assert turns.is_crowded(10.9)
    assert not turns.is_crowded(11.1)


def test_what_has_waited_long_is_worked_off_without_pauses() -> None:
    turns = Turns()
    turns.begin(10.0)
    turns.took(9.8)
    assert not turns.is_over(10.002)
    assert not turns.gives_way(10.002)
    turns.begin(10.01)
    assert turns.gives_way(10.01), "what is written waits no more"
