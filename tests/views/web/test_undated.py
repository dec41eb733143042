"""Runs that were imported without times: nothing shows the times that stand in their place, and lists go on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, expect
from starlette.testclient import TestClient
from viewer_site import KEY, serve_viewer

from arttrace.commands import cli
from arttrace.commands.inspect import tail
from arttrace.commands.shared.following import print_events
from arttrace.formats.imported_files import read_file
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.console.events import Events
from arttrace.views.web.app import create_app
from arttrace.views.web.guard import login_link

TOOL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": "", "tool_calls": [TOOL]},
    {"role": "tool", "tool_call_id": "c1", "content": "in Bern"},
    {"role": "assistant", "content": "!"},
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two runs of one task."""
    said = [{"messages": [*TALK, {"role": "assistant", "content": word}], "task_id": "t"} for word in ("a", "b")]
    with Store.open(DataDir(tmp_path), create=True) as opened:
        opened.append(read_file(b"\n".join(map(msgspec.json.encode, said)), "log").records)
        yield opened


def test_no_page_shows_a_time_or_a_duration(store: Store) -> None:
    client = TestClient(create_app(store, KEY), base_url="http://localhost", headers={"authorization": f"Bearer {KEY}"})
    one, _ = store.summaries()
    for page in ("/runs", "/groups", "/groups/one?key=log/t", *(f"/runs/{one.id}{tab}" for tab in ("", "/timeline"))):
        shown = client.get(page).text
        text = re.sub(r"<[^>]+>", " ", shown)
        assert "in Bern" in text or "Groups" in text
        assert re.findall(r"2000-01-01|\d [mµ]?s\b", text) == [], page
        assert "data-ns=" not in shown, page
        assert re.findall(r'class="when figures">\s*·', shown) == [], page
    assert "the bars show the order alone" in client.get(f"/runs/{one.id}/timeline").text
    assert "messages in</span>" in client.get(f"/runs/{one.id}/graph").text


def test_a_row_that_matches_no_more_leaves_the_list(store: Store, browser: Browser) -> None:
    one, other = store.summaries()
    root = store.data.root
    store.close()
    with serve_viewer(root) as viewer:
        page = browser.new_context().new_page()
        page.goto(login_link(viewer.url, KEY))
        page.goto(f"{viewer.url}/runs?reward=none")
        expect(page.locator("#newest tr[id]")).to_have_count(2)
        viewer.store.append([Reward("r", one.id, 1.0)])
        expect(page.locator("#newest tr[id]")).to_have_count(1)
        expect(page.locator(f"#run-{other.id}")).to_be_visible()
        expect(page.locator("#said")).to_be_empty()
        page.context.close()


def test_tail_says_no_time_of_day(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append([Reward("r", store.summaries()[0].id, 1.0)])
    assert {one.seconds for one in Events(store, 0).new()} == {None}
    root = store.data.root
    store.close()

    def until_a_reward(events: Events, as_json: bool) -> None:
        print_events(events, as_json, ends=lambda one: one.kind == "reward")

    monkeypatch.setattr(tail, "print_events", until_a_reward)
    lines = CliRunner().invoke(cli, ["tail", "--since", "30000d", "--dir", str(root)]).output.splitlines()
    assert len(lines) > 4
    assert all(line.startswith("--:--:-- ") for line in lines), lines
