"""The viewer by keyboard alone: the order of Tab, a focus that is seen, the skip link, and Escape."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, expect
from viewer_site import Viewer

from arttrace.records.reward import Reward, reward_clock

FOCUS = """() => {
    const one = document.activeElement;
    if (!one || one === document.body) return null;
    const style = getComputedStyle(one), seen = one.getBoundingClientRect(), faults = [];
    if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2) faults.push("has no outline");
    const grow = parseFloat(style.outlineWidth) + parseFloat(style.outlineOffset);
    for (let at = one.parentElement; at && at !== document.body; at = at.parentElement) {
        const { overflowX, overflowY, contentVisibility } = getComputedStyle(at), box = at.getBoundingClientRect();
        if (overflowX === "visible" && overflowY === "visible" && contentVisibility === "visible") continue;
        const beyond = [box.left - seen.left, box.top - seen.top, seen.right - box.right, seen.bottom - box.bottom];
        if (beyond.some((one) => one + grow > 1)) faults.push(`its outline is cut by .${at.className || at.tagName}`);
    }
    const across = Math.min(seen.width / 2, 30), down = Math.min(seen.height / 2, 30);
    const over = document.elementFromPoint(seen.left + across, seen.top + down);
    if (!over || !(one.contains(over) || over.contains(one))) faults.push(`is under .${over?.className}`);
    const every = [...document.querySelectorAll("a, button, input, select, textarea, summary, [tabindex]")];
    const name = `${one.tagName} ${(one.getAttribute("aria-label") || one.textContent).trim().slice(0, 40)}`;
    return { order: every.indexOf(one), faults: faults.map((fault) => `${name} ${fault}`) };
}"""

STOPS = """() => [
    ...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']"),
].filter((one) => one.tabIndex >= 0 && one.type !== "hidden" && one.checkVisibility()).length"""


def run_id(viewer: Viewer, group: str) -> str:
    return next(run.id for run in viewer.store.summaries() if run.group == group)


def walk(page: Page, key: str, stops: int) -> list[dict[str, Any]]:
    """Where so many presses lead; from the last stop the focus leaves the page, and comes back to it."""
    found = []
    for _ in range(stops):
        page.keyboard.press(key)
        if (stop := page.evaluate(FOCUS)) is not None:
            found.append(stop)
    return found


def test_wherever_tab_goes_the_focus_is_seen(page: Page, viewer: Viewer) -> None:
    page.set_viewport_size({"width": 1000, "height": 500})
    week = f"/runs/{run_id(viewer, 'lisbon week')}"
    one_group = "/groups/one?key=lisbon%20weekend"
    of_run = [week + tab for tab in ("", "/timeline", "/graph", "/tokens", "/spans")]
    shown = {}
    for address in ("/runs", *of_run, one_group, "/training?policy=policy"):
        page.goto(viewer.url + address)
        stops = page.evaluate(STOPS)
        there, back = walk(page, "Tab", stops), walk(page, "Shift+Tab", stops + 1)
        if found := sorted({fault for stop in there + back for fault in stop["faults"]}):
            shown[address] = found
        order = [stop["order"] for stop in there]
        assert order == sorted(set(order)), "as the page is read"
        assert len(order) == stops > 8
        assert {stop["order"] for stop in back} == set(order)
    assert not shown


def test_the_first_stop_skips_to_the_content(page: Page, viewer: Viewer) -> None:
    page.goto(f"{viewer.url}/runs/{run_id(viewer, 'porto')}")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport(ratio=1)
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("main .crumbs a")).to_be_focused()
    expect(skip).not_to_be_in_viewport()


def test_escape_closes_what_was_opened_and_gives_the_focus_back(page: Page, viewer: Viewer) -> None:
    page.goto(f"{viewer.url}/runs/{run_id(viewer, 'porto')}")
    shortcuts = page.get_by_role("button", name="Keyboard shortcuts")
    shortcuts.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(shortcuts).to_be_focused()
    copy, items = page.locator(".menu summary"), page.locator(".menu-list")
    copy.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="as JSON")).to_be_focused()
    page.keyboard.press("Escape")
    expect(items).to_be_hidden()
    expect(copy).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    expect(items).to_be_hidden()
    copy.click()
    expect(items).to_be_visible()
    page.locator("h1").click()
    expect(items).to_be_hidden()
    note = page.get_by_text("A number or a note")
    note.focus()
    page.keyboard.press("Enter")
    page.fill("#say-note", "not yet")
    page.keyboard.press("Escape")
    expect(page.locator("#say-note")).to_be_hidden()
    expect(note).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#say-note")).to_have_value("not yet")


def test_why_a_run_failed_is_found_by_keys_alone(page: Page) -> None:
    page.keyboard.press("e")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/runs/[0-9a-f]"))
    page.keyboard.press("e")
    expect(page.locator("#problem.here")).to_contain_text("there is no city named Atlantis")
    page.keyboard.press("Enter")
    expect(page.locator("article.here")).to_contain_text("search_hotels")
    for tab, where in (("2", ".bar-row.is-failed"), ("5", ".span-row.is-failed")):
        page.keyboard.press(tab)
        expect(page.locator(where).first).to_contain_text("failed")  # red is not for everybody


def test_a_list_that_follows_the_store_keeps_the_focus(page: Page, viewer: Viewer) -> None:
    id = run_id(viewer, "porto")
    link = page.locator(f"tr#run-{id} td.run a")
    link.focus()
    reward = Reward("held", id, 0.25, "held", "code", time_ns=reward_clock.now_ns())
    viewer.store.append([reward])
    try:
        expect(page.locator(f"tr#run-{id}")).to_contain_text("0.250")
        expect(link).to_be_focused()
    finally:
        viewer.store.append([Reward("held", id, 0.25, "held", "code", time_ns=reward_clock.now_ns(), counts=False)])


def test_a_mark_by_its_button_leaves_the_focus_there(page: Page, viewer: Viewer) -> None:
    page.goto(f"{viewer.url}/runs/{run_id(viewer, 'porto')}")
    good = page.get_by_role("button", name="Good")
    good.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#reward-now")).to_have_text("1.000")
    expect(good).to_be_focused()
    undo = page.get_by_role("button", name="undo")
    undo.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#rewards .rewards")).to_have_count(0)
    expect(page.locator("#rewards-now")).to_be_focused()


def test_curves_are_read_and_opened_with_arrow_keys(page: Page, viewer: Viewer) -> None:
    page.goto(f"{viewer.url}/training?policy=policy")
    chart = page.get_by_role("group", name="Entropy")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(chart.get_by_role("status")).to_contain_text("policy@30: entropy 0.5289")
    page.keyboard.press("ArrowLeft")
    expect(chart.get_by_role("status")).to_contain_text("policy@29: entropy")
    page.keyboard.press("Home")
    expect(chart.get_by_role("status")).to_contain_text("policy@1: entropy")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_url("**/training/step?policy=policy&step=2")


def test_arrow_keys_go_through_a_menu_of_filters_before_it_applies(page: Page) -> None:
    entry = page.locator("#entry")
    entry.focus()
    before = page.url
    page.keyboard.press("ArrowDown")
    expect(entry).not_to_have_value("")
    first = entry.input_value()
    page.wait_for_timeout(100)
    assert page.url == before
    page.keyboard.press("Enter")
    page.wait_for_url("**entry=**")
    expect(page.locator("#entry")).to_have_value(first)


def test_single_keys_can_be_switched_off(page: Page, viewer: Viewer) -> None:
    page.get_by_role("button", name="Keyboard shortcuts").click()
    page.get_by_role("checkbox", name="Single keys act").uncheck()
    page.keyboard.press("Escape")
    page.goto(f"{viewer.url}/runs/{run_id(viewer, 'porto')}")
    for key in ("a", "s", "2", "u", "/", "?"):
        page.keyboard.press(key)
    page.wait_for_timeout(100)
    assert page.url.endswith(run_id(viewer, "porto"))
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("#rewards .rewards")).to_have_count(0)
    page.get_by_role("button", name="Keyboard shortcuts").click()
    page.get_by_role("checkbox", name="Single keys act").check()
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    page.wait_for_url("**/timeline")
