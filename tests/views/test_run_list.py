"""The list of runs in the viewer: its rows, and the filters of its address."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_agent import Run, message

from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.web.models.group_page import group_row
from arttrace.views.web.models.run_list import facets, parse_query, run_row


@pytest.mark.parametrize(
    ("id", "shown"),
    [
        ("0123456789abcdef0123456789abcdef", "01234567"),
        ("checkout-2026-11-23-0007", "checkout-2026-11-23-0007"),
        ("nightly-evaluation-of-the-checkout-agent-2026-11-23-0007", "nightly-evaluation-o…ent-2026-11-23-0007"),
    ],
)
def test_an_id_that_somebody_chose_is_shown_whole_or_with_both_its_ends(tmp_path: Path, id: str, shown: str) -> None:
    run = Run(id)
    run.chat("c", [message("user", "hello")], message("assistant", "hi"), at=1)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.end(at=10))
        [summary] = store.summaries()
    assert run_row(summary).short == shown


def test_versions_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    run = Run("r", scenario="s")
    for number in (10, 9, 2):
        run.chat(
            f"c{number}", [message("user", str(number))], message("assistant", "hi"), at=number, policy=f"p@{number}"
        )
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.end(at=20))
        summaries = store.summaries()
    assert run_row(summaries[0]).policies == ("p@2", "p@9", "p@10")
    assert group_row("s", summaries).policies == ("p@2", "p@9", "p@10")
    assert facets(summaries)["policy"] == ["p", "p@2", "p@9", "p@10"]


def test_a_blank_tag_is_in_no_menu_and_no_row(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(Run("r").end(at=10, TAGS=["", " ", "beta"]))
        summaries = store.summaries()
    assert facets(summaries)["tag"] == ["beta"]
    assert run_row(summaries[0]).tags == ("beta",)


def test_of_a_filter_that_is_given_twice_the_page_shows_the_one_that_counts() -> None:
    query = parse_query([("entry", "a"), ("entry", "b")])
    assert query.wanted.entry == query.value("entry") == "b"
