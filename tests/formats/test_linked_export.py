"""Runs that are exported without what they link to: what is no run's goes along, what is another's is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from arttrace.commands import cli
from arttrace.records import semconv
from arttrace.records.span import SpanLink, SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir

A, B, C = "a" * 32, "b" * 32, "c" * 32
T0 = 1_700_000_000_000_000_000


def span(trace: str, id: int, operation: str | None, run: str | None = None, *links: str) -> SpanRow:
    named = {semconv.OPERATION_NAME: operation, semconv.TRAJECTORY_ID: run}
    said = {name: value for name, value in named.items() if value}
    return SpanRow(
        trace, f"{id:016x}", "it", T0 + id, T0 + 99, attributes=said, links=[SpanLink(to, f"{1:016x}") for to in links]
    )


def exported(data: DataDir, *ids: str) -> tuple[dict[str, str], str]:
    """By run, why it is incomplete where these runs alone were imported; and what `export` said of them."""
    file, elsewhere = data.root / "out.jsonl", data.root / f"elsewhere-{len(ids)}"
    done = CliRunner().invoke(cli, ["export", *ids, "-o", str(file), "--dir", str(data.root)])
    assert done.exit_code == 0, done.output
    taken = CliRunner().invoke(cli, ["import", "--dir", str(elsewhere), str(file)])
    assert taken.exit_code == 0, taken.output
    with Store.open(DataDir(elsewhere)) as store:
        return {one.id: one.incomplete for one in store.summaries()}, done.stderr


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


def test_what_is_another_runs_stays_behind_and_it_is_said(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        store.append([span(A, 1, "execute_tool", "main"), span(A, 2, "chat", "main")])
        store.append([span(B, 3, "invoke_agent", "linking", A), span(B, 4, "chat", "linking")])
        store.append([span(C, 5, "invoke_agent", "alone")])
        assert {one.incomplete for one in store.summaries()} == {""}
    found, said = exported(data, "linking")
    assert found == {"linking": "linked span missing: 1"}
    assert "1 trace that these runs link to is of another run, and not exported" in " ".join(said.split())
    assert "linked span missing" in said
    assert "main" in said
    assert exported(data, "linking", "main") == ({"linking": "", "main": ""}, "")
    assert exported(data, "alone", "main", "linking")[1] == ""
    found, said = exported(data)
    assert (set(found.values()), said) == ({""}, "")


def test_what_is_nobodys_run_goes_with_the_run_that_links_to_it(data: DataDir) -> None:
    """As a message that was sent, to which the one who works on it links."""
    with Store.open(data, create=True) as store:
        store.append([span(A, 1, None), span(B, 3, "invoke_agent", None, A), span(B, 4, "chat", None)])
        assert {one.id: one.incomplete for one in store.summaries()} == {B: ""}
    assert exported(data, B) == ({B: ""}, "")


def test_what_never_arrived_stays_missing_without_a_word_of_the_export(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        store.append([span(B, 3, "invoke_agent", "linking", A)])
    assert exported(data, "linking") == ({"linking": "linked span missing: 1"}, "")
