"""The rules of 2048 as pure functions. What comes up on the board is a function of the seed and the number of moves."""

from __future__ import annotations

import random
from dataclasses import dataclass

Row = tuple[int, ...]
Board = tuple[Row, ...]
"""Rows from the top, 0 where a cell is empty."""

DIRECTIONS = ("left", "right", "up", "down")
SIZE = 4
FOUR_ONE_IN = 10
"""One new tile in ten is a 4, the others are a 2."""


@dataclass(frozen=True, slots=True)
class Game:
    """A position: the board, the score (the sum of all tiles that were merged), and the moves made so far."""

    seed: int
    board: Board
    score: int = 0
    moves: int = 0

    @property
    def highest(self) -> int:
        """The highest tile."""
        return max(map(max, self.board))


def new_game(seed: int) -> Game:
    """The start: an empty board with two tiles."""
    rng = random.Random(f"2048 {seed} start")
    empty: Board = tuple((0,) * SIZE for _ in range(SIZE))
    return Game(seed, spawn(spawn(empty, rng), rng))


def play(game: Game, direction: str) -> Game:
    """The position after a move; the same one where the move changes nothing, as then it is none.

    Raises ValueError for what is no direction.
    """
    board, gained = slide(game.board, direction)
    if board == game.board:
        return game
    rng = random.Random(f"2048 {game.seed} {game.moves}")
    return Game(game.seed, spawn(board, rng), game.score + gained, game.moves + 1)


def legal(board: Board) -> list[str]:
    """The directions in which something moves; none: the game is over."""
    return [direction for direction in DIRECTIONS if slide(board, direction)[0] != board]


def slide(board: Board, direction: str) -> tuple[Board, int]:
    """All tiles moved as far as they go, equal ones merged, and the sum of the merged tiles."""
    if direction in ("up", "down"):
        turned, gained = slide(_transposed(board), "left" if direction == "up" else "right")
        return _transposed(turned), gained
    if direction not in DIRECTIONS:
        raise ValueError(f"{direction!r} is none of {', '.join(DIRECTIONS)}")
    step = 1 if direction == "left" else -1
    merged = [merge(row[::step]) for row in board]
    return tuple(row[::step] for row, _ in merged), sum(gained for _, gained in merged)


def merge(row: Row) -> tuple[Row, int]:
    """A row moved to the left: a tile merges once a move, and of three equal ones the two that are further left do."""
    tiles = [tile for tile in row if tile]
    made: list[int] = []
    gained = at = 0
    while at < len(tiles):
        pair = at + 1 < len(tiles) and tiles[at] == tiles[at + 1]
        made.append(2 * tiles[at] if pair else tiles[at])
        gained += made[-1] if pair else 0
        at += 2 if pair else 1
    return (*made, *(0,) * (len(row) - len(made))), gained


def spawn(board: Board, rng: random.Random) -> Board:
    """The board with a new tile on one of its empty cells. Raises IndexError where there is none."""
    row, column = rng.choice([(r, c) for r, cells in enumerate(board) for c, tile in enumerate(cells) if not tile])
    tile = 4 if rng.randrange(FOUR_ONE_IN) == 0 else 2
    return tuple(
        tuple(tile if (r, c) == (row, column) else old for c, old in enumerate(cells)) for r, cells in enumerate(board)
    )


def drawn(board: Board) -> str:
    """The board as text, a row per line, a dot for an empty cell."""
    return "\n".join(" ".join(str(tile or ".") for tile in row) for row in board)


def _transposed(board: Board) -> Board:
    return tuple(zip(*board, strict=True))
