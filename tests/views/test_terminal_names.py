"""What people read of a group's key, whatever it holds."""

from __future__ import annotations

import pytest

from arttrace.views.terminal import group_name


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ('e {"city": "Oslo", "days": 3}', "city=Oslo, days=3"),
        ('e {"city": "Oslo"}', "Oslo"),
        ("e null", ""),
        ("e [1]", "[1]"),
        ("free text", "free text"),
    ],
)
def test_arguments_are_read_as_such(key: str, name: str) -> None:
    assert group_name(key, "e") == name


def test_a_key_deeper_than_a_parser_goes_is_shown_as_it_is() -> None:
    for deep in ("[" * 3000, *('{"a":' * depth + "1" + "}" * depth for depth in range(900, 1000))):
        assert group_name(f"e {deep}", "e") == deep
