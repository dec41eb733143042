"""Rows of a query as text: nothing of them is left out, and what is measured is what a terminal shows."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pytest
from rich.console import Console

from arttrace.views.console.rows import print_rows


def printed(columns: list[str], rows: list[tuple[Any, ...]], width: int = 40, **console: Any) -> list[str]:
    file = io.StringIO()
    print_rows(Console(file=file, width=width, highlight=False, **console), columns, rows)
    return file.getvalue().splitlines()


def test_numbers_stand_right_and_texts_left() -> None:
    rows = [("漢字", 1, Decimal("2.50"), "[bold]x"), ("b", None, 3.0, None)]
    assert printed(["name", "n", "mean", "text"], rows) == [
        "name   n   mean   text",
        "─────────────────────────",
        "漢字   1   2.50   [bold]x",
        "b             3",
    ]


def test_without_rows_there_are_the_columns() -> None:
    assert printed(["name", "n"], []) == ["name   n", "────────"]


def test_a_row_that_is_wider_than_the_page_is_lines_of_name_and_value() -> None:
    rows = [("a word and another, then more", "y" * 40), ("short", None)]
    assert printed(["first", "a second"], rows, width=30) == [
        "row 1",
        "first     a word and another,",
        "          then more",
        "a second  yyyyyyyyyyyyyyyyyyyy",
        "          yyyyyyyyyyyyyyyyyyyy",
        "row 2",
        "first     short",
        "a second  ",
    ]


@pytest.mark.parametrize("width", [1, 8, 20])
def test_on_a_narrow_page_names_and_values_are_whole(width: int) -> None:
    page = printed(["a_long_name_of_a_column"], [("a value of thirty characters..",)], width=width)
    assert page[1].startswith("a_long_name_of_a_column  a value")
    assert "".join(line[25:].replace(" ", "") for line in page[1:]) == "avalueofthirtycharacters.."


def test_in_colour_the_names_are_bold() -> None:
    head, *_, row = printed(["n"], [(1,)], force_terminal=True, color_system="standard")
    assert (head, row) == ("\x1b[1mn\x1b[0m", "1")


def test_many_rows_are_all_there() -> None:
    page = printed(["n"], [(number,) for number in range(1234)])
    assert page[2:] == [f"{number:>4}" for number in range(1234)]
