"""The rules of Codenames: what a clue is, when a turn ends, and who wins."""

from __future__ import annotations

from collections import Counter

import pytest
from example_modules import load

table = load("games/codenames/table.py")
TABLE = table.Table(("cat", "horse", "bread", "fog", "storm"), frozenset({"cat", "horse"}), "fog")


@pytest.mark.parametrize(
    ("guesses", "guessed", "over"),
    [
        (["cat", "horse"], ("cat", "horse"), "won"),
        (["cat", "bread", "horse"], ("cat", "bread"), ""),  # a neutral word ends the turn
        (["cat", "fog", "horse"], ("cat", "fog"), "lost"),
        (["dog", "cat"], (), ""),  # what is not on the table ends it too
        (["cat", "cat", "horse"], ("cat",), ""),
        ([], (), ""),
    ],
)
def test_a_turn(guesses: list[str], guessed: tuple[str, ...], over: str) -> None:
    after = table.guess(TABLE, guesses)
    assert (after.guessed, after.over, after.turns) == (guessed, over, 1)


def test_the_last_turn_decides() -> None:
    late = table.Table(TABLE.words, TABLE.ours, TABLE.assassin, ("cat",), table.TURNS - 1)
    assert table.guess(late, []).over == "lost"
    assert table.guess(late, ["horse"]).over == "won"


@pytest.mark.parametrize(
    ("clue", "valid"),
    [("animal", True), ("Cat", False), ("cats", False), ("hors", False), ("two words", False), ("", False)],
)
def test_what_a_clue_is(clue: str, valid: bool) -> None:
    assert table.is_clue(TABLE, clue) is valid


def test_the_table_is_that_of_its_seed() -> None:
    dealt = [table.deal(seed) for seed in range(50)]
    assert dealt == [table.deal(seed) for seed in range(50)]
    assert len(set(dealt)) == 50
    for one in dealt:
        assert (len(set(one.words)), len(one.ours)) == (9, table.OURS)
        assert one.ours < set(one.words)
        assert one.assassin in set(one.words) - one.ours
        themes = {word: theme for theme, words in table.THEMES.items() for word in words}
        ours, others = (Counter(themes[word] for word in some) for some in (one.ours, set(one.words) - one.ours))
        assert sorted(ours.values()) == [1, 3]
        assert others[themes[one.assassin]] == 3, "the assassin is of the theme of which none is ours"
    words = ("pepper", "opera", "whale", "horse", "honey", "choir", "violin", "soup", "salmon")
    assert dealt[0] == table.Table(words, frozenset({"choir", "opera", "whale", "violin"}), "pepper")
