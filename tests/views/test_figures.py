"""Amounts, durations and names as people read them, at the edges of their forms."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from simulated_agent import Run, message
from starlette.testclient import TestClient
from viewer_site import KEY

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.console.events import Events
from arttrace.views.costs.usage import dollars
from arttrace.views.web.app import create_app
from arttrace.views.web.rendering import duration


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        (5e-05, "$0.00005"),
        (1.234e-07, "$0.000000123"),
        (0.0025, "$0.0025"),
        (0.0, "$0.0000"),
        (0.5, "$0.5000"),
        (1234.5, "$1,234.50"),
    ],
)
def test_small_amounts_have_no_exponent(usd: float, shown: str) -> None:
    assert dollars(usd) == shown


@pytest.mark.parametrize(
    ("nanoseconds", "shown"),
    [
        (999_400, "999 µs"),
        (999_600, "1 ms"),
        (999_499_999, "999 ms"),
        (999_990_000, "1.00 s"),
        (59_994_000_000, "59.99 s"),
        (59_996_000_000, "1 min 0 s"),
        (3_599_000_000_000, "59 min 59 s"),
        (3_600_000_000_000, "1 h 0 min"),
    ],
)
def test_a_duration_that_is_rounded_up_takes_the_next_unit(nanoseconds: int, shown: str) -> None:
    assert duration(nanoseconds) == shown


def test_what_has_not_ended_has_no_duration(tmp_path: Path) -> None:
    run = Run("goes-on")
    run.chat("c", [message("user", "go")], message("assistant", "yes"), at=10, until=1_000_000)
    run.agent("helper", at=20, until=30)
    run.spans = [msgspec.structs.replace(span, end_ns=0) for span in run.spans]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.end(at=5_000_000))
        heard = {"authorization": f"Bearer {KEY}"}
        pages = TestClient(create_app(store, KEY), base_url="http://localhost", headers=heard)
        shown = pages.get("/runs/goes-on/timeline").text.partition('class="tabs"')[2]
    assert shown.count('<span class="n figures">\N{EN DASH}</span>') == 2
    assert shown.count('<span class="n figures">5.00 s</span>') == 1


def test_what_is_no_text_is_named_where_a_call_is_one_line(tmp_path: Path) -> None:
    run = Run("drawn")
    parts = [
        {"type": "text", "content": "Here."},
        {"type": "blob", "mime_type": "image/png", "content": "iVBORw0KGgo"},
        {"type": "uri", "uri": "https://example.com/a.png"},
    ]
    run.chat("c", [message("user", "draw")], {"role": "assistant", "parts": parts}, at=1)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.end(at=9))
        [call] = [one for one in Events(store, 0).new() if one.kind == "call"]
    assert call.text == "Here. [blob] [uri]"


def test_runs_without_an_entry_have_a_name_among_the_figures(tmp_path: Path) -> None:
    run = Run("rootless")
    run.chat("c", [message("user", "go")], message("assistant", "yes"), at=1)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.spans)
    ask = ("stats", "--by", "entry", "--dir", str(tmp_path))
    row = CliRunner().invoke(cli, ask).output.splitlines()[2]
    assert row.split()[:2] == ["-", "1"]
    [entry] = json.loads(CliRunner().invoke(cli, [*ask, "--json"]).output)["entry"]
    assert entry["name"] == ""


def test_a_run_s_page_has_the_tokens_that_its_models_counted(tmp_path: Path) -> None:
    run = Run("used")
    asked, answer = [message("user", "go")], message("assistant", "yes")
    run.chat("c", asked, answer, at=1, USAGE_INPUT_TOKENS=12_000, USAGE_OUTPUT_TOKENS=30)
    run.chat("d", asked, answer, at=10, USAGE_INPUT_TOKENS=500, USAGE_OUTPUT_TOKENS=4)
    run.chat("e", asked, answer, at=20)
    none = Run("none")
    none.chat("c", asked, answer, at=1)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*run.end(at=30), *none.end(at=30)])
        heard = {"authorization": f"Bearer {KEY}"}
        pages = TestClient(create_app(store, KEY), base_url="http://localhost", headers=heard)
        shown = pages.get("/runs/used").text
        assert '12\N{NARROW NO-BREAK SPACE}500 → 34 tokens <span class="muted">(1 call not counted)' in shown
        assert "<dt>Used</dt>" not in pages.get("/runs/none").text
