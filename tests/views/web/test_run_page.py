"""One run in a browser: what a person does to understand it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from simulated_agent import Run, message
from starlette.testclient import TestClient
from viewer_site import HOSTILE, KEY, Viewer

from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.web.app import create_app
from arttrace.views.web.handlers import run as run_handlers
from arttrace.views.web.rendering import things

TOLD = {"authorization": f"Bearer {KEY}"}


def run_id(viewer: Viewer, group: str) -> str:
    return next(run.id for run in viewer.store.summaries() if run.group.startswith(group))


def test_why_a_run_failed_is_found_in_two_clicks(page: Page) -> None:
    page.get_by_role("link", name=re.compile("Failed")).click()
    page.locator("#newest tr[id]").first.click()
    problem = page.locator("#problem")
    expect(problem).to_contain_text("This run failed")
    expect(problem).to_contain_text("hotel service: there is no city named Atlantis")
    problem.get_by_role("link").click()
    where = page.locator("article.here")
    expect(where).to_contain_text("search_hotels")
    expect(where).to_contain_text("Atlantis")


def test_script_in_messages_tools_and_arguments_does_nothing(page: Page, viewer: Viewer) -> None:
    id = run_id(viewer, "bergen")
    for tab in ("", "/timeline", "/graph", "/spans"):
        page.goto(f"{viewer.url}/runs/{id}{tab}")
        assert page.evaluate("window.ran") is None
        assert page.locator("main script, main svg[onload], main img[onerror]").count() == 0
    page.goto(f"{viewer.url}/runs/{id}")
    expect(page.locator("article.role-user").first).to_contain_text(HOSTILE)


def test_images_are_shown_that_lie_in_the_trace(page: Page, viewer: Viewer) -> None:
    page.goto(f"{viewer.url}/runs/{run_id(viewer, 'bergen')}")
    image = page.locator("img.shown-image")
    expect(image).to_be_visible()
    assert image.evaluate("one => one.naturalWidth") == 24


def test_the_tree_shows_sub_agents_and_the_transcript_folds_tools(page: Page, viewer: Viewer) -> None:
    page.goto(f"{viewer.url}/runs/{run_id(viewer, 'lisbon week')}")
    expect(page.locator(".agents")).to_contain_text("check_budget")
    tool = page.locator("article.tool", has_text="forecast").first
    expect(tool.locator(".fold-in")).to_be_hidden()
    tool.locator("summary").click()
    expect(tool.locator(".fold-in")).to_contain_text('"degrees": 24')


def test_a_run_is_searched(page: Page, viewer: Viewer) -> None:
    page.goto(f"{viewer.url}/runs/{run_id(viewer, 'porto')}")
    page.keyboard.press("/")
    page.keyboard.type("sunny")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=sunny**")
    expect(page.get_by_role("status").first).to_contain_text("of")
    assert 0 < page.locator("article.entry").count() < 6


def test_the_message_graph_labels_a_regeneration(page: Page, viewer: Viewer) -> None:
    page.goto(f"{viewer.url}/runs/{run_id(viewer, 'lisbon week')}")
    page.keyboard.press("3")
    page.wait_for_url("**/graph")
    rows = page.locator(".graph-row")
    expect(rows).to_have_count(3)
    expect(rows.nth(2)).to_contain_text("regeneration")
    expect(rows.nth(2)).to_contain_text("the same prompt")


def test_a_span_is_shown_raw_and_its_call_can_be_copied(page: Page, viewer: Viewer) -> None:
    id = run_id(viewer, "porto")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{viewer.url}/runs/{id}")
    page.locator("article.answer").first.get_by_role("link", name=re.compile("span")).click()
    shown = json.loads(page.locator("pre.raw").first.inner_text())
    assert shown["attributes"]["gen_ai.operation.name"] == "chat"
    page.get_by_role("button", name="Copy the call as a curl command").click()
    expect(page.locator("#said")).to_contain_text("Copied")
    assert "Plan a night in Porto" in page.evaluate("navigator.clipboard.readText()")


def test_a_run_is_copied_as_json_and_as_markdown(viewer: Viewer) -> None:
    address = f"{viewer.url}/runs/{run_id(viewer, 'bergen')}"
    whole = httpx.get(f"{address}/run.json", headers=TOLD).json()
    assert whole["trajectory"]["scenario"].startswith("bergen")
    assert whole["tokens"]["trained_tokens"] > 0
    assert "Plan a day in Bergen" in httpx.get(f"{address}/run.md", headers=TOLD).text


@pytest.mark.parametrize(
    ("address", "title", "words"),
    [
        ("/runs/nothing", "no such run", "There is no run &#39;nothing&#39; here."),
        ("/runs/nothing/tokens", "no such run", "There is no run &#39;nothing&#39; here."),
        ("/runs/nothing/spans/s", "no such run", "There is no run &#39;nothing&#39; here."),
        ("/runs/nothing/run.json", "no such run", "There is no run &#39;nothing&#39; here."),
        ("/rows/transcript/nothing?from=0", "no such run", "There is no run &#39;nothing&#39; here."),
        ("/runs/{id}/spans/nothing", "no such span", "There is no span &#39;nothing&#39; in this run."),
        ("/runs/{id}/spans/nothing/span.json", "no such span", "There is no span &#39;nothing&#39; in this run."),
        ("/rows/tokens/{id}?sequence=99&from=0", "no such sequence", "There is no sequence 99 in this run."),
        ("/groups/one?key=nothing", "no such group", "There is no group &#39;nothing&#39; here."),
        ("/training?policy=nothing", "no such policy", "There is no policy &#39;nothing&#39; here."),
        ("/training/step?policy=policy&step=99", "no such version", "There is no policy@99 here."),
        ("/elsewhere", "Not Found", "There is no such page."),
    ],
)
def test_what_is_not_there_is_said(viewer: Viewer, address: str, title: str, words: str) -> None:
    answer = httpx.get(viewer.url + address.format(id=run_id(viewer, "lisbon week")), headers=TOLD)
    assert answer.status_code == 404
    assert title in answer.text
    assert words in answer.text


def test_what_is_said_of_a_run_that_is_not_there_is_refused(viewer: Viewer) -> None:
    headers = TOLD | {"origin": viewer.url}
    answer = httpx.post(f"{viewer.url}/runs/nothing/rewards", data={"value": "1"}, headers=headers)
    assert (answer.status_code, "There is no run" in answer.text) == (404, True), answer.text


def test_the_page_of_a_large_run_says_at_once_that_it_is_being_read(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_handlers, "LARGE", 0)
    id = run_id(viewer, "oslo")
    client = TestClient(create_app(viewer.store, KEY), base_url="http://localhost", headers=TOLD)
    for tab in ("?q=oslo", "?at=e0", "/timeline", "/graph", "/tokens"):
        assert "This run is being read" in client.get(f"/runs/{id}{tab}").text
    begun = client.get(f"/runs/{id}").text
    assert "The rest of this run is being read" in begun
    assert "Plan a day in Oslo" in begun
    assert client.get(f"/runs/{id}/ready").headers["hx-refresh"] == "true"
    assert "Plan a day in Oslo" in client.get(f"/runs/{id}").text


def test_what_a_run_cost_or_that_nobody_knows_it(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [run] = [run for run in viewer.store.summaries() if run.group == "porto"]
    monkeypatch.delenv("ARTTRACE_PRICES", raising=False)

    def shown() -> str:
        client = TestClient(create_app(viewer.store, KEY), base_url="http://localhost", headers=TOLD)
        return client.get(f"/runs/{run.id}").text

    noun = "call" if run.calls == 1 else "calls"
    assert f"<dt>Cost</dt><dd>no price known of {run.calls} {noun} (" in shown()
    prices = tmp_path / "prices.json"
    monkeypatch.setenv("ARTTRACE_PRICES", str(prices))
    priced = {name: {"input": 1_000_000, "output": 0} for name in run.policy_versions}
    prices.write_text(json.dumps(priced))
    [(tokens,)] = viewer.store.sql(f"SELECT sum(input_tokens) FROM calls WHERE trajectory_id = '{run.id}'")[1]
    assert f"<dt>Cost</dt><dd>${tokens:,.2f}" in shown()
    prices.write_text("{")
    assert "cannot be read" in shown()


def test_the_link_of_a_recorded_tool_leads_to_its_span(tmp_path: Path) -> None:
    """Also where the model gave the id of its tool call, which the span of a decorated function does not say, and where
    it gave the same one again."""
    run = Run("one")
    asked = message("assistant", calls=(("call_2", "find", "{}"),))
    run.tool("t", "look", at=10, until=20, TOOL_CALL_ID="call_1", TOOL_CALL_RESULT="found")
    run.tool("u", "look", at=30, until=40, TOOL_CALL_ID="call_1", TOOL_CALL_RESULT="lost")
    run.chat("a", [message("user", "find it")], asked, at=50, until=55)
    run.tool("v", "find", at=60, until=70, TOOL_CALL_RESULT="there")
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.end(at=100))
        client = TestClient(create_app(store, KEY), base_url="http://localhost", headers=TOLD)
        for page in ("/runs/one", "/runs/one/timeline"):
            links = re.findall(r'href="(/runs/one/spans/[^"]+)"', client.get(page).text)
            assert links[-4:] == [f"/runs/one/spans/{run.span_id(name)}" for name in "tuav"]
            for link, said in zip(links[-4:], ("found", "lost", "find", "there"), strict=True):
                assert said in client.get(link).text


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 tool calls"),
        (1, "1 tool call"),
        (2, "2 tool calls"),
        (12_000, "12\u202f000 tool calls"),
    ],
)
def test_a_count_stands_with_the_number_of_its_noun(count: int, said: str) -> None:
    assert things(count, "tool call") == said
