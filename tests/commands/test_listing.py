from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from simulated_agent import research_run

from arttrace.commands import cli
from arttrace.errors import StoreError
from arttrace.paths import DataDir
from arttrace.records.reward import Reward
from arttrace.store import Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("first-run", "s1") + research_run("other-run", "s2")[:-1])
        why = "Both questions were answered. [bold]No markup[/bold]. \x1b[31m" + "Long. " * 40
        store.append(
            [Reward(id="r", trajectory_id="first-run", value=0.75, name="ruler", source="judge", explanation=why)]
        )
    return tmp_path


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--dir", str(root)], catch_exceptions=False)


def test_ls_fits_a_page_and_says_what_matters(root: Path) -> None:
    lines = run(root, "ls").output.splitlines()
    assert max(map(len, lines)) <= 100
    [whole] = [line for line in lines if line.startswith("first-ru")]
    [broken] = [line for line in lines if line.startswith("other-ru")]
    assert whole.split()[-3:] == ["policy@1", "0.750", "complete"]
    assert broken.split()[-3:] == ["policy@1", "-", "incomplete"]
    assert "s1" in whole
    assert "agent:run" in whole


def test_span_ids_that_stand_for_several_spans_are_told_with_their_cause(tmp_path: Path) -> None:
    spans = research_run("run")
    again = [msgspec.structs.replace(span, start_ns=span.start_ns + 1) for span in spans]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*spans, *again])
    listed = run(tmp_path, "ls").output
    assert "incomplete" in listed
    assert "a program that seeds `random`" in listed
    shown = " ".join(run(tmp_path, "show", "run").output.split())
    assert "incomplete: ids of 8 spans stand for several spans Span ids that repeat come from" in shown


def test_ls_json_and_filters(root: Path) -> None:
    listed = json.loads(run(root, "ls", "--json").output)
    assert {item["id"]: item["reward"] for item in listed} == {"first-run": 0.75, "other-run": None}
    assert {item["incomplete"] for item in listed} == {"", "root missing"}
    assert [item["id"] for item in json.loads(run(root, "ls", "--json", "--group", "s1").output)] == ["first-run"]
    assert len(json.loads(run(root, "ls", "--json", "--limit", "1").output)) == 1
    assert "no trajectories in group 'nope'" in run(root, "ls", "--group", "nope").output


def test_show_nests_sub_agents_under_the_tool_call_that_started_them(root: Path) -> None:
    output = run(root, "show", "first").output
    assert "\x1b" not in output
    lines = output.splitlines()
    assert max(map(len, lines)) <= 100
    tool = next(
        i for i, line in enumerate(lines) if line.startswith('├── inferred tool research({"q": "a"}) -> answer a')
    )
    assert lines[tool + 1].startswith("│   └── agent research  (inferred")
    assert lines[tool + 3] == "│       ├── user: a"
    assert any("0.750 ruler (judge): Both questions were answered. [bold]No markup[/bold]" in line for line in lines)
    assert output.count("Long.") == 40
    assert any("sampled tokens can be trained on, in 3 sequences (0 forks)" in line for line in lines)


def test_show_an_incomplete_run(root: Path) -> None:
    output = run(root, "show", "other").output
    assert "incomplete: root missing" in output
    assert "(missing: its span did not arrive)" in output


def test_show_json_is_the_whole_trajectory(root: Path) -> None:
    shown = json.loads(run(root, "show", "first", "--json").output)
    assert len(shown["trajectory"]["agents"]) == 3
    assert len(shown["sequences"]) == 3
    assert shown["tokens"]["trained_tokens"] == sum(sum(sequence["trained"]) for sequence in shown["sequences"])


def test_errors_name_the_mend(root: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no trajectory 'zzz'") as error:
        run(root, "show", "zzz")
    assert error.value.mend == "`arttrace ls` lists those there are."
    with pytest.raises(StoreError, match="no store in"):
        run(tmp_path / "empty", "ls")


def test_sql(root: Path) -> None:
    output = run(root, "sql", "SELECT id, calls FROM trajectories ORDER BY id").output
    assert [line.split() for line in output.splitlines() if "-run" in line] == [["first-run", "7"], ["other-run", "7"]]
    wide = run(root, "sql", "FROM trajectories").output
    assert max(map(len, wide.splitlines())) <= 100
    assert "row 2" in wide
    assert json.loads(run(root, "sql", "--json", "SELECT 1 AS one, now() AS t").output)[0]["one"] == 1
