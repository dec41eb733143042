"""`arttrace group`: stored runs by another criterion, everywhere the same, and back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from simulated_agent import Run, message

from arttrace.commands import cli
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.run_filter import group_keys

TAGGED = ["task=8"]


def _run(id: str, entry: str, question: str, **root: Any) -> list[SpanRow]:
    made = Run(id)
    made.entry = entry
    made.chat("m", [message("user", question)], message("assistant", "because"), at=1)
    return made.end(ENTRY_ARGUMENTS=json.dumps({"question": question}), **{"SCENARIO": None, **root})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(_run("a", "/A/agent.py:answer", "why?", METADATA='{"task": "t1"}', TAGS=["task:7", "beta"]))
        store.append(_run("b", "/B/agent.py:answer", "why?", METADATA='{"task": "t2"}', TAGS=["beta", "task:7"]))
        store.append(
            _run("c", "agent:answer", "why?", ENTRY_NAME="agent:answer", METADATA='{"task": "t1"}', TAGS=["task=8"])
        )
        store.append(_run("d", "agent:answer", "how?", ENTRY_NAME="agent:answer"))
    return tmp_path


def _command(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--dir", str(root)])


def _groups(root: Path) -> dict[str, str]:
    """The runs' groups, as every way of asking shows them."""
    listed = {one["id"]: one["group"] for one in json.loads(_command(root, "ls", "--json").output)}
    with Store.open(DataDir(root)) as store:
        asked = 'SELECT id, coalesce("group", id) FROM trajectories'
        assert dict(store.sql(asked)[1]) == listed
        for key in set(listed.values()):
            found = {id for id, group in listed.items() if group == key}
            assert {one.id for one in store.trajectories(group=key)} == found
            assert {one.id for one in store.summaries(group=key)} == found
    return listed


def test_what_was_recorded_under_several_paths_is_joined_and_parted_again(root: Path) -> None:
    before = _groups(root)
    assert len(set(before.values())) == 4
    planned = _command(root, "group", "--by", "entry", "--dry-run").output
    assert "4 runs would be in 2 groups by entry; 4 before." in planned
    assert _groups(root) == before
    said = _command(root, "group", "--by", "entry").output
    assert "4 runs are in 2 groups by entry; 4 before." in said
    assert 'agent:answer {"question":"why?"}: 3 runs, joined from 3 groups: ' in said
    assert "arttrace group --undo" in said
    why = before["c"]
    assert _groups(root) == {**dict.fromkeys("abc", why), "d": before["d"]}
    assert f"{why} (by `arttrace group`)" in _command(root, "show", "a").output
    _command(root, "group", "--undo")
    assert _groups(root) == before


def test_runs_of_one_group_are_listed_under_one_name_and_two_groups_never(root: Path) -> None:
    def shown(*more: str) -> dict[str, str]:
        lines = _command(root, "ls", *more).output.splitlines()[2:]
        return {line[0]: re.split(r"  +", line)[2] for line in lines}

    with Store.open(DataDir(root)) as store:
        store.append(_run("e", "bank.agent:answer", "how?", ENTRY_NAME="bank.agent:answer"))
    _command(root, "group", "--by", "entry", "--entry", "agent.py:answer")
    keys = _groups(root)
    names = shown()
    assert names["a"] == names["b"] == names["c"] == "why?"
    assert shown("--wide") == keys
    for id in "de":
        assert keys[id].startswith(names[id].rstrip("…"))
        assert set(shown("--group", keys[id])) == {id} <= set(shown("--group", names[id]))


def test_the_last_grouping_counts_and_runs_without_a_value_stay(root: Path) -> None:
    before = _groups(root)
    _command(root, "group", "--by", "entry")
    said = json.loads(_command(root, "group", "--by", "metadata.task", "--json").output)
    assert (said["runs"], said["groups_before"], said["groups"], said["without_key"]) == (4, 2, 3, 1)
    assert _groups(root) == {"a": "t1", "b": "t2", "c": "t1", "d": before["d"]}
    _command(root, "group", "--by", "input", "--entry", "agent:answer")
    assert _groups(root) == {"a": "t1", "b": "t2", "c": "why?", "d": "how?"}


def test_runs_are_grouped_by_their_tags(root: Path) -> None:
    before = _groups(root)
    said = _command(root, "group", "--by", "tag").output
    assert "beta, task:7: 2 runs, joined from 2 groups" in said
    assert "1 run without tag: the group stays as it was." in said
    assert _groups(root) == {"a": "beta, task:7", "b": "beta, task:7", "c": "task=8", "d": before["d"]}
    _command(root, "group", "--by", "tag.task")
    assert _groups(root) == {"a": "task:7", "b": "task:7", "c": "task=8", "d": before["d"]}


def test_pruning_keeps_the_groups_of_what_stays(root: Path) -> None:
    _command(root, "group", "--by", "metadata.task")
    with Store.open(DataDir(root)) as store:
        store.prune(before_ns=0)
    assert _groups(root)["a"] == "t1"


def test_a_criterion_that_is_none_is_refused(root: Path) -> None:
    assert "none of entry, input" in _command(root, "group", "--by", "colour").output
    assert "say what to group by" in _command(root, "group").output


def test_conditions_that_no_run_meets_are_an_error(root: Path) -> None:
    refused = CliRunner().invoke(cli, ["group", "--by", "input", "--entry", "nobody", "--dir", str(root)])
    assert "No run matches: nothing is grouped." in str(refused.exception)


def test_a_group_is_named_by_what_ls_shows_of_it(root: Path) -> None:
    with Store.open(DataDir(root)) as store:
        assert group_keys(store, "how?") == ['agent:answer {"question":"how?"}']
        assert len(group_keys(store, "why?")) == 3
        assert group_keys(store, "nobody") == ["nobody"]
    said = _command(root, "score", "--judge", "openai/any", "--group", "why?", "--dry-run")
    assert "There is nothing to compare: of 3 trajectories in group 'why?', 3 can be judged" in str(said.exception)
