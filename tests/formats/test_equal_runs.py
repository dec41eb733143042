"""Runs without an id of their own: equal ones are several, in one file and in several, and a file imported again is the
same ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from every_form import ITEMS
from system_files import SWE

from arttrace.commands import cli
from arttrace.formats.content_ids import ContentIds
from arttrace.formats.imported_run import hashed
from arttrace.store import Store
from arttrace.system.paths import DataDir

SAID = [{"role": "user", "content": "ls"}, {"role": "assistant", "content": "Done."}]
FORMS: dict[str, dict[str, Any]] = {
    "swe-agent": SWE,
    "mini-swe-agent": {"trajectory_format": "mini-swe-agent-1.1", "info": {}, "messages": SAID},
    "atif": {
        "schema_version": "ATIF-v1.4",
        "agent": {"name": "terminus", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "ls"},
            {"step_id": 2, "source": "agent", "message": "Done."},
        ],
    },
    "atif without a session's id": {
        "schema_version": "ATIF-v1.6",
        "session_id": "copilot-cli",
        "agent": {"name": "copilot-cli", "version": "unknown"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "ls"},
            {"step_id": 2, "source": "agent", "message": "Done."},
        ],
    },
    "art": {"messages_and_choices": [SAID[0], {"finish_reason": "stop", "index": 0, "message": SAID[1]}], "reward": 1},
    "conversation": {"messages": SAID, "reward": 1},
    "exchange": {
        "request": {"messages": SAID[:1], "model": "m"},
        "response": {"choices": [{"message": SAID[1], "finish_reason": "stop"}]},
    },
    "completion": {"prompt": SAID[:1], "completion": SAID[1:]},
}


def imported(data: Path, *files: Path) -> tuple[int, int]:
    """How many runs and spans are there after an import."""
    done = CliRunner().invoke(cli, ["import", *map(str, files), "--dir", str(data)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "another reading" not in done.output
    with Store.open(DataDir(data)) as store:
        [spans] = store.sql("SELECT count(*) FROM span_records")[1]
        return len(store.summaries()), spans[0]


def written(path: Path, *items: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(map(json.dumps, items)))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_equal_runs_in_one_file_are_several_and_stay_those(form: str, tmp_path: Path) -> None:
    item = FORMS[form]
    one = written(tmp_path / "one" / "x.jsonl", item)
    (_, spans) = imported(tmp_path / "alone", one)
    three = written(tmp_path / "three" / "x.jsonl", item, item, item)
    for _ in range(2):
        assert imported(tmp_path / "data", three) == (3, 3 * spans)


def test_equal_runs_in_files_of_one_name_are_several_and_stay_those(tmp_path: Path) -> None:
    files = [written(tmp_path / name / "x.jsonl", FORMS["exchange"]) for name in ("first", "second")]
    (_, spans) = imported(tmp_path / "data", files[0])
    for _ in range(2):
        assert imported(tmp_path / "data", *files) == (2, 2 * spans)
    assert imported(tmp_path / "data", files[1]) == (2, 2 * spans)


def test_a_file_named_twice_is_imported_once(tmp_path: Path) -> None:
    file = written(tmp_path / "x.jsonl", FORMS["exchange"])
    (link := tmp_path / "link" / "x.jsonl").parent.mkdir()
    link.symlink_to(file)
    assert imported(tmp_path / "data", file, file, link)[0] == 1


def _named(form: str, **own: Any) -> dict[str, Any]:
    [item] = ITEMS[form]
    return {**item, **own}


def _rllm(item: dict[str, Any], **own: Any) -> dict[str, Any]:
    return {**item, "trajectories": [{**item["trajectories"][0], **own}]}


OWN_IDS: dict[str, dict[str, Any]] = {
    "agent lightning": _named("agent lightning rollouts"),
    "art": {**FORMS["art"], "metadata": {"trajectory_id": "ab" * 16}},
    "atif": _named("atif trajectories", trajectory_id="t-1"),
    "rllm": _rllm(_named("rllm episodes"), uid="5d1b"),
    "rllm without a name": _rllm(_named("rllm episodes"), uid="5d1b", name="default_traj_name"),
    "tau2": _named("tau2 results"),
    "verifiers traces": _named("verifiers traces"),
}
"""Of forms that give their runs ids, a run with one."""


@pytest.mark.parametrize("form", OWN_IDS)
def test_a_run_that_was_imported_with_the_name_of_its_file_in_its_id_is_there_once(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "monday.jsonl", OWN_IDS[form])
    with monkeypatch.context() as patch:  # as earlier versions made them
        patch.setattr(ContentIds, "of_own", lambda self, system, source, id: hashed(32, source, id))
        before = imported(tmp_path / "data", file)
    for _ in range(2):
        assert imported(tmp_path / "data", file) == before


@pytest.mark.parametrize("form", OWN_IDS)
def test_a_run_with_an_id_of_its_own_is_one_under_whichever_name_its_file_has(form: str, tmp_path: Path) -> None:
    first, renamed = (written(tmp_path / f"{name}.jsonl", OWN_IDS[form]) for name in ("monday", "copy"))
    before = imported(tmp_path / "data", first)
    assert imported(tmp_path / "data", renamed) == before
    assert imported(tmp_path / "data", renamed, first) == before
    with Store.open(DataDir(tmp_path / "data")) as store:
        [run] = store.trajectories()
    assert (run.project, run.conflicts, run.incomplete, len(run.calls), len(run.rewards)) == (
        "monday", 0, "", 1, 0 if form == "atif" else 1,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["art", "atif"])
def test_what_a_store_wrote_of_a_run_adds_nothing_to_it(form: str, tmp_path: Path) -> None:
    """It comes back under the run's id, from where the run is not: its calls and its reward would count twice."""
    data = tmp_path / "data"
    imported(data, written(tmp_path / "x.jsonl", FORMS["conversation"]))
    out = tmp_path / "out.jsonl"
    wrote = CliRunner().invoke(cli, ["dataset", "--format", form, "-o", str(out), "--dir", str(data)])
    assert wrote.exit_code == 0, wrote.output
    done = CliRunner().invoke(cli, ["import", str(out), "--dir", str(data), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)[0]["stored_otherwise"] == 1
    imported(tmp_path / "elsewhere", out)
    for directory in (data, tmp_path / "elsewhere"):
        with Store.open(DataDir(directory)) as store:
            [run] = store.trajectories()
            assert store.sql("SELECT calls, reward FROM trajectories")[1] == [(1, 1.0)]
        assert (len(run.calls), len(run.agents)) == (1, 1)
