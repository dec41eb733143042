"""`arttrace diff`: where two runs part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from simulated_agent import Run, message, result

from arttrace.commands import cli
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir


def _run(id: str, found: str, answer: str, *, fails: bool = False) -> list[Record]:
    """A question, a tool with `found` as its result, an answer."""
    run = Run(id, scenario="g")
    asked = [message("system", "Help."), message("user", "where?")]
    call = message("assistant", calls=(("c1", "find", '{"id": 7}'),))
    run.chat("m1", asked, call, at=10)
    run.tool("t1", "find", at=12, until=14, TOOL_CALL_ID="c1", TOOL_CALL_ARGUMENTS='{"id": 7}', TOOL_CALL_RESULT=found)
    run.chat("m2", [*asked, call, result("c1", found)], message("assistant", answer), at=20)
    last = [*asked, call, result("c1", found), message("assistant", answer), message("user", "thanks")]
    run.chat("m3", last, message("assistant", "welcome"), at=30)
    return [*run.end(at=100, **({"ERROR_TYPE": "ValueError"} if fails else {}))]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("diff")
    with Store.open(DataDir(root), create=True) as store:
        store.append([*_run("aaaa-1", "in Bern", "Bern"), *_run("bbbb-2", "in Basel [b] \x1b[31m", "Basel")])
        store.append([*_run("cccc-3", "in Bern", "Genf"), *_run("dddd-4", "in Bern", "Bern")])
        store.append(_run("eeee-5", "in Bern", "in the old town of Bern, " * 4))
        store.append([Reward(id="r", trajectory_id="aaaa-1", value=1.0)])
    return root


def diff(root: Path, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli, ["diff", *arguments, "--dir", str(root)], catch_exceptions=False, env=environment)


def test_runs_part_where_a_tool_answers_otherwise(root: Path) -> None:
    found = json.loads(diff(root, "aaaa", "bbbb", "--json").output)
    assert (found["shared"], [step["title"] for step in found["common"]]) == (3, ["user", "assistant"])
    first, second = found["runs"]
    assert (first["id"], first["reward"], second["reward"]) == ("aaaa-1", 1.0, None)
    assert [step["result"] for step in (first["steps"][0], second["steps"][0])] == ["in Bern", "in Basel [b] \x1b[31m"]
    assert found["rows"][-1] == [3, 3]  # both end with the same words
    assert (first["more"], second["more"]) == (0, 0)


def test_another_answer_after_the_same_tool(root: Path) -> None:
    found = json.loads(diff(root, "aaaa", "cccc", "--json", "--limit", "1").output)
    assert found["shared"] == 4
    assert found["common"][-1]["kind"] == "tool"
    assert [run["steps"][0]["text"] for run in found["runs"]] == ["Bern", "Genf"]
    assert [run["more"] for run in found["runs"]] == [2, 2]


def test_two_columns_that_fit_the_page_and_say_no_control_characters(root: Path) -> None:
    shown = diff(root, "aaaa", "bbbb").output
    assert max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown
    [row] = [line for line in shown.splitlines() if "in Bern" in line]
    left, right = row.split("│")
    assert left.strip() == 'find({ "id": 7 }) -> in Bern'
    assert right.strip().startswith('find({ "id": 7 }) -> in Basel [b]')
    assert "3 steps alike" in shown
    assert "2 more (--limit)" in diff(root, "aaaa", "cccc", "--limit", "1").output


def test_a_separator_stands_on_each_line_of_a_row_that_wraps(root: Path) -> None:
    shown = diff(root, "aaaa", "eeee").output.splitlines()
    rows = shown[shown.index("From here they part:") + 1 :]
    assert [line.count("│") for line in rows] == [1] * len(rows)
    assert len({line.index("│") for line in rows}) == 1
    left = [line.partition("│")[0].strip() for line in rows]
    assert "" in left, "the right one of a row is longer"


@pytest.mark.parametrize("where", ["text", "parts"])
def test_runs_that_differ_beyond_what_a_page_holds_are_not_alike(where: str, tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        for id, end in (("one", "1"), ("two", "2")):
            answer = message("assistant", "x" * 100_000 + end)
            if where == "parts":
                answer["parts"] = [{"type": "text", "content": f"{number} "} for number in range(150)]
                answer["parts"].append({"type": "text", "content": end})
            run = Run(id)
            run.chat("a", [message("user", "?")], answer, at=1)
            store.append(run.end(at=9))
    found = json.loads(diff(tmp_path, "one", "two", "--json").output)
    assert (found["shared"], [len(run["steps"]) for run in found["runs"]]) == (1, [1, 1])


def test_runs_that_are_alike_and_ids_that_are_not_there(root: Path) -> None:
    assert "The runs are alike: 7 steps." in diff(root, "aaaa", "dddd").output
    with pytest.raises(Exception, match="no trajectory 'zz'"):
        diff(root, "aaaa", "zz")
