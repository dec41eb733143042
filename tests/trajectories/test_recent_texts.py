"""Recent texts find the longest beginning of a text, also that of a fork, and forget the oldest."""

from __future__ import annotations

from arttrace.trajectories.decoding.recent_texts import RecentTexts


def test_a_fork_finds_what_it_goes_on_from() -> None:
    recent: RecentTexts[str] = RecentTexts()
    recent.keep("base", "base", None)
    base = recent.longest("base, a", 7)
    assert base is not None
    recent.keep(", a", "a", base)
    for text, made, length in (("base, a, c", "a", 7), ("base, b", "base", 4), ("base", "base", 4)):
        found = recent.longest(text, len(text))
        assert found is not None
        assert (found.made, found.length) == (made, length)
    assert recent.longest("bas", 3) is None
    assert recent.longest("base, a", 6) is base


def test_the_oldest_gives_way() -> None:
    recent: RecentTexts[int] = RecentTexts()
    for number in range(100):
        recent.keep(f"{number:03}", number, None)
    assert recent.longest("000", 3) is None
    assert recent.longest("099", 3) is not None
    assert recent.size == 3 * sum(recent.longest(f"{number:03}", 3) is not None for number in range(100))
