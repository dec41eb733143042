"""Tic-tac-toe as pure functions, with a solver that knows the result of every position."""

from __future__ import annotations

from functools import cache

Board = str
"""Nine cells from the upper left, each "X", "O" or "."; X begins."""

EMPTY: Board = "." * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def to_move(board: Board) -> str:
    """Whose turn it is."""
    return "X" if board.count("X") == board.count("O") else "O"


def free(board: Board) -> list[int]:
    """The empty cells; none once somebody has won."""
    return [] if winner(board) else [cell for cell, mark in enumerate(board) if mark == "."]


def winner(board: Board) -> str:
    """Who has three in a line; "" as long as nobody does."""
    return next((board[a] for a, b, c in LINES if board[a] != "." and board[a] == board[b] == board[c]), "")


def place(board: Board, cell: int) -> Board:
    """The board after whose turn it is marks a cell. Raises ValueError where the cell is not free."""
    if cell not in free(board):
        raise ValueError(f"cell {cell} of {board} is not free")
    return board[:cell] + to_move(board) + board[cell + 1 :]


@cache
def value(board: Board) -> int:
    """The result when both play as well as can be: 1 where X wins, -1 where O does, 0 for a draw."""
    if won := winner(board):
        return 1 if won == "X" else -1
    results = [value(place(board, cell)) for cell in free(board)]
    best = max if to_move(board) == "X" else min
    return best(results, default=0)


def best(board: Board) -> list[int]:
    """The cells that keep the position's value."""
    return [cell for cell in free(board) if value(place(board, cell)) == value(board)]


def drawn(board: Board) -> str:
    """The board as text; an empty cell is its number, 1 to 9."""
    cells = [str(cell + 1) if mark == "." else mark for cell, mark in enumerate(board)]
    return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))
