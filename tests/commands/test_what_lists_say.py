"""Commands that read the store say what is so: statuses agree, options that would be ignored are refused, captured text
steers no terminal, and a reader who has enough ends them without an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from simulated_agent import Run, message, research_run
from viewer_site import serve_viewer

from arttrace.commands import cli
from arttrace.commands.scoring import score
from arttrace.records import semconv
from arttrace.records.reward import Judgement
from arttrace.store import Store
from arttrace.system.paths import DataDir

ESCAPE = "\x1b[2J\x1b]0;title\x07"


def failed_run(id: str) -> Run:
    run = Run(id)
    run.chat("c", [message("user", "why?")], message("assistant", "because"), at=1)
    *_, root = run.end(at=10, ERROR_TYPE="ValueError")
    run.spans[-1] = replace(root, status_code=2, status_message="no")
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """One run of each of three statuses."""
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*failed_run("failed").spans, *research_run("whole"), *research_run("broken")[:-1]])
    return tmp_path


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--dir", str(root)])


def test_the_status_of_a_run_is_the_same_in_the_list_and_by_itself(root: Path) -> None:
    listed = {line.split()[0]: line.split()[-1] for line in run(root, "ls").output.splitlines()[2:]}
    assert listed == {"failed": "failed", "whole": "complete", "broken": "incomplete"}
    for id, status in listed.items():
        [line] = [line for line in run(root, "show", id).output.splitlines() if line.startswith("status ")]
        assert line.split()[1].rstrip(":") == status


def test_a_run_in_which_no_model_answered_is_complete_and_named(root: Path) -> None:
    silent = "no answer of a model was captured"
    assert silent not in run(root, "ls").output
    with Store.open(DataDir(root)) as store:
        store.append(Run("silent").end(at=10))
    listed = run(root, "ls").output
    assert f"{silent} in 1 run\n`arttrace doctor -- PROGRAM`" in listed
    shown = {id: run(root, "show", id).output for id in ("silent", "whole")}
    assert f"calls       none: {silent}, there is nothing to train on" in shown["silent"]
    assert silent not in shown["whole"]
    with serve_viewer(root) as viewer, httpx.Client(base_url=viewer.url, follow_redirects=True) as client:
        client.get(viewer.link)
        pages = {id: client.get(f"/runs/{id}").text for id in ("silent", "whole")}
    assert "No model call" in pages["silent"]
    assert "No model call" not in pages["whole"]


def test_the_tokens_that_a_run_used_are_in_lists_and_in_the_run(tmp_path: Path) -> None:
    """As the models counted them; of a call that nobody counted it is said."""
    counted = Run("counted")
    for at in (1, 3):
        counted.chat(f"c{at}", [message("user", "why?")], message("assistant", "so"), at=at)
    spans = counted.end(at=10)
    usage = {semconv.USAGE_INPUT_TOKENS: 1200, semconv.USAGE_OUTPUT_TOKENS: 34}
    first = next(span for span in spans if span.name.startswith("chat"))
    spans = [replace(one, attributes={**one.attributes, **usage}) if one is first else one for one in spans]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*spans, *Run("silent").end(at=10)])
    listed = {one["id"]: one for one in json.loads(run(tmp_path, "ls", "--json").output)}
    assert (listed["counted"]["input_tokens"], listed["counted"]["output_tokens"]) == (1200, 34)
    assert (listed["silent"]["input_tokens"], listed["silent"]["output_tokens"]) == (None, None)
    wide = {line.split()[0]: line for line in run(tmp_path, "ls", "--wide").output.splitlines()[2:]}
    assert " 1200->34 " in wide["counted"]
    assert wide["silent"].split()[-1] == "-"
    assert "used        1,200 -> 34 tokens (1 call not counted)" in run(tmp_path, "show", "counted").output
    assert json.loads(run(tmp_path, "show", "counted", "--json").output)["used"] == {
        "asked": 1200, "answered": 34, "uncounted": 1,
    }  # fmt: skip
    assert "used  " not in run(tmp_path, "show", "silent").output
    with serve_viewer(tmp_path) as viewer, httpx.Client(base_url=viewer.url, follow_redirects=True) as client:
        client.get(viewer.link)
        assert '<td class="n">1200 → 34</td>' in client.get("/runs").text


def test_errors_and_a_status_must_both_match(root: Path) -> None:
    for status in ("failed", "incomplete"):
        found = json.loads(run(root, "ls", "--json", "--errors", "--status", status).output)
        assert len(found) == 1
    for status in ("complete", "unread"):
        refused = run(root, "ls", "--errors", "--status", status)
        assert refused.exit_code == 2
        assert f"--status {status}" in refused.stderr


def test_more_runs_are_promised_only_where_there_are_some(root: Path) -> None:
    assert "more with --limit" in run(root, "ls", "--limit", "2").output
    assert "more with --limit" not in run(root, "ls", "--limit", "3").output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("show", "whole", "--wide"), "--tokens"),
        (("score", "--reward", "m:f", "--votes", "3"), "--votes cannot be combined with --reward"),
        (("score", "--reward", "m:f", "--rubric", "be kind"), "--rubric cannot"),
        (("score", "--reward", "m:f", "--judge-base-url", "http://localhost"), "--judge-base-url cannot"),
        (("score", "--judge", "m", "--reward-version", "2"), "--reward-version cannot be combined with --judge"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(root: Path, options: tuple[str, ...], said: str) -> None:
    refused = run(root, *options)
    assert refused.exit_code == 2
    assert said in refused.stderr


def test_no_captured_text_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [Run(id, scenario=f"{name} {ESCAPE}") for id, name in (("a", "one"), ("b", "two"))]
    with Store.open(DataDir(tmp_path), create=True) as store:
        for one in runs:
            spans = one.end(METADATA='{"ticket": 7}')
            store.append([replace(span, resource={"service.name": f"shop {ESCAPE}"}) for span in spans])
    grouped = run(tmp_path, "group", "--by", "metadata.ticket").output
    assert "joined from 2 groups: one" in grouped
    pruned = run(tmp_path, "prune", "--max-size", "1KB", "--dry-run").output
    assert "shop " in pruned
    judged = Judgement("j", "k", f"one {ESCAPE}", "m", "r", {"a": 0.5, "b": 1.0}, {}, 1, 1, None, 1)
    plan = score._DueGroups([], [judged], [], 0, 0, 0)
    score._show(plan, [judged], 1, [(f"two {ESCAPE}", score.JudgeError(f"said {ESCAPE}"))])
    shown = capsys.readouterr().out
    assert "not scored: two" in shown
    assert not {"\x1b", "\x07"} & {*grouped, *pruned, *shown}


def test_a_reader_who_has_enough_of_an_export_is_no_error(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(span for number in range(200) for span in research_run(f"run-{number}"))
    command = [str(Path(sys.executable).with_name("arttrace")), "export", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as exporting:
        assert exporting.stdout is not None
        assert exporting.stderr is not None
        exporting.stdout.read(20)
        exporting.stdout.close()
        assert exporting.stderr.read() == ""
