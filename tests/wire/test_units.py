"""Numbers of things as people write them."""

from __future__ import annotations

from arttrace.records.values.units import counted, quantity


def test_one_of_a_thing_is_named_in_the_singular_and_any_other_number_in_the_plural() -> None:
    assert [quantity(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert [quantity(number, "trajectory") for number in (0, 1, 2)] == [
        "0 trajectories",
        "1 trajectory",
        "2 trajectories",
    ]
    assert quantity(2, "day") == "2 days"


def test_what_is_named_in_the_plural_is_counted_in_words_that_fit() -> None:
    assert [counted(number, "swe-agent trajectories") for number in (1, 2)] == [
        "1 swe-agent trajectory",
        "2 swe-agent trajectories",
    ]
    assert [counted(number, "exchanges") for number in (1, 2)] == ["1 exchange", "2 exchanges"]
    assert [counted(number, "otlp") for number in (1, 2)] == ["1 otlp", "2 otlp"]
