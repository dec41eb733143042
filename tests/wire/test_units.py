"""Numbers of things as people write them."""

from __future__ import annotations

from arttrace.records.values.units import age_ns, counted, quantity, size_bytes


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


def test_an_age_or_a_size_beyond_what_a_column_holds_is_the_largest() -> None:
    for number in ("99999999", "9" * 400):
        assert 292 * 365 * 86_400 < age_ns(f"{number}w") // 10**9 <= 2**63 // 10**9
        assert size_bytes(f"{number}0TB") == 2**63 - 1
    assert (age_ns("2w"), size_bytes("1.5 GB")) == (14 * 86_400 * 10**9, 1_500_000_000)
