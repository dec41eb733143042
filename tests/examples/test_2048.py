"""The rules of 2048: merges, their order, what spawns, known positions, and the end."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from example_modules import load
from hypothesis import given
from hypothesis import strategies as st

board = load("2048/board.py")
TILES = st.sampled_from([0, 0, 2, 4, 8, 16])
BOARDS = st.tuples(*[st.tuples(*[TILES] * 4)] * 4)


@pytest.mark.parametrize(
    ("row", "merged", "gained"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0), 0),
        ((0, 2, 0, 2), (4, 0, 0, 0), 4),
        ((2, 2, 2, 0), (4, 2, 0, 0), 4),  # the two further left
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),  # two pairs, and what is made does not merge again
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),
        ((4, 4, 8, 0), (8, 8, 0, 0), 8),
        ((2, 0, 4, 2), (2, 4, 2, 0), 0),
        ((1024, 1024, 0, 2), (2048, 2, 0, 0), 2048),
    ],
)
def test_a_row_is_merged(row: tuple[int, ...], merged: tuple[int, ...], gained: int) -> None:
    assert board.merge(row) == (merged, gained)


POSITION = ((2, 0, 0, 2), (4, 4, 8, 0), (2, 2, 2, 2), (0, 0, 0, 2))


@pytest.mark.parametrize(
    ("direction", "after", "gained"),
    [
        ("left", ((4, 0, 0, 0), (8, 8, 0, 0), (4, 4, 0, 0), (2, 0, 0, 0)), 20),
        ("right", ((0, 0, 0, 4), (0, 0, 8, 8), (0, 0, 4, 4), (0, 0, 0, 2)), 20),
        ("up", ((2, 4, 8, 4), (4, 2, 2, 2), (2, 0, 0, 0), (0, 0, 0, 0)), 4),
        ("down", ((0, 0, 0, 0), (2, 0, 0, 0), (4, 4, 8, 2), (2, 2, 2, 4)), 4),
    ],
)
def test_a_known_position_in_each_direction(direction: str, after: tuple[tuple[int, ...], ...], gained: int) -> None:
    assert board.slide(POSITION, direction) == (after, gained)


def test_only_moves_that_change_something_are_legal() -> None:
    assert board.legal(((2, 0, 0, 0), (4, 0, 0, 0), (2, 0, 0, 0), (4, 0, 0, 0))) == ["right"]
    stuck = ((2, 4, 2, 4), (4, 2, 4, 2), (2, 4, 2, 4), (4, 2, 4, 2))
    assert board.legal(stuck) == []
    game = board.Game(0, ((2, 0, 0, 0), (0,) * 4, (0,) * 4, (0,) * 4))
    assert board.play(game, "left") is game
    with pytest.raises(ValueError, match="sideways"):
        board.play(game, "sideways")


def test_what_spawns_is_a_function_of_the_seed_and_the_move() -> None:
    first, second = (board.play(board.new_game(7), "left") for _ in range(2))
    assert first == second
    starts = [board.new_game(seed) for seed in range(400)]
    assert len({start.board for start in starts}) > 100
    tiles = Counter(tile for start in starts for row in start.board for tile in row if tile)
    assert sum(tiles.values()) == 800
    assert 0.05 < tiles[4] / 800 < 0.15


def test_a_game_of_a_seed_ends_as_it_always_does() -> None:
    game, rng = board.new_game(1), random.Random(1)
    while moves := board.legal(game.board):
        game = board.play(game, rng.choice(moves))
    assert (game.score, game.highest, game.moves) == (1060, 128, 116)


@given(BOARDS, st.sampled_from(["left", "right", "up", "down"]))
def test_a_move_keeps_the_sum_and_its_mirror_image_is_the_opposite_move(
    cells: tuple[tuple[int, ...], ...], direction: str
) -> None:
    moved, gained = board.slide(cells, direction)
    assert sum(map(sum, moved)) == sum(map(sum, cells))
    assert gained % 4 == 0
    mirrored = tuple(row[::-1] for row in cells)
    opposite = {"left": "right", "right": "left"}.get(direction, direction)
    assert board.slide(mirrored, opposite) == (tuple(row[::-1] for row in moved), gained)
