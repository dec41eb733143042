"""The viewer as it is read aloud and from right to left: Chromium's accessibility tree, and the order of letters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page
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
            store.append(run.end(at=100))
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
