"""The page of a run that goes on, or is still being read: what is new comes in, what a person did there stays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, Route, expect
from simulated_agent import JsonMessage, Run, message, result
from viewer_site import Viewer, serve_viewer

from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.web import store_reader
from arttrace.views.web.handlers import run as run_handlers
from arttrace.views.web.models.transcript import transcript

TURNS = 30
NO_TOKENS: dict[str, Any] = {"PROMPT_TOKEN_IDS": None, "TOKEN_IDS": None, "LOGPROBS": None}


class Workers:
    """A run of two sub-agents side by side, of which both go on."""

    def __init__(self) -> None:
        self.run = Run("live")
        [root] = Run("live").end()
        self.begun = msgspec.structs.replace(root, end_ns=0)
        self.agents = [self.run.agent(f"worker {n}", at=5 + n, until=100_000) for n in range(2)]
        self.histories: list[list[JsonMessage]] = [[message("user", f"task {n}")] for n in range(2)]
        self.turns = [0, 0]

    def turn(self, worker: int) -> None:
        """A call and the tool it asks for."""
        turn = self.turns[worker]
        name, at = f"{worker}-{turn}", 10 + turn * 40 + worker
        answer = message("assistant", f"step {turn} of worker {worker}", calls=((name, "look", '{"q":1}'),))
        self.run.chat(
            name,
            self.histories[worker],
            answer,
            at=at,
            until=at + 10,
            parent=self.agents[worker],
            flow=f"E{worker}",
            **NO_TOKENS,
        )
        shown = {"TOOL_CALL_ID": name, "TOOL_CALL_RESULT": f"found {name}", "TOOL_CALL_ARGUMENTS": '{"q":1}'}
        self.run.tool(f"tool {name}", "look", at=at + 11, until=at + 20, parent=self.agents[worker], **shown)
        self.histories[worker] += [answer, result(name, f"found {name}")]
        self.turns[worker] += 1

    def end(self) -> list[SpanRow]:
        """The run's end: its root."""
        return self.run.end(at=100_000, TRAJECTORY_SPAN_COUNT=2 + 2 * sum(self.turns))

    def taken(self) -> list[SpanRow]:
        """The spans since the last time."""
        found, self.run.spans = self.run.spans, []
        return found


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    made = Workers()
    for _ in range(TURNS):
        for worker in range(2):
            made.turn(worker)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([made.begun, *made.taken()])
    return made


@pytest.fixture
def live(workers: Workers, tmp_path: Path) -> Iterator[Viewer]:
    with serve_viewer(tmp_path) as viewer:
        yield viewer


@pytest.fixture
def page(browser: Browser, live: Viewer) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 700})
    opened = context.new_page()
    said: list[str] = []
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(live.link)
    yield opened
    context.close()
    assert not said


def load_all(page: Page) -> None:
    for block in page.locator(".block").all():
        block.scroll_into_view_if_needed()
        expect(block).not_to_have_attribute("data-src", re.compile(""))


def test_what_a_person_did_stays_while_the_run_goes_on(page: Page, live: Viewer, workers: Workers) -> None:
    page.goto(f"{live.url}/runs/live")
    page.evaluate("window.stays = true")
    page.get_by_text("A number or a note").click()
    page.locator("#say-note").fill("half a thou")
    load_all(page)
    last = page.locator("article.tool", has_text=f"found 1-{TURNS - 1}")
    fold = last.locator("details")
    fold.locator("summary").click()
    expect(fold.locator(".fold-in")).to_be_visible()
    before = fold.bounding_box()
    assert before is not None
    assert 0 < before["y"] < 700

    for _ in range(25):  # more than a block, above what is in view
        workers.turn(0)
    workers.turn(1)
    live.store.append(workers.taken())
    expect(page.locator("article.tool", has_text=f"found 1-{TURNS}")).to_be_attached()
    expect(fold).to_have_attribute("open", "")
    expect(fold.locator("summary")).to_be_focused()
    after = fold.bounding_box()
    assert after is not None
    assert abs(after["y"] - before["y"]) < 3
    expect(page.locator("#say-note")).to_have_value("half a thou")
    assert page.evaluate("window.stays")

    expect(page.locator(".run-head")).not_to_contain_text("complete")
    live.store.append(workers.end())
    expect(page.locator(".run-head")).to_contain_text("complete")
    expect(page.locator("[data-follows]")).to_have_count(0)
    expect(fold).to_have_attribute("open", "")
    expect(page.locator("#say-note")).to_have_value("half a thou")
    assert page.evaluate("window.stays")


def test_rows_that_were_loaded_before_are_brought_up_to_date(page: Page, live: Viewer, workers: Workers) -> None:
    page.goto(f"{live.url}/runs/live")
    load_all(page)
    page.evaluate("scrollTo(0, 0)")
    first = page.locator("article.agent", has_text="worker 0")
    expect(first).to_be_in_viewport()
    page.keyboard.press("j")
    chosen = page.locator("article.here").text_content()
    for _ in range(3):
        workers.turn(0)
    live.store.append(workers.taken())
    expect(page.locator(".facts")).to_contain_text(f", {2 * TURNS + 3}, ")
    load_all(page)
    expect(page.locator("article.tool", has_text=f"found 0-{TURNS + 2}")).to_be_attached()
    names = page.locator("article.entry").evaluate_all("all => all.map(one => one.dataset.same)")
    assert len(names) == len(set(names)), "each entry once"
    assert page.locator("article.here").text_content() == chosen


def test_a_large_run_begins_to_be_read_at_once(
    page: Page, live: Viewer, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_handlers, "LARGE", 0)
    monkeypatch.setattr(store_reader, "BEGINNING", 50)
    monkeypatch.setattr(store_reader, "_FRESH_S", 0)  # the list was looked at a moment ago
    live.store.append(workers.end())
    held: list[Route] = []
    page.route("**/ready", lambda route: held.append(route))
    with page.expect_request("**/ready"):
        page.goto(f"{live.url}/runs/live")
    expect(page.get_by_role("heading", name="The rest of this run is being read")).to_be_visible()
    expect(page.locator(".run-head")).to_contain_text("complete")
    expect(page.locator(".facts")).to_contain_text(f"3, {2 * TURNS}, {2 * TURNS}")
    first = page.locator("article.entry").all_text_contents()
    assert len(first) == run_handlers.ENTRIES
    fold = page.locator("article.tool details").nth(2)
    fold.locator("summary").click()
    held[0].continue_()
    expect(page.locator("[data-awaits]")).to_have_count(0)
    assert page.locator(".block").count() == -(-len(transcript(live.store.trajectory("live"))) // run_handlers.ENTRIES)
    expect(fold).to_have_attribute("open", "")
    fold.locator("summary").click()
    assert page.locator("article.entry").all_text_contents()[: len(first)] == first
    expect(page.locator(".agents")).to_contain_text("worker 1")
