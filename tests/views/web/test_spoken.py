"""The viewer as it is read aloud and from right to left: Chromium's accessibility tree, and the order of letters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect
from simulated_agent import Run, message, result
from viewer_site import Viewer, serve_viewer, steps

from arttrace.records.policy import Consumed
from arttrace.records.reward import Reward, reward_clock
from arttrace.store import Store
from arttrace.system.paths import DataDir

ARABIC = "ابحث عن فندق في Lisbon!"
HEBREW = "מצא מלון ב-Lisbon!"

LEFT_TO_RIGHT = """(texts) => {
    const found = [], walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    const at = (node, from) => {
        const range = document.createRange();
        range.setStart(node, from);
        range.setEnd(node, from + 1);
        return range.getBoundingClientRect();
    };
    let shown = 0;
    while (walk.nextNode()) {
        const node = walk.currentNode, text = texts.find((one) => node.data.trim().startsWith(one));
        if (!text || node.parentElement.closest("option, .hidden")) continue;
        const begins = node.data.indexOf(text), first = at(node, begins), end = at(node, begins + text.length - 1);
        if (!first.width) continue;
        shown += 1;
        if (end.top === first.top && end.left > first.left) found.push(`${node.parentElement.outerHTML.slice(0, 90)}`);
    }
    return [shown, found];
}"""
"""How many texts begin with one of these, and those in which its last letter stands right of its first. A sentence of
the viewer's own that names one is English."""


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    root = tmp_path_factory.mktemp("spoken")
    with Store.open(DataDir(root), create=True) as store:
        for id, value in (("one", 0.0), ("two", 1.0)):
            run = Run(id, entry=ARABIC, scenario=HEBREW)
            agent = run.agent(ARABIC, at=5, until=90)
            call = ("t", HEBREW, json.dumps({"q": ARABIC}))
            asked = [message("system", HEBREW), message("user", f"In English.\n{ARABIC}")]
            answer = run.chat("c", asked, message("assistant", ARABIC), at=6, until=9, parent=agent)
            calls = message("assistant", calls=(call,))
            asked += [answer, message("user", HEBREW)]
            called = run.chat("d", asked, calls, at=10, until=20, parent=agent)
            kept = {"TOOL_CALL_ID": "t", "TOOL_CALL_RESULT": ARABIC, "TOOL_CALL_ARGUMENTS": call[2]}
            run.tool("t", HEBREW, at=21, until=30, parent=agent, **kept)
            asked += [called, result("t", ARABIC)]
            run.chat("e", asked, message("assistant", f"{HEBREW} {id}"), at=40, until=50, parent=agent)
            store.append(run.end(at=100, METADATA=json.dumps({HEBREW: ARABIC})))
            time_ns = reward_clock.now_ns()
            store.append([Reward(id, id, value, HEBREW, "human", explanation=ARABIC, time_ns=time_ns)])
        consumed = [Consumed(run.id, run.revision) for run in store.trajectories()]
        store.append(steps(root, consumed, count=2))
    with serve_viewer(root) as running:
        yield running


def addresses() -> tuple[str, ...]:
    span = Run("one").span_id("c")
    tabs = ("", "/timeline", "/graph", "/tokens", "/spans", f"/spans/{span}")
    group = f"/groups/one?key={quote(HEBREW)}&run=one&run=two"
    step = "/training/step?policy=policy&step=2"
    return ("/runs", f"/runs?group={quote(HEBREW)}", *(f"/runs/one{tab}" for tab in tabs), "/groups", group, step)


def test_arabic_and_hebrew_read_from_right_to_left_wherever_they_stand(page: Page, viewer: Viewer) -> None:
    wrong = {}
    for address in addresses():
        page.goto(viewer.url + address)
        shown, found = page.evaluate(LEFT_TO_RIGHT, [ARABIC, HEBREW])
        assert shown, address
        if found:
            wrong[address] = found
    assert not wrong
    page.goto(viewer.url + "/runs/one")
    page.get_by_text("A number or a note").click()
    for field in ("#find", "#say-note"):
        page.fill(field, HEBREW)
        assert page.eval_on_selector(field, "one => getComputedStyle(one).direction") == "rtl"


def read_aloud(page: Page) -> list[tuple[str, str, int]]:
    """What a screen reader finds, in its order: the role and name of each node, and the level of a heading."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    by_id, waiting, found = {node["nodeId"]: node for node in nodes}, [nodes[0]["nodeId"]], []
    while waiting:
        node = by_id[waiting.pop()]
        waiting += [one for one in reversed(node.get("childIds", [])) if one in by_id]
        if not node["ignored"]:
            levels = [one["value"]["value"] for one in node.get("properties", ()) if one["name"] == "level"]
            found.append((node["role"]["value"], node.get("name", {}).get("value", ""), levels[0] if levels else 0))
    return found


def test_each_entry_of_a_transcript_is_a_heading_and_no_level_is_left_out(page: Page, viewer: Viewer) -> None:
    for address in ("/runs/one", addresses()[-2]):
        page.goto(viewer.url + address)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        found = read_aloud(page)
        entries = [name for role, name, _ in found if role == "article"]
        headings = [(name, level) for role, name, level in found if role == "heading"]
        assert {"system", "user", "assistant"} <= set(entries)
        assert "" not in entries
        assert {(name, 3) for name in entries} <= set(headings)
        levels = [level for _, level in headings]
        assert levels[0] == 1
        assert max(after - before for before, after in pairwise(levels)) == 1, headings


def test_what_the_page_says_is_a_live_region_before_it_is_said(page: Page, viewer: Viewer) -> None:
    page.goto(viewer.url + "/runs")
    assert [role for role, *_ in read_aloud(page)].count("status") == 1
    said = page.locator("#said")
    page.keyboard.press("e")
    expect(said).to_have_text("There is no error on this page.")
    page.evaluate("""() => {
        window.changes = 0;
        const seen = new MutationObserver((changes) => { window.changes += changes.length; });
        seen.observe(document.getElementById("said"), { childList: true });
        window.arttraceSay("Still not up to date.");
        window.arttraceSay("Still not up to date.");
    }""")
    assert page.evaluate("new Promise((done) => setTimeout(() => done(window.changes)))") == 1


def test_numbers_in_pairs_are_tables_with_headers(page: Page, viewer: Viewer) -> None:
    for address, header in (("/runs/one/tokens", "probability"), (addresses()[-1], "kl")):
        page.goto(viewer.url + address)
        found = read_aloud(page)
        assert "LayoutTable" not in {role for role, *_ in found}, address
        assert header in {name for role, name, _ in found if role in ("columnheader", "rowheader")}


def test_at_360_px_no_word_runs_into_another_and_a_reward_is_named(page: Page, viewer: Viewer) -> None:
    page.set_viewport_size({"width": 360, "height": 780})
    page.goto(viewer.url + "/runs/one/timeline")
    marks = [box for mark in page.locator(".axis span").all() if (box := mark.bounding_box()) is not None]
    assert len(marks) >= 2
    for left, right in pairwise(marks):
        assert left["x"] + left["width"] + 4 <= right["x"]
    page.goto(viewer.url + "/runs")
    assert ("cell", "reward 1.000") in {(role, " ".join(name.split())) for role, name, _ in read_aloud(page)}
