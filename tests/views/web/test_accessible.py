"""Every page by axe-core, in both themes, on a screen, a tablet and a phone; ids that are one; names of any length."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, expect
from simulated_agent import Run, message
from viewer_site import HOSTILE, Viewer, serve_viewer

from arttrace.records.reward import Reward, reward_clock
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.web.handlers import run as run_handlers
from arttrace.views.web.store_reader import StoreReader

LEVELS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "resultTypes": ["violations"]}
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}, "resultTypes": ["violations"]}
WIDTHS = (1280, 768, 360)
CHECK = """async (options) => (await axe.run(options)).violations.map(
    (one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.target).join(", ")}`)"""
SHAPE = """() => {
    const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
    const twice = ids.filter((id, at) => ids.indexOf(id) !== at).map((id) => `id ${id} twice`);
    const wide = document.documentElement.scrollWidth - innerWidth;
    return wide > 0 ? [...twice, `${wide} px wider than the window`] : twice;
}"""
BEYOND = """(width) => [...document.querySelectorAll(".picks span, .evidence-quiet, .entry .who, .crumbs span, h1")]
    .filter((one) => one.getBoundingClientRect().right > width).map((one) => one.className || one.tagName)"""


def addresses(viewer: Viewer) -> list[str]:
    runs = {run.group: run.id for run in viewer.store.summaries()}
    failed, week, porto = runs["atlantis"], runs["lisbon week"], runs["porto"]
    span = viewer.store.trajectory(failed).calls[0].call.span_id
    return [
        "/runs",
        "/runs?status=failed&q=nothing",
        f"/runs/{failed}",
        f"/runs/{week}/timeline",
        f"/runs/{week}/graph",
        f"/runs/{porto}/tokens",
        f"/runs/{failed}/spans",
        f"/runs/{failed}/spans/{span}",
        "/groups",
        "/groups/one?key=lisbon%20weekend",
        "/training",
        "/training/step?policy=policy&step=30",
        "/nothing",
    ]


def faults(page: Page) -> list[str]:
    """What axe-core finds on a page: of all its levels at every width, of its colours in the other theme too."""
    page.evaluate(AXE_SCRIPT)
    found = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 780})
        found += [f"{width}: {one}" for one in (*page.evaluate(SHAPE), *page.evaluate(CHECK, LEVELS))]
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    return found + [f"dark: {one}" for one in page.evaluate(CHECK, COLOURS)]


def test_no_page_breaks_wcag_aa_at_any_width_in_either_theme(
    browser: Browser, viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = browser.new_context(color_scheme="light", reduced_motion="reduce")
    page = context.new_page()
    kept = {}
    for address in ("/login", viewer.link.removeprefix(viewer.url), *addresses(viewer)):
        page.goto(viewer.url + address)
        expect(page.locator("h1")).to_be_visible()
        if found := faults(page):
            kept[address] = found
    expect(page.locator("h1")).to_be_visible()
    monkeypatch.setattr(run_handlers, "LARGE", 0)
    monkeypatch.setattr(StoreReader, "holds", lambda *_: False)
    context.route("**/ready", lambda route: route.fulfill(status=204))
    for tab, words in (("", "The rest of this run is being read"), ("/timeline", "This run is being read")):
        page.goto(viewer.url + addresses(viewer)[2] + tab)
        expect(page.get_by_role("status").first).to_contain_text(words)
        if found := faults(page):
            kept[words] = found
    assert not kept
    context.close()


def test_the_tab_one_is_at_is_seen_on_a_phone(browser: Browser, viewer: Viewer) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 780})
    page = context.new_page()
    page.goto(viewer.link)
    page.goto(f"{viewer.url}{addresses(viewer)[5]}")
    expect(page.locator(".tabs [aria-current]")).to_be_in_viewport(ratio=0.9)
    context.close()


def test_names_without_a_space_stay_within_every_page(browser: Browser, tmp_path: Path) -> None:
    name = f"{HOSTILE}{'x' * 300}"
    run = Run(f"id/{name}", scenario=name)
    agent = run.agent(name, at=5, until=90)
    asked, kept = [message("user", name)], {"TOOL_CALL_ID": name, "TOOL_CALL_RESULT": name, "TOOL_CALL_ARGUMENTS": "{}"}
    run.chat("c", asked, message("assistant", name, calls=((name, name, "{}"),)), at=10, until=20, parent=agent)
    run.tool(name, name, at=21, until=30, parent=agent, **kept)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.end(at=100))
        reward = Reward(f"r{name}", run.id, 1e9, name, "human", explanation=name, time_ns=reward_clock.now_ns())
        store.append([reward])
        [found] = store.summaries()
        store.append(
            Run("plain", scenario="x" * 300).end(at=100)
        )  # of which the beginning that is shown breaks nowhere
    base = f"/runs/{quote(found.id, safe='')}"
    opened = ["/runs/plain", *(base + tab for tab in ("", "/timeline", "/graph", "/tokens", "/spans"))]
    with serve_viewer(tmp_path) as viewer:
        for width in (360, 1280):
            context = browser.new_context(viewport={"width": width, "height": 780})
            page = context.new_page()
            page.goto(viewer.link)
            for address in ("/runs", "/groups", f"/groups/one?key={quote(str(found.group), safe='')}", *opened):
                page.goto(viewer.url + address)
                expect(page.locator("h1")).to_be_visible()
                assert page.evaluate("document.documentElement.scrollWidth") <= width, address
                beyond = page.evaluate(BEYOND, width)
                assert not beyond, (address, width, beyond)
                assert page.evaluate("window.ran") is None, address
                wide = "[...document.querySelectorAll('td.run')].filter(cell => cell.scrollWidth > cell.clientWidth)"
                assert page.evaluate(f"{wide}.length") == 0, address
            context.close()
