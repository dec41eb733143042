"""The ways through the viewer that the README promises, click by click."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

ROOT = Path(__file__).parents[3]
ENDS = {
    "why a run failed": ("article.here", "hotel service: there is no city named Atlantis"),
    "why a group taught nothing": ("#verdict", "Nothing: "),
    "which tokens were trained": (".tokens .t >> nth=0", "Let"),
}
"""Where each ends: what is there, and what it says."""


def ways(document: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| (wh.*?) \| (.*) \|$", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE)


def test_each_question_is_answered_in_under_five_clicks(page: Page) -> None:
    shown = ways("README.md")
    assert shown == ways("docs/view.md")
    assert [question for question, _ in shown] == list(ENDS)
    first = page.url
    for question, way in shown:
        clicks = way.split(", ")
        assert len(clicks) < 5
        page.goto(first)
        for click in clicks:
            if click.startswith("*"):
                page.get_by_role("link", name=re.compile(f"^{click.strip('*')}")).first.click()
            else:
                page.locator("tbody tr[data-href] a").first.click()
        selector, words = ENDS[question]
        expect(page.locator(selector)).to_contain_text(words)
