"""Commands that look through every run of a store hold a page of them at a time."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from collector_process import collecting
from recorded_runs import recorded_group
from simulated_agent import research_run

from arttrace.commands import cli
from arttrace.commands.inspect import group
from arttrace.commands.inspect.mcp import StoreAnswers
from arttrace.store import Store
from arttrace.store.access import summary_pages
from arttrace.system.paths import DataDir

GROUPS, MEMBERS, PAGE = 6, 3, 4
RUNS = GROUPS * MEMBERS


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stored") / "data"
    with Store.open(DataDir(root), create=True) as store:
        for number in range(GROUPS):
            store.append(
                recorded_group(f"g{number:02}", [float(member) for member in range(MEMBERS)], at=2000 * number)
            )
    return root


@pytest.fixture
def root(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(stored, tmp_path / "data")
    (tmp_path / "rewarding.py").write_text("def some(run):\n    return 1.0\n")
    monkeypatch.setattr(summary_pages, "_IDS_OF_PAGE", 7)
    monkeypatch.setattr(summary_pages, "_RUNS_OF_PAGE", PAGE)
    monkeypatch.setattr(group, "_READ_AT_ONCE", PAGE)
    return tmp_path / "data"


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most summaries and the most runs that the store was asked for at once."""
    found = [0, 0]

    def counted(place: int, method: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any, **named: Any) -> Any:
            result = method(*arguments, **named)
            found[place] = max(found[place], len(result))
            return result

        return asked

    monkeypatch.setattr(Store, "summaries", counted(0, Store.summaries))
    monkeypatch.setattr(Store, "trajectories", counted(1, Store.trajectories))
    return found


def ran(root: Path, *command: str) -> Any:
    done = CliRunner().invoke(cli, [*command, "--json", "--dir", str(root)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("command", "ids"),
    [
        (["ls", "--reward", ">1.5", "--limit", "3"], ["g05-2", "g04-2", "g03-2"]),
        (["ls", "--group", "g03"], ["g03-2", "g03-1", "g03-0"]),
        (["ls", "--search", "task g02", "--limit", "2"], ["g02-2", "g02-1"]),
        (["ls", "--since", "1970-01-01T00:00:00.008+00:00", "--limit", "40"], ["g05-2", "g05-1", "g05-0", "g04-2"]),
    ],
)
def test_a_list_of_the_newest_that_match(root: Path, most: list[int], command: list[str], ids: list[str]) -> None:
    assert [run["id"] for run in ran(root, *command)][: len(ids)] == ids
    assert 0 < most[0] <= PAGE


def test_an_mcp_client_hears_of_the_newest_that_match(root: Path, most: list[int]) -> None:
    text, _ = asyncio.run(StoreAnswers(DataDir(root)).answer("list_runs", {"reward": ">1.5", "limit": 2}))
    *runs, further = json.loads(text)
    assert [run["id"] for run in runs] == ["g05-2", "g04-2"]
    assert further == {"left_out": "older runs that match; raise limit"}
    assert 0 < most[0] <= PAGE


@pytest.mark.parametrize("only", [None, "g03"])
def test_a_function_rewards_all_runs_and_none_twice(root: Path, most: list[int], only: str | None) -> None:
    command = ["score", "--reward", f"{root.parent / 'rewarding.py'}:some", *(["--group", only] if only else [])]
    runs = MEMBERS if only else RUNS
    assert ran(root, *command, "--dry-run")["due"] == runs
    assert 0 < most[0] <= PAGE
    assert ran(root, *command)["rewarded_now"] == runs
    again = ran(root, *command)
    assert (again["due"], again["rewarded_before"]) == (0, runs)


def test_a_judge_is_asked_of_groups_that_are_read_one_by_one(root: Path, most: list[int], judge_server: Any) -> None:
    command = ["score", "--judge", "openai/stand-in", "--judge-base-url", judge_server.url]
    plan = ran(root, *command, "--dry-run")
    assert plan["due"] == {f"g{number:02}": MEMBERS for number in range(GROUPS)}
    assert most[1] == 0, "what is due is known from the summaries"
    assert ran(root, *command)["scored_now"] == GROUPS
    assert max(most) <= PAGE
    again = ran(root, *command)
    assert (again["scored_now"], len(again["groups"])) == (0, GROUPS)


@pytest.mark.parametrize("by", ["input", "entry"])
def test_runs_are_grouped_page_by_page(root: Path, most: list[int], by: str) -> None:
    assert ran(root, "group", "--by", by)["groups"] == GROUPS
    assert ran(root, "group", "--undo")["groups"] == GROUPS
    assert 0 < max(most) <= PAGE


def test_what_runs_now_is_looked_for_page_by_page(root: Path, most: list[int]) -> None:
    with Store.open(DataDir(root)) as store:
        store.append(research_run("open")[:-1])
    assert [run["id"] for run in ran(root, "top", "--idle", "100000d")] == ["open"]
    assert 0 < most[0] <= PAGE


def test_a_running_collector_answers_the_same(root: Path) -> None:
    commands = [
        ["ls", "--reward", ">1.5", "--limit", "3"],
        ["ls", "--since", "1970-01-01T00:00:00.008+00:00", "--search", "task g05"],
        ["score", "--reward", f"{root.parent / 'rewarding.py'}:some", "--group", "g05", "--dry-run"],
        ["score", "--judge", "openai/stand-in", "--dry-run"],
        ["group", "--by", "input", "--dry-run"],
    ]
    alone = [ran(root, *command) for command in commands]
    with collecting(DataDir(root)):
        assert [ran(root, *command) for command in commands] == alone
    assert [run["id"] for run in alone[1]] == ["g05-2", "g05-1", "g05-0"]
