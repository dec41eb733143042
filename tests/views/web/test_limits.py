"""What a page says of what it does not hold or could not do: long texts, large spans, lists that changed meanwhile."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from bounded_lines import bounded_lines
from playwright.sync_api import Browser, Page, expect
from simulated_agent import Run, message, research_run, result
from starlette.testclient import TestClient
from viewer_site import KEY, serve_viewer

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.store.ingest import writer
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from arttrace.views.langfuse.state import Project, Sent
from arttrace.views.web import store_reader
from arttrace.views.web.app import create_app
from arttrace.views.web.guard import login_link
from arttrace.views.web.handlers import run as run_handlers
from arttrace.views.web.handlers import runs as runs_handlers
from arttrace.views.web.handlers import tokens as tokens_handlers
from arttrace.views.web.models.tokens.token_page import sequence_rows
from arttrace.views.web.store_reader import StoreReader


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(DataDir(tmp_path), create=True) as opened:
        yield opened


@pytest.fixture
def client(store: Store) -> TestClient:
    heard = {"authorization": f"Bearer {KEY}"}
    return TestClient(create_app(store, KEY), base_url="http://localhost", headers=heard)


def call(id: str, *, number: int = 1, start_ns: int = 10**18, end_ns: int = 10**18 + 10**9, **said: object) -> SpanRow:
    """A run of one call."""
    parts = [{"type": kind, "content": content} for kind, content in said.items()]
    answer = [{"role": "assistant", "parts": parts, "finish_reason": "stop"}]
    return SpanRow(
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        name="chat",
        start_ns=start_ns,
        end_ns=end_ns,
        attributes={
            semconv.OPERATION_NAME: "chat",
            semconv.TRAJECTORY_ID: id,
            semconv.OUTPUT_MESSAGES: msgspec.json.encode(answer).decode(),
        },
    )


def test_long_reasoning_is_not_cut_in_silence(client: TestClient, store: Store) -> None:
    store.append([call("r", reasoning="a" * 50_000 + "end", text="b" * 60_000)])
    shown = client.get("/runs/r").text
    assert "reasoning, 50\N{NARROW NO-BREAK SPACE}003 characters" in shown
    assert "10003 further characters are in the span." in shown
    assert "(20000 further characters are in the span.)" in client.get("/runs/r/run.md").text
    assert "as far as it is shown here" in client.get("/runs/r?q=nowhere").text


def test_a_message_of_many_parts_is_bounded(client: TestClient, store: Store) -> None:
    one = call("r")
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": f"part-{n}"} for n in range(5000)]}]
    one.attributes[semconv.OUTPUT_MESSAGES] = msgspec.json.encode(answer).decode()
    store.append([one])
    shown = client.get("/runs/r").text
    assert shown.count("part-") <= 200
    assert "(4900 further parts are in the span.)" in shown


def test_the_page_of_a_large_span_is_bounded_and_its_copy_whole(client: TestClient, store: Store) -> None:
    store.append([call("r", text="c" * 5_000_000)])
    address = f"/runs/r/spans/{1:016x}"
    shown = client.get(address).text
    assert len(shown) < 1_500_000
    assert "further characters are not shown; Copy JSON has all of them" in shown
    assert len(client.get(f"{address}/span.json").text) > 5_000_000


@pytest.mark.parametrize("address", ["?at=e\u00b2", "?at=e" + "9" * 5000, "/tokens?sequence=\u00b2&at=\u00b3"])
def test_numbers_that_are_none_are_zero(client: TestClient, store: Store, address: str) -> None:
    store.append([call("r", text="hello")])
    assert client.get(f"/runs/r{address}").status_code == 200
    assert client.get("/runs?after=\u00b2.x").status_code == 200


def test_the_command_of_a_run_is_quoted_for_a_shell(client: TestClient, store: Store) -> None:
    store.append([call("r; rm -rf ~", text="hello")])
    assert "arttrace show &#39;r; rm -rf ~&#39;" in client.get("/runs/r; rm -rf ~").text


def test_a_note_too_long_is_refused_and_not_cut(client: TestClient, store: Store) -> None:
    store.append([call("r", text="hello")])
    assert (
        "at most 20000 characters, this one 20001" in client.post("/runs/r/rewards", data={"note": "n" * 20_001}).text
    )
    assert client.post("/runs/r/rewards", data={"note": "n" * 400_000}).status_code == 413
    emoji = "\N{GRINNING FACE}" * 20_000
    assert client.post("/runs/r/rewards", data={"note": emoji}).status_code == 200
    [note] = store.trajectory("r").notes
    assert note.explanation == emoji


def test_an_answer_without_its_content_is_no_failure(client: TestClient, store: Store) -> None:
    one = call("r")
    del one.attributes[semconv.OUTPUT_MESSAGES]
    one.attributes[semconv.USAGE_OUTPUT_TOKENS] = 17
    store.append([one])
    shown = client.get("/runs/r").text
    assert "content not recorded" in shown
    assert "no answer" not in shown
    assert "step failed" not in shown
    assert "ARTTRACE_CAPTURE_CONTENT=off" in shown
    graph = client.get("/runs/r/graph").text
    assert "content not recorded" in graph
    assert "no answer" not in graph


def test_a_note_sent_twice_is_one(client: TestClient, store: Store) -> None:
    store.append([call("r", text="hello")])
    for _ in range(2):
        client.post("/runs/r/rewards", data={"note": "again"})
    assert [note.explanation for note in store.trajectory("r").notes] == ["again"]
    client.post("/runs/r/rewards", data={"back": "last"})
    assert store.trajectory("r").notes == ()
    client.post("/runs/r/rewards", data={"note": "again"})
    assert [note.explanation for note in store.trajectory("r").notes] == ["again"]


def test_a_large_run_that_goes_on_can_be_looked_at(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_handlers, "LARGE", 0)
    monkeypatch.setattr(store_reader, "_FRESH_S", 0)
    store.append([call("r", text="first answer")])
    client.get("/runs/r/ready")
    store.append([call("r", number=2, text="second answer")])
    assert "first answer" in client.get("/runs/r").text


def test_runs_show_although_the_clock_was_set_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = StoreReader(store)
    store.append([call("one", text="a")])
    assert [run.id for run in reader.runs()] == ["one"]
    monkeypatch.setattr(writer, "_now_ns", lambda: 1_000_000_000)
    late = call("later", number=3, start_ns=2 * 10**18, end_ns=2 * 10**18 + 1, text="c")
    store.append([call("two", number=2, text="b")])
    store.ingest_spool()
    monkeypatch.undo()
    store.append([late])
    reader.changed()
    assert {run.id for run in reader.runs()} == {"one", "two", "later"}


def test_a_run_is_summed_up_again_when_a_span_without_its_name_comes(store: Store) -> None:
    reader = StoreReader(store)
    run = research_run("long", "s")
    foreign = SpanRow(trace_id=run[0].trace_id, span_id="f" * 16, name="GET", start_ns=run[0].start_ns, end_ns=0)
    store.append(run)
    before = {one.id: one.revision for one in reader.runs()}
    late = call("other", number=7, start_ns=2 * 10**18, end_ns=2 * 10**18 + 1, text="later")
    store.append([msgspec.structs.replace(foreign, parent_span_id=run[0].span_id), late])
    reader.changed()
    after = {one.id: one.revision for one in reader.runs()}
    assert after == {one.id: one.revision for one in store.summaries()}
    assert after["long"] != before["long"]


def test_a_list_that_more_runs_came_to_than_it_can_hold_is_loaded_anew(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([call(f"run-{n}", number=n + 1, start_ns=10**18 + n, text="a") for n in range(120)])
    assert client.get("/rows/live?&state=old&upto=").headers["hx-refresh"] == "true"
    monkeypatch.setattr(runs_handlers, "MOST_LIVE", 100)
    assert client.get("/rows/live?&state=old&upto=1.x").headers["hx-refresh"] == "true"
    assert "run-run-119" in client.get(f"/rows/live?&state=old&upto={10**18 + 100}.run-100").text


def test_a_run_that_was_pushed_links_to_langfuse(client: TestClient, store: Store, tmp_path: Path) -> None:
    store.append([call("r", text="hello")])
    assert "In Langfuse" not in client.get("/runs/r").text
    (tmp_path / "langfuse").mkdir()
    project = tmp_path / "langfuse" / "project-one.json"
    project.write_bytes(msgspec.json.encode(Project("https://langfuse.example", "p")))
    project.with_name("sent-one.jsonl").write_bytes(msgspec.json.encode(Sent("r", "x", page="abc")) + b"\n")
    assert 'href="https://langfuse.example/project/p/traces/abc"' in client.get("/runs/r").text
    project.write_bytes(msgspec.json.encode(Project("javascript:alert(1)//", "p")))
    assert "javascript:" not in client.get("/runs/r").text


def logged_in(browser: Browser, url: str) -> Page:
    page = browser.new_context().new_page()
    page.goto(login_link(url, KEY))
    return page


def test_the_page_says_what_failed_and_drops_rows_that_match_no_more(browser: Browser, tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([call("r", end_ns=0, text="hello")])
    with serve_viewer(tmp_path) as viewer:
        page = logged_in(browser, viewer.url)
        context = page.context
        page.goto(f"{viewer.url}/runs?status=incomplete")
        expect(page.locator("#newest tr[id]")).to_have_count(1)
        viewer.store.append([call("r", text="hello"), call("s", number=3, end_ns=0, text="hello")])
        expect(page.locator("tr#run-s")).to_be_visible()
        expect(page.locator("tr#run-r")).to_have_count(0)
        page.goto(f"{viewer.url}/runs/s")
        context.clear_cookies()
        page.keyboard.press("a")
        expect(page.locator("#said")).to_have_text("That failed: log in again.")
        page.goto(login_link(viewer.url, KEY))
        refusal = "<div class=notice-page><p>It is gone.</p><p>All runs</p></div>"
        context.route("**/rows/live*", lambda route: route.fulfill(status=409, body=refusal))
        expect(page.locator("#said")).to_have_text("The list is not up to date: It is gone.")
        context.close()


def test_every_block_of_a_page_comes_and_no_id_twice(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENTRIES", "BARS", "ROWS", "SPANS"):
        monkeypatch.setattr(run_handlers, name, 2)
    monkeypatch.setattr(tokens_handlers, "TOKENS", 2)
    run = Run("folder/r")
    asked = tuple((f"id-{n}", "look", "{}") for n in range(5))
    said = [message("user", "go"), message("assistant", "", calls=asked)]
    run.chat("c", said[:1], said[1], at=10, until=20)
    last = [*said, *(result(id, "found") for id, _, _ in asked)]
    run.chat("d", last, message("assistant", "done"), at=30, until=40)
    spans = run.end(at=100)
    store.append(spans)
    store.append([msgspec.structs.replace(spans[-1], name="another version of it")])
    made, _ = sequences(store.trajectory("folder/r"))
    held = {"": 8, "/timeline": 8, "/graph": 2, "/spans": 4, "/tokens": sum(made[0].trained)}
    for tab, count in held.items():
        shown = client.get(f"/runs/folder/r{tab}").text
        for address in re.findall(r'data-src="(.*?)"', shown):
            shown += client.get(html.unescape(address)).text
        ids = re.findall(r' id="((?:[ebgst])\d+)"', shown)
        assert len(ids) == len(set(ids)) == count, (tab, ids)


def test_metadata_stands_as_json(client: TestClient, store: Store) -> None:
    store.append(Run("r").end(METADATA=msgspec.json.encode({"ok": True, "none": None, "list": ["a"]}).decode()))
    shown = client.get("/runs/r").text
    assert "<dt>ok</dt><dd>true</dd><dt>none</dt><dd>null</dd><dt>list</dt><dd>[&#34;a&#34;]</dd>" in shown


def test_a_run_may_have_any_name(client: TestClient, store: Store) -> None:
    names = ("more", "live", "a/b", "ready")
    store.append([call(id, number=number, text="hello") for number, id in enumerate(names, start=1)])
    for id in names:
        assert "hello" in client.get(f"/runs/{id}").text


def test_the_address_of_a_run_shows_that_run_whatever_its_name(client: TestClient, store: Store) -> None:
    """A name may hold what addresses are made of: of `a/tokens` the page is not that of the tokens of `a`."""
    names = ("a", "a/tokens", "a/spans/1", "a/run.json", "a/b?c", "a#b", "a%2Ftokens", "a%20", ".", "..", "~.", "~~")
    store.append([call(id, number=number, text=f"said by {number}.") for number, id in enumerate(names, start=1)])
    links = dict.fromkeys(re.findall(r'href="(/runs/.*?)"', client.get("/runs").text))
    assert len(links) == len(names)
    for link in links:
        shown = client.get(link)
        [id] = re.findall(r'<code class="id" title="(.*?)">', shown.text)
        heard = f"said by {1 + names.index(id)}."
        assert link == f"/runs/{'~' if id in ('.', '..', '~.') else ''}{quote(id, safe='')}"
        assert heard in shown.text
        assert heard in client.get(f"{link}/run.json").text
        for tab in ("/tokens", "/timeline", "/graph", "/spans"):
            assert f'title="{id}">' in client.get(link + tab).text
        rewards = client.post(f"{link}/rewards", data={"value": "1"})
        assert f'hx-post="{link}/rewards"' in rewards.text
        assert len(store.trajectory(id).rewards) == 1
        span = re.findall(rf'href="({re.escape(link)}/spans/.*?)"', client.get(f"{link}/spans").text)[0]
        assert f'title="{id}">' in client.get(span).text
        for rows in ("transcript", "timeline", "graph", "spans"):
            assert client.get(link.replace("/runs/", f"/rows/{rows}/")).status_code == 200


def test_the_beginning_of_a_name_leads_to_its_run(client: TestClient, store: Store) -> None:
    store.append([call("week?1/tokens", text="hello")])
    found = client.get("/runs/week", params={"q": "hel"})
    assert found.status_code == 200
    assert found.url.raw_path == b"/runs/week%3F1%2Ftokens?q=hel"
    [sent] = found.history
    assert sent.headers["location"] == "/runs/week%3F1%2Ftokens?q=hel", "by whatever address the viewer was reached"


def test_a_run_of_many_sequences_is_explained_in_steps_by_their_number(store: Store) -> None:
    run = Run("r")
    for number in range(400):
        asked = [message("system", "Sort it."), message("user", f"item {number % 300}")]
        run.chat(f"c{number}", asked, message("assistant", f"kind {number}"), at=10 + number)
    store.append(run.end(at=1000))
    whole = store.trajectory("r")
    made, _ = sequences(whole)
    with bounded_lines("400 sequences", 30_000):
        rows = sequence_rows(whole, made)
    for row in (rows[1], rows[299], rows[399]):
        ids = made[row.number].token_ids
        common = max(
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, other.token_ids, strict=False)))
            for other in made[: row.number]
        )
        assert f"parts from an earlier one at token {common}" in row.why


def test_a_block_of_a_sequence_that_there_is_not_is_said(client: TestClient, store: Store) -> None:
    store.append([call("r", text="hello")])
    answer = client.get("/rows/tokens/r?sequence=7&from=0")
    assert answer.status_code == 404
    assert "There is no sequence 7 in this run." in answer.text
