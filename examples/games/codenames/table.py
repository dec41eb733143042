"""Codenames for one team as pure functions: some of the words on the table are ours, one of them ends the game."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

THEMES = {
    "animal": ("cat", "horse", "salmon", "eagle", "spider", "whale"),
    "food": ("bread", "apple", "cheese", "soup", "pepper", "honey"),
    "music": ("piano", "drum", "opera", "violin", "choir", "jazz"),
    "sport": ("tennis", "rugby", "sprint", "boxing", "chess", "sailing"),
    "weather": ("storm", "fog", "hail", "breeze", "frost", "rainbow"),
}
"""Words by what they have in common."""
OURS = 4
TURNS = 4


@dataclass(frozen=True, slots=True)
class Table:
    """A position: the words, those of our team, the assassin, what was guessed, and the turns that are gone."""

    words: tuple[str, ...]
    ours: frozenset[str]
    assassin: str
    guessed: tuple[str, ...] = field(default=())
    turns: int = 0

    @property
    def found(self) -> int:
        """How many of our words were guessed."""
        return len(self.ours & set(self.guessed))

    @property
    def left(self) -> list[str]:
        """The words that were not guessed, as they lie."""
        return [word for word in self.words if word not in self.guessed]

    @property
    def over(self) -> str:
        """ "won" or "lost", "" as long as the game goes on."""
        if self.assassin in self.guessed:
            return "lost"
        if self.found == len(self.ours):
            return "won"
        return "lost" if self.turns >= TURNS else ""


def deal(seed: int) -> Table:
    """The table of a seed: three words of each of three themes, one theme of them ours, and one word of another."""
    rng = random.Random(f"codenames {seed}")
    themes = [rng.sample(THEMES[theme], 3) for theme in rng.sample(sorted(THEMES), 3)]
    words = [word for theme in themes for word in theme]
    rng.shuffle(words)
    ours = frozenset([*themes[0], themes[1][0]])
    return Table(tuple(words), ours, themes[2][0])


def is_clue(table: Table, clue: str) -> bool:
    """A clue is one word, and none that lies on the table or contains one that does, or is part of one."""
    word = clue.lower()
    return word.isalpha() and not any(word in each or each in word for each in table.left)


def guess(table: Table, words: list[str]) -> Table:
    """The table after a turn: guesses count until one is not ours; what is not on the table ends them as well."""
    guessed = list(table.guessed)
    for word in words:
        if word in guessed or word not in table.words:
            break
        guessed.append(word)
        if word not in table.ours:
            break
    return replace(table, guessed=tuple(guessed), turns=table.turns + 1)
