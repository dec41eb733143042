"""Runs made to measure, in a browser: every filter of the list, every label of a message graph, bars in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from playwright.sync_api import Page, expect
from simulated_agent import T0, Run, message
from viewer_site import Viewer, serve_viewer

from arttrace.records.reward import Reward, reward_clock
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from arttrace.views.web.handlers import run as run_handlers
from arttrace.views.web.handlers import tokens as tokens_handlers

HOUR = 3600 * 10**6
"""In microseconds, as made runs count."""


def filtered_runs() -> Iterator[tuple[Run, int]]:
    """Three runs, with the microsecond at which each begins: three days, two hours and a minute ago."""
    now = (time.time_ns() - T0) // 1000
    yield Run("three-days", "shop:buy", "apples"), now - 72 * HOUR
    yield Run("two-hours", "shop:buy", "pears"), now - 2 * HOUR
    yield Run("a-minute", "desk:answer", "apples"), now - HOUR // 60


def departing_run() -> Run:
    """A call that failed and was tried again, one said anew, one whose system prompt was edited, and a compaction."""
    run = Run("departs")
    start = [message("system", "It is 10:00."), message("user", "Where is it warm?")]
    run.chat("failed", start, at=10, TOKEN_IDS=None)
    run.spans[0] = msgspec.structs.replace(run.spans[0], status_code=2, status_message="503")
    answer = run.chat("again", start, message("assistant", "In the south."), at=20)
    run.chat("anew", start, message("assistant", "In Lisbon."), at=30)
    on = [answer, message("user", "And dry?")]
    edited = [message("system", "It is 10:05."), start[1], *on]
    answer = run.chat("edited", edited, message("assistant", "In Seville, mostly."), at=40)
    history = [*edited, answer, message("user", "Sum up what we said.")]
    summary = "They asked for a warm and dry place; the south, Seville."
    run.chat("sum", history, message("assistant", summary), at=50)
    short = [*edited[:2], message("user", f"Summary so far: {summary}")]
    run.chat("short", short, message("assistant", "So: Seville."), at=60)
    return run


def timed_run() -> Run:
    """A hundred seconds: a sub-agent in the second half, whose call takes a quarter and whose tool fails."""
    run = Run("timed")
    second = 10**6
    agent = run.agent("helper", at=50 * second, until=100 * second)
    asked = [message("user", "look it up")]
    run.chat("c", asked, message("assistant", "found"), at=50 * second, until=75 * second, parent=agent)
    run.tool("t", "look", at=75 * second, until=80 * second, parent=agent)
    run.spans[-1] = msgspec.structs.replace(run.spans[-1], status_code=2, status_message="no such page")
    return run


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    root = tmp_path_factory.mktemp("made")
    with Store.open(DataDir(root), create=True) as store:
        for (run, at), policy in zip(filtered_runs(), ("alpha@1", "alpha@2", "beta@1"), strict=True):
            run.chat("c", [message("user", run.id)], message("assistant", "yes"), at=at + 1, policy=policy)
            *within, root_span = run.end(at=at + 20)
            store.append([*within, msgspec.structs.replace(root_span, start_ns=T0 + at * 1000)])
        for id, value in (("three-days", 0.2), ("two-hours", 0.8)):
            store.append([Reward(f"of-{id}", id, value, time_ns=reward_clock.now_ns())])
        store.append(departing_run().end(at=100))
        store.append(timed_run().end(at=100 * 10**6))
    with serve_viewer(root) as running:
        yield running


def shown(page: Page, *ids: str) -> None:
    """Waits for these runs and no others, the newest first."""
    rows = page.locator("#newest tr[id]")
    expect(rows).to_have_count(len(ids))
    assert [row.get_attribute("id") for row in rows.all()] == [f"run-{id}" for id in ids]


ALL = ("a-minute", "two-hours", "three-days", "timed", "departs")


def test_every_filter_narrows_the_list_and_is_in_its_address(page: Page, viewer: Viewer) -> None:
    for name, value, ids in (
        ("entry", "desk:answer", ("a-minute",)),
        ("entry", "shop:buy", ("two-hours", "three-days")),
        ("policy", "alpha", ("two-hours", "three-days")),
        ("policy", "alpha@2", ("two-hours",)),
        ("since", "7d", ("a-minute", "two-hours", "three-days")),
        ("since", "3h", ("a-minute", "two-hours")),
        ("reward", "<0.5", ("three-days",)),
        ("reward", ">=0.8", ("two-hours",)),
        ("reward", "none", ("a-minute", "timed", "departs")),
    ):
        page.goto(viewer.url + "/runs")
        field = page.get_by_label(name.capitalize(), exact=True)
        if name in ("entry", "policy"):
            field.select_option(value)
        else:
            field.fill(value)
            field.press("Enter")
        page.wait_for_url("**/runs?**")
        assert parse_qs(urlsplit(page.url).query) == {name: [value]}
        shown(page, *ids)
    page.get_by_role("link", name="Remove the filter reward none").click()
    shown(page, *ALL)


def test_filters_join_and_a_group_leads_to_its_runs(page: Page, viewer: Viewer) -> None:
    page.goto(viewer.url + "/groups/one?key=apples")
    page.get_by_role("link", name="Its runs in the list").click()
    shown(page, "a-minute", "three-days")
    page.select_option("#entry", "shop:buy")
    page.wait_for_url("**entry=**")
    shown(page, "three-days")
    page.reload()
    shown(page, "three-days")
    page.get_by_role("link", name="Clear all").click()
    shown(page, *ALL)


def test_a_filter_that_says_nothing_is_named_where_it_was_typed(page: Page, viewer: Viewer) -> None:
    for name, words in (("reward", "'soon' is not a comparison"), ("since", "'soon' is neither an age such as 2h")):
        page.goto(viewer.url + "/runs")
        field = page.get_by_label(name.capitalize(), exact=True)
        field.fill("soon")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text(words)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_value("soon")
        shown(page, *ALL)
    page.goto(viewer.url + "/runs?status=lost")
    expect(page.get_by_role("alert")).to_contain_text("'lost' is none of failed, incomplete, unread, complete")


def test_a_message_graph_labels_each_way_to_depart(page: Page, viewer: Viewer) -> None:
    page.goto(viewer.url + "/runs/departs/graph")
    rows = page.locator(".graph-row")
    expect(rows).to_have_count(6)
    for row, words in zip(rows.all(), (
        ("start", "failed", "503"),
        ("retry", "In the south."),
        ("regeneration", "the same prompt", "In Lisbon."),
        ("edit", "1 changed in place (system)"),
        ("extends", "They asked for a warm and dry place"),
        ("compaction", "So: Seville."),
    ), strict=True):  # fmt: skip
        for text in words:
            expect(row).to_contain_text(text)
    lanes = [int((row.get_attribute("class") or "lane0")[4:]) for row in page.locator(".lanes circle").all()]
    assert lanes == [0, 1, 2, 3, 3, 4], "what departs has a lane of its own, what goes on stays"
    page.goto(viewer.url + "/runs/departs")
    badges = page.locator("article .badge").all_inner_texts()
    assert badges == ["retry", "regeneration", "edit", "compaction"]


def test_the_waterfall_draws_each_bar_at_its_time(page: Page, viewer: Viewer) -> None:
    page.goto(viewer.url + "/runs/timed/timeline")
    bars = page.locator(".bar-row")
    expect(bars).to_have_count(4)
    for bar, (kind, name, begins, takes, said) in zip(
        bars.all(),
        (
            ("agent", "planner", 0.0, 1.0, "1 min 40 s"),
            ("agent", "helper", 0.5, 0.5, "50.00 s"),
            ("call", "policy@1", 0.5, 0.25, "25.00 s"),
            ("tool", "look", 0.75, 0.05, "5.00 s"),
        ),
        strict=True,
    ):
        assert kind in (bar.get_attribute("class") or "").split()
        expect(bar).to_contain_text(name)
        expect(bar).to_contain_text(said)
        drawn, whole = bar.locator("rect").bounding_box(), bar.locator("svg").last.bounding_box()
        assert drawn is not None
        assert whole is not None
        assert (drawn["x"] - whole["x"]) / whole["width"] == pytest.approx(begins, abs=0.01)
        assert drawn["width"] / whole["width"] == pytest.approx(takes, abs=0.01)
    expect(bars.nth(3)).to_contain_text("failed: no such page")
    expect(page.locator(".axis")).to_contain_text("50.00 s")
    bars.nth(2).get_by_role("link").click()
    expect(page.locator(".span-head")).to_contain_text("chat policy")


def test_a_long_run_is_there_to_its_end(page: Page, viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_handlers, "BARS", 2)
    monkeypatch.setattr(tokens_handlers, "TOKENS", 4)
    page.goto(viewer.url + "/runs/timed/timeline")
    expect(page.locator(".bar-row")).to_have_count(4)
    page.goto(viewer.url + "/runs/timed/tokens")
    made, _ = sequences(viewer.store.trajectory("timed"))
    places = [place for place, trained in enumerate(made[0].trained) if trained]
    expect(page.locator("[data-tokens] .t")).to_have_count(len(places))
    page.locator("[data-tokens]").focus()
    for _ in places:
        page.keyboard.press("ArrowRight")
    expect(page.get_by_role("status").filter(has_text=f"place {places[-1]} ")).to_be_visible()
