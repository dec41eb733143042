"""How an answer ended otherwise than by itself, where people look: `show`, `diff`, `tail` and the viewer's pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from simulated_agent import Run, message
from starlette.testclient import TestClient
from viewer_site import KEY

from arttrace.commands import cli
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.console.events import Events
from arttrace.views.web.app import create_app

ASKED = [message("user", "Where is it warm?")]
PART = message("assistant", "In Lis")


def ended(id: str, *, answer: bool = True, error: str = "", finish: str | None = None, **said: Any) -> list[Record]:
    """A run of one call, whose answer ended so."""
    run = Run(id)
    run.chat("c", ASKED, *((PART,) if answer else ()), at=10, until=20, **said)
    [call] = run.spans
    answers = json.dumps([{**PART, **({"finish_reason": finish} if finish else {})}] if answer else [])
    attributes = {**call.attributes, semconv.OUTPUT_MESSAGES: answers}
    failed = {"status_code": 2, "status_message": error} if error else {}
    run.spans[0] = msgspec.structs.replace(call, attributes=attributes, **failed)
    return [*run.end(at=30)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ended")
    with Store.open(DataDir(root), create=True) as store:
        for one in (
            ended("whole", finish="end_turn"),
            ended("cut", finish="max_tokens"),
            ended("closed", INTERRUPTED="closed"),
            ended("closed-at-once", answer=False, INTERRUPTED="closed"),
            ended("cancelled", answer=False, INTERRUPTED="cancelled"),
            ended("broken", INTERRUPTED="error", error="ReadError: the peer closed the connection"),
            ended("later", answer=False, INTERRUPTED="background"),
            ended("nothing", answer=False),
            ended("counted", finish="stop", USAGE_OUTPUT_TOKENS=5),
        ):
            store.append(one)
    return root


@pytest.fixture(scope="module")
def store(root: Path) -> Iterator[Store]:
    with Store.open(DataDir(root)) as opened:
        yield opened


def printed(root: Path, *arguments: str) -> str:
    return CliRunner().invoke(cli, [*arguments, "--dir", str(root)], catch_exceptions=False).output


@pytest.mark.parametrize(
    ("id", "line"),
    [
        ("whole", r"assistant \[policy@1, \d+ tokens\]: In Lis"),
        ("cut", r"assistant \[policy@1, \d+ tokens, ended by length\]: In Lis"),
        ("closed", r"assistant \[policy@1, \d+ tokens, not read to its end\]: In Lis"),
        ("closed-at-once", r"assistant \[policy@1\]: not read to its end"),
        ("cancelled", r"call failed \[policy@1\]: cancelled before the answer was whole"),
        ("broken", r"call failed \[policy@1\]: ReadError: the peer closed the connection"),
        ("later", r"assistant \[policy@1\]: asked for in the background, another request brought the answer"),
        ("nothing", r"call failed \[policy@1\]: no answer recorded"),
    ],
)
def test_show_says_it(root: Path, id: str, line: str) -> None:
    assert re.search(line + "$", printed(root, "show", id), re.MULTILINE)


def test_diff_tells_an_answer_that_was_cut_from_one_that_was_not(root: Path) -> None:
    text = printed(root, "diff", "whole", "cut")
    assert "From here they part" in text
    assert "assistant [ended by length]: In Lis" in text
    runs = json.loads(printed(root, "diff", "whole", "closed", "--json"))["runs"]
    assert [(step["ended"], step["error"]) for run in runs for step in run["steps"]] == [
        ("", ""),
        ("not read to its end", ""),
    ]


def test_tail_says_what_was_cancelled(store: Store) -> None:
    [call] = [one for one in Events(store, 0, run="cancelled").new() if one.kind == "call"]
    assert call.error == "cancelled before the answer was whole"
    [call] = [one for one in Events(store, 0, run="closed").new() if one.kind == "call"]
    assert call.error is None


def test_the_viewer_says_it_and_calls_nothing_a_failure_that_is_none(store: Store) -> None:
    heard = {"authorization": f"Bearer {KEY}"}
    pages = TestClient(create_app(store, KEY), base_url="http://localhost", headers=heard)
    shown = {run.id: pages.get(f"/runs/{run.id}").text for run in store.summaries()}
    failed = {id for id, text in shown.items() if "A step failed" in text}
    assert failed == {"cancelled", "broken", "nothing"}
    assert "assistant: cancelled before the answer was whole. The run went on." in shown["cancelled"]
    assert "ended by" not in shown["whole"]
    assert "ended by length" in shown["cut"]
    assert "not read to its end" in shown["closed"]
    assert "another request brought the answer" in shown["later"]
    for tab in ("timeline", "graph"):
        assert {
            id for id in shown if "data-error" in pages.get(f"/runs/{id}/{tab}").text.partition('class="tabs"')[2]
        } == (failed)
    assert "another request brought the answer" in pages.get("/runs/later/graph").text


def test_prompt_tokens_that_nobody_counted_are_not_none(store: Store) -> None:
    heard = {"authorization": f"Bearer {KEY}"}
    pages = TestClient(create_app(store, KEY), base_url="http://localhost", headers=heard)
    assert "? → 5 tokens" in pages.get("/runs/counted").text
