"""The generated puzzles: each has one solution, needs all its clues, and is that of its seed."""

from __future__ import annotations

import pytest
from example_modules import load

puzzle = load("games/clues/puzzle.py")
Clue = puzzle.Clue


def test_a_puzzle_of_known_clues() -> None:
    clues = [Clue("before", 0, 1), Clue("has", 0, 0, "room"), Clue("with", 0, 1, "room", "thing")]
    found = puzzle.solutions(clues, 2)
    assert found == [{"room": (0, 1), "thing": (1, 0), "hour": (0, 1)}]
    assert [str(clue) for clue in clues] == [
        "Ada came before Ben.",
        "Ada had the room hall.",
        "The room hall goes with the thing lamp.",
    ]
    assert str(Clue("lacks", 1, 2, "hour")) == "Ben did not have the hour three."
    assert len(puzzle.solutions(clues[:2], 2)) == 2
    assert len(puzzle.solutions([], 3)) == 6**3
    assert puzzle.solutions([Clue("before", 0, 1), Clue("before", 1, 0)], 3) == []


@pytest.mark.parametrize("seed", range(12))
def test_a_generated_puzzle_has_one_solution_and_needs_each_clue(seed: int) -> None:
    made = puzzle.generate(seed)
    [only] = puzzle.solutions(made.clues, made.size)
    facts = puzzle.FACTS.items()
    assert made.answer == tuple(values[only[fact][made.person]] for fact, values in facts)
    for left_out in made.clues:
        assert len(puzzle.solutions([clue for clue in made.clues if clue != left_out], made.size)) > 1
    assert made == puzzle.generate(seed)


def test_a_larger_one_is_proved_as_well() -> None:
    made = puzzle.generate(5, size=4)
    assert len(puzzle.solutions(made.clues, 4)) == 1
    assert made.text.startswith("Ada, Ben, Cleo, Dan\nrooms: hall, attic, cellar, study\n")
    assert len({puzzle.generate(seed).text for seed in range(30)}) == 30


def test_the_puzzle_of_a_seed_is_the_same_in_every_process() -> None:
    made = puzzle.generate(0)
    assert made.text.splitlines() == [
        "Ada, Ben, Cleo",
        "rooms: hall, attic, cellar",
        "things: rope, lamp, knife",
        "hours: one, two, three",
        "Cleo had the hour one.",
        "Ada did not have the thing knife.",
        "Ben did not have the room cellar.",
        "The room hall goes with the thing rope.",
        "The hour three goes with the thing rope.",
        "The hour two goes with the thing knife.",
        "Which room, thing, hour had Ada?",
    ]
    assert made.answer == ("hall", "rope", "three")
