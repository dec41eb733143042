"""Tic-tac-toe: the solver's results against what is known of the game."""

from __future__ import annotations

import pytest
from example_modules import load

board = load("games/tic_tac_toe/board.py")


def positions(at: str = board.EMPTY, seen: set[str] | None = None) -> set[str]:
    seen = set() if seen is None else seen
    if at not in seen:
        seen.add(at)
        for cell in board.free(at):
            positions(board.place(at, cell), seen)
    return seen


def test_the_known_numbers_of_positions_and_results() -> None:
    everything = positions()
    assert len(everything) == 5478
    over = [one for one in everything if not board.free(one)]
    assert [sum(board.winner(one) == who for one in over) for who in ("X", "O", "")] == [626, 316, 16]
    assert board.value(board.EMPTY) == 0


@pytest.mark.parametrize(
    ("position", "value", "best"),
    [
        ("X........", 0, [4]),  # a corner is answered by the centre alone
        ("....X....", 0, [0, 2, 6, 8]),  # the centre by a corner
        ("XX.OO....", 1, [2]),
        ("X.X.O....", 0, [1]),
        ("X...O...X", 0, [1, 3, 5, 7]),
        ("XO.......", 1, [3, 4, 6]),
    ],
)
def test_known_positions(position: str, value: int, best: list[int]) -> None:
    assert (board.value(position), board.best(position)) == (value, best)


@pytest.mark.parametrize(("mark", "other"), ["XO", "OX"])
def test_who_plays_by_the_solver_never_loses(mark: str, other: str) -> None:
    def results(at: str) -> set[str]:
        if not board.free(at):
            return {board.winner(at)}
        moves = board.best(at) if board.to_move(at) == mark else board.free(at)
        return set().union(*(results(board.place(at, cell)) for cell in moves))

    assert other not in results(board.EMPTY)


def test_a_cell_that_is_not_free_is_refused() -> None:
    with pytest.raises(ValueError, match="not free"):
        board.place("X........", 0)
    with pytest.raises(ValueError, match="not free"):
        board.place("XXXOO....", 8)
