"""A person says what a run was worth, from the keyboard, and takes it back."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from viewer_site import KEY, Viewer

from arttrace.rewards.combine import trajectory_reward


@pytest.fixture
def id(viewer: Viewer) -> str:
    return next(run.id for run in viewer.store.summaries() if run.group == "porto")


def test_a_run_is_marked_and_the_mark_taken_back_from_the_keyboard(page: Page, viewer: Viewer, id: str) -> None:
    page.goto(f"{viewer.url}/runs/{id}")
    now = page.locator("#reward-now")
    page.keyboard.press("a")
    expect(now).to_have_text("1.000")
    [reward] = viewer.store.trajectory(id).rewards
    assert (reward.value, reward.source) == (1.0, "person")
    page.keyboard.press("s")
    expect(now).to_have_text("0.000")
    assert trajectory_reward(viewer.store.trajectory(id)) == 0.0  # the later verdict takes the place of the earlier
    assert viewer.store.sql(f"SELECT value FROM rewards WHERE trajectory_id = '{id}'")[1] == [(0.0,)]
    page.keyboard.press("z")
    expect(now).to_have_text("\N{EN DASH}")
    assert trajectory_reward(viewer.store.trajectory(id)) is None
    assert viewer.store.sql(f"SELECT value FROM rewards WHERE trajectory_id = '{id}'")[1] == []


def test_an_agent_gets_a_number_and_a_note_of_its_own(page: Page, viewer: Viewer, id: str) -> None:
    page.goto(f"{viewer.url}/runs/{id}")
    page.get_by_text("A number or a note").click()
    page.fill("#say-value", "0.7")
    page.select_option("#say-agent", label="check_budget")
    page.fill("#say-note", "<b>too cheap</b>")
    page.get_by_role("button", name="Store").click()
    expect(page.locator("#rewards")).to_contain_text("0.700 person by person for check_budget")
    expect(page.locator("#rewards")).to_contain_text("<b>too cheap</b>")
    run = viewer.store.trajectory(id)
    assert [one.name for one in run.agents if one.id == run.rewards[0].agent_id] == ["check_budget"]
    assert trajectory_reward(run) is None
    page.get_by_role("button", name="undo").click()
    expect(page.locator("#rewards .rewards")).to_have_count(0)
    assert viewer.store.trajectory(id).rewards == ()


def test_a_mark_is_taken_back_as_soon_as_it_is_shown(page: Page, viewer: Viewer, id: str) -> None:
    page.goto(f"{viewer.url}/runs/{id}")
    page.evaluate("""() => new MutationObserver(() => document.querySelector("#rewards .rewards button")?.click())
        .observe(document.querySelector("#rewards-now"), { childList: true })""")
    page.keyboard.press("a")
    expect(page.locator("#rewards-now")).to_contain_text("Taken back.")
    assert viewer.store.trajectory(id).rewards == ()


def test_a_mark_is_given_where_the_scripts_are_off(browser: Browser, viewer: Viewer, id: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(viewer.link)
    page.goto(f"{viewer.url}/runs/{id}")
    page.get_by_role("button", name="Good").click()
    expect(page.locator("#reward-now")).to_have_text("1.000")
    page.get_by_role("button", name="undo").click()
    expect(page.locator("#rewards .rewards")).to_have_count(0)
    page.get_by_text("A number or a note").click()
    page.fill("#say-value", "much")
    page.get_by_role("button", name="Store").click()
    expect(page.locator("#main")).to_contain_text("It was not stored: 'much' is no number")
    assert page.url == f"{viewer.url}/runs/{id}/rewards"
    context.close()


def test_a_note_alone_is_no_reward(viewer: Viewer, id: str) -> None:
    shown = {"authorization": f"Bearer {KEY}"}
    address = f"{viewer.url}/runs/{id}/rewards"
    assert "look here again" in httpx.post(address, data={"note": "look here again"}, headers=shown).text
    run = viewer.store.trajectory(id)
    assert run.rewards == ()
    assert [note.explanation for note in run.notes] == ["look here again"]
    assert "Give a number" in httpx.post(address, data={"value": ""}, headers=shown).text
    assert "is no number" in httpx.post(address, data={"value": "much"}, headers=shown).text
    assert "finite" in httpx.post(address, data={"value": "nan"}, headers=shown).text
    httpx.post(address, data={"back": "last"}, headers=shown)
    assert viewer.store.trajectory(id).notes == ()
