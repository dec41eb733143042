"""Back from a run: the list has the rows again that a person had loaded, and shows the one that was opened."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect
from simulated_agent import T0, Run, message
from viewer_site import KEY, Viewer, serve_viewer

from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.web.guard import login_link
from arttrace.views.web.handlers import runs as runs_handlers
from arttrace.views.web.models.run_list import PAGE

RUNS = PAGE * 2 + 30


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    root = tmp_path_factory.mktemp("many")
    with Store.open(DataDir(root), create=True) as store:
        spans = []
        for number in range(RUNS):
            run = Run(f"run-{number:03}")
            run.chat("c", [message("user", "go")], message("assistant", "yes"), at=1)
            *within, top = run.end(at=20)
            spans += [*within, msgspec.structs.replace(top, start_ns=T0 + number * 1_000_000)]
        store.append(spans)
    with serve_viewer(root) as running:
        yield running


def listed(browser: Browser, viewer: Viewer) -> Page:
    page = browser.new_context(viewport={"width": 1200, "height": 800}).new_page()
    page.goto(login_link(viewer.url, KEY))
    expect(page.locator("#newest tr[id]")).to_have_count(PAGE)
    return page


def test_back_and_a_reload_keep_the_rows_that_were_loaded(browser: Browser, viewer: Viewer) -> None:
    page = listed(browser, viewer)
    page.locator("tr.more").scroll_into_view_if_needed()
    expect(page.locator("#newest tr[id]")).to_have_count(2 * PAGE)
    oldest = page.locator("#newest tr[id]").nth(2 * PAGE - 1)
    assert parse_qs(urlsplit(page.url).query)["upto"] == [f"{oldest.get_attribute('data-began')}.run-030"]
    page.locator("tr#run-run-060 a").first.click()
    expect(page.locator("h1")).to_have_text("agent:run")
    page.go_back()
    expect(page.locator("#newest tr[id]")).to_have_count(2 * PAGE)
    expect(page.locator("tr#run-run-060")).to_be_in_viewport()
    page.reload()
    expect(page.locator("#newest tr[id]")).to_have_count(2 * PAGE)
    page.locator("tr.more").scroll_into_view_if_needed()
    expect(page.locator("#newest tr[id]")).to_have_count(RUNS)
    page.locator(".segments a.complete").click()
    expect(page.locator("#newest tr[id]")).to_have_count(PAGE)
    assert "upto" not in page.url
    page.context.close()


def test_back_shows_a_row_that_the_keyboard_opened(browser: Browser, viewer: Viewer) -> None:
    page = listed(browser, viewer)
    for _ in range(40):
        page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("agent:run")
    page.go_back()
    expect(page.locator("tr.here")).to_have_id("run-run-190")
    expect(page.locator("tr.here")).to_be_in_viewport()
    page.keyboard.press("j")
    expect(page.locator("tr.here")).to_have_id("run-run-189")
    page.context.close()


def test_a_page_that_begins_further_on_ends_where_it_ended(viewer: Viewer, browser: Browser) -> None:
    page = listed(browser, viewer)
    page.goto(f"{viewer.url}{page.locator('tr.more a').get_attribute('href')}")
    expect(page.locator("#newest tr[id]").first).to_have_id("run-run-129")
    page.locator("tr.more").scroll_into_view_if_needed()
    expect(page.locator("#newest tr[id]")).to_have_count(RUNS - PAGE)
    page.reload()
    expect(page.locator("#newest tr[id]")).to_have_count(RUNS - PAGE)
    expect(page.locator("#newest tr[id]").first).to_have_id("run-run-129")
    page.context.close()


def test_what_comes_again_is_bounded(browser: Browser, viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_handlers, "MOST_AGAIN", PAGE + 10)
    page = listed(browser, viewer)
    page.goto(f"{viewer.url}/runs?upto={T0}.run-000")
    expect(page.locator("#newest tr[id]")).to_have_count(PAGE + 10)
    page.goto(f"{viewer.url}/runs?upto={T0 + 10**18}.gone")
    expect(page.locator("#newest tr[id]")).to_have_count(PAGE)
    page.context.close()


def test_further_rows_leave_too_when_the_list_ends_before_them(browser: Browser, viewer: Viewer) -> None:
    page = listed(browser, viewer)
    page.goto(f"{viewer.url}/runs?reward=none")
    page.locator("tr.more").scroll_into_view_if_needed()
    expect(page.locator("#newest tr[id]")).to_have_count(2 * PAGE)
    viewer.store.append([Reward(f"r{number}", f"run-{number:03}", 1.0) for number in range(RUNS - 20)])
    expect(page.locator("#newest tr[id]")).to_have_count(20)
    expect(page.locator("tr.more")).to_have_count(0)
    page.context.close()
