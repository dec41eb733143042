"""Files that version 0.1 imported, imported again: each run is there once, and stays complete."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from arttrace.commands import cli
from arttrace.formats import imported_files
from arttrace.formats.imported_files import read_file
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir

BEFORE = Path(__file__).parent / "data" / "imported_by_0_1"
SAID_OTHERWISE = "already stored in another reading"


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    """A store that version 0.1 made of these files."""
    data = DataDir(tmp_path / "data")
    data.root.mkdir()
    data.store.write_bytes(gzip.decompress((BEFORE / "store.duckdb.gz").read_bytes()))
    return data


def imported(data: DataDir, *files: Path) -> tuple[list[dict[str, Any]], str]:
    """The report of an import, and what it says to a person."""
    arguments = ["import", *map(str, files), "--dir", str(data.root)]
    report = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
    assert report.exit_code == 0, report.output
    said = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    return json.loads(report.stdout), said.stderr


def runs(data: DataDir) -> dict[str, tuple[str, int, float]]:
    """Of each run whether it is complete, its calls and its rewards."""
    with Store.open(data) as store:
        return {
            one.id: (one.incomplete, one.calls, sum(reward.value for reward in one.rewards))
            for one in store.summaries()
        }


@pytest.mark.parametrize(
    ("name", "stored_otherwise", "new"), [("talks.jsonl", 1, 0), ("pairs.jsonl", 1, 0), ("export.json", 0, 2)]
)
def test_a_file_that_0_1_imported_is_there_once(name: str, stored_otherwise: int, new: int, data: DataDir) -> None:
    before = runs(data)
    [report], said = imported(data, BEFORE / name)
    assert runs(data) == before
    assert {incomplete for incomplete, *_ in before.values()} == {""}
    assert (report["stored_otherwise"], report["new"]) == (stored_otherwise, new)
    assert report["already_stored"] == report["spans"] + report["rewards"] - new
    assert (SAID_OTHERWISE in said) == bool(stored_otherwise)
    [again], _ = imported(data, BEFORE / name)
    assert again["new"] == 0
    assert runs(data) == before


def test_a_run_of_which_a_file_says_more_now_gets_it(data: DataDir) -> None:
    with Store.open(data) as store:
        assert store.trajectory("5f1c").tags == ()
    imported(data, BEFORE / "export.json")
    with Store.open(data) as store:
        run = store.trajectory("5f1c")
    assert run.tags == ("beta",)
    assert run.metadata["shop"] == "bern"


@pytest.mark.parametrize("file", ["braintrust.jsonl", "phoenix_spans.json"])
def test_a_later_export_under_another_name_brings_what_is_new(file: str, tmp_path: Path) -> None:
    """An export of each day, say, of which the first was made while a run went on."""
    text = (BEFORE.parent / file).read_text()
    spans = [json.loads(line) for line in text.splitlines()] if file.endswith("l") else json.loads(text)
    last_call = max((one for one in spans if said_to_be_call(one)), key=str)
    monday, tuesday, again = (tmp_path / f"{day}.json" for day in ("monday", "tuesday", "again"))
    monday.write_text(json.dumps([one for one in spans if one is not last_call]))
    tuesday.write_text(json.dumps(spans))
    again.write_text(json.dumps(spans))
    data = DataDir(tmp_path / "data")
    imported(data, monday)
    [report], said = imported(data, tuesday)
    assert (report["new"], report["stored_otherwise"]) == (1, 0)
    assert said == ""
    [report], said = imported(data, again)
    assert (report["new"], report["already_stored"]) == (0, report["spans"] + report["rewards"])
    with Store.open(data) as store:
        assert all(run.incomplete == "" and run.conflicts == 0 and len(run.calls) == 2 for run in store.trajectories())
        assert {run.project for run in store.trajectories()} <= {"monday", ""}


def said_to_be_call(span: dict[str, Any]) -> bool:
    return "LLM" in (span.get("span_kind"), str(span.get("span_attributes", {}).get("type")).upper())


def test_into_another_directory_it_is_read_anew(data: DataDir, tmp_path: Path) -> None:
    with Store.open(data) as store:
        assert store.sql("SELECT count(*) FROM tool_calls WHERE result LIKE '%Rain.%'")[1] == [(0,)]
    [report], said = imported(elsewhere := DataDir(tmp_path / "elsewhere"), BEFORE / "talks.jsonl")
    assert (report["stored_otherwise"], said) == (0, "")
    with Store.open(elsewhere) as store:
        assert store.sql("SELECT count(*) FROM tool_calls WHERE result LIKE '%Rain.%'")[1] == [(1,)]


def test_runs_of_the_same_file_that_came_in_by_half_are_completed(data: DataDir, tmp_path: Path) -> None:
    """As by an import that was killed: what is stored says nothing else."""
    with Store.open(elsewhere := DataDir(tmp_path / "elsewhere"), create=True) as store:
        records = read_file((BEFORE / "talks.jsonl").read_bytes(), "talks").records
        store.append(records[:1])
    [report], _ = imported(elsewhere, BEFORE / "talks.jsonl")
    assert (report["stored_otherwise"], report["already_stored"]) == (0, 1)
    assert {incomplete for incomplete, *_ in runs(elsewhere).values()} == {""}


def test_a_run_is_judged_as_a_whole_wherever_a_batch_ends(
    data: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that 0.1 did not read stands before the span that contradicts."""
    before = runs(data)
    monkeypatch.setattr(imported_files, "_RECORDS_AT_ONCE", 5)
    with Store.open(data) as store:
        spans = store.sql("SELECT count(*) FROM span_records")[1]
    (tmp_path / "talks.jsonl").write_text("".join(reversed((BEFORE / "talks.jsonl").read_text().splitlines(True))))
    imported(data, tmp_path / "talks.jsonl")
    with Store.open(data) as store:
        assert store.sql("SELECT count(*) FROM span_records")[1] == spans
    assert runs(data) == before


def test_spans_of_programs_that_share_an_id_are_stored_both(tmp_path: Path) -> None:
    """They are no reading of ours: the run says that its ids stand for several spans."""
    first = SpanRow("1" * 32, "2" * 16, "chat", 1, 9, attributes={"gen_ai.operation.name": "chat", "who": "a"})
    other = SpanRow("1" * 32, "2" * 16, "chat", 5, 7, attributes={"gen_ai.operation.name": "chat", "who": "b"})
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file, span in zip(files, (first, other), strict=True):
        with Store.open(DataDir(tmp_path / file.stem), create=True) as store:
            store.append([span])
        done = CliRunner().invoke(cli, ["export", "-o", str(file), "--dir", str(tmp_path / file.stem)])
        assert done.exit_code == 0, done.output
    reports, _ = imported(both := DataDir(tmp_path / "both"), *files)
    assert [(one["new"], one["stored_otherwise"]) for one in reports] == [(1, 0), (1, 0)]
    [(incomplete, *_)] = runs(both).values()
    assert "ids of 1 spans stand for several spans" in incomplete
