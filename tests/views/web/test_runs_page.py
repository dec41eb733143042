"""The list of runs in a browser: filters are the address, errors come first, and it follows the store."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
from playwright.sync_api import Page, expect
from viewer_site import HOSTILE, KEY, Viewer, capture


def test_a_person_filters_by_clicking_and_shares_the_address(page: Page, viewer: Viewer) -> None:
    expect(page.locator("#newest tr[id]").nth(9)).to_be_visible()
    page.get_by_role("link", name=re.compile("Failed")).click()
    expect(page.locator("#newest tr[id]")).to_have_count(1)
    expect(page.locator("#newest .why")).to_contain_text("there is no city named Atlantis")
    page.select_option("#tag", "beta")
    page.wait_for_url("**tag=beta**")
    assert parse_qs(urlsplit(page.url).query) == {"status": ["failed"], "tag": ["beta"]}
    page.get_by_role("link", name="Remove the filter status failed").click()
    expect(page.locator("#newest tr[id]")).to_have_count(4)


def test_a_further_filter_leaves_every_tag(page: Page, viewer: Viewer) -> None:
    page.goto(viewer.url + "/runs?tag=beta&tag=odd")
    page.get_by_label("Reward", exact=True).fill("none")
    page.get_by_label("Reward", exact=True).press("Enter")
    page.wait_for_url("**reward=none**")
    assert sorted(parse_qs(urlsplit(page.url).query)["tag"]) == ["beta", "odd"]
    expect(page.locator("#newest tr[id]")).to_have_count(1)


def test_text_is_searched_in_messages_and_tool_calls(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("tile museum")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=tile**")
    rows = page.locator("#newest tr[id]")
    expect(rows.first).to_be_visible()
    assert 0 < rows.count() < 10


def test_a_filter_that_says_nothing_is_named(page: Page, viewer: Viewer) -> None:
    page.goto(viewer.url + "/runs?reward=much")
    expect(page.get_by_role("alert")).to_contain_text("'much' is not a comparison")
    expect(page.locator("#reward")).to_have_attribute("aria-invalid", "true")
    page.goto(viewer.url + "/runs?policy=policy@latest")
    expect(page.get_by_role("alert")).to_contain_text("'policy@latest' is neither a policy nor a version")


def test_script_in_a_trace_is_text(page: Page) -> None:
    expect(page.locator(".tag", has_text=HOSTILE)).to_be_visible()
    assert page.evaluate("window.ran") is None


def test_the_keyboard_is_enough(page: Page) -> None:
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tr.here")).to_have_id(page.locator("#newest tr[id]").nth(1).get_attribute("id") or "")
    page.keyboard.press("e")
    expect(page.locator("tr.here")).to_contain_text("Atlantis")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()


def test_pages_follow_each_other_by_their_last_run(viewer: Viewer) -> None:
    shown = {"authorization": f"Bearer {KEY}"}
    whole = re.findall(r'id="run-(\S+?)"', httpx.get(viewer.url + "/runs", headers=shown).text)
    starts = {run.id: run.start_ns for run in viewer.store.summaries()}
    third = whole[2]
    after = httpx.get(f"{viewer.url}/rows/runs?after={starts[third]}.{third}", headers=shown).text
    assert re.findall(r'id="run-(\S+?)"', after) == whole[3:]


def test_a_new_run_appears_by_itself(page: Page, site: Path) -> None:
    before = page.locator("#newest tr[id]").count()
    capture(site, [{"question": "Plan a night in Turin", "scenario": "turin"}])
    expect(page.locator("#newest tr[id]")).to_have_count(before + 1)
    expect(page.locator("#newest tr[id]").first).to_contain_text("turin")
    expect(page.locator("#counts")).to_contain_text(f"{before + 1} runs")
