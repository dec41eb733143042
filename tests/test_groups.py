from __future__ import annotations

import msgspec
import pytest
from simulated_agent import Run, research_run

from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.groups import group_key, group_trajectories, keys_by


def test_explicit_group_then_scenario_then_arguments() -> None:
    def key(**fields: object) -> str:
        return group_key(Trajectory(id="id", revision="r", **fields))  # type: ignore[arg-type]

    assert key(group="g", scenario="s", entry="m:f") == "g"
    assert key(scenario="s", entry="m:f") == "s"
    assert key(entry="m:f", arguments={"b": 1, "a": 2}) == key(entry="m:f", arguments={"a": 2, "b": 1})
    assert key(entry="m:f", arguments={"a": 1}) != key(entry="m:f", arguments={"a": 2})
    assert key(entry="m:f", arguments={"a": "x" * 500}) != key(entry="m:f", arguments={"a": "x" * 501})
    assert len(key(entry="m:f", arguments={"a": "x" * 500})) < 80
    assert key() == "id"


def test_groups_hold_their_trajectories_in_order() -> None:
    spans = [span for id in "dcba" for span in research_run(id, "s" if id < "c" else "t")]
    groups = group_trajectories(reversed(build_trajectories(spans)))
    assert [(group.key, [t.id for t in group.trajectories]) for group in groups] == [
        ("s", ["a", "b"]),
        ("t", ["c", "d"]),
    ]


def test_incomplete_runs_without_root_are_groups_of_their_own() -> None:
    spans = research_run("a", "s")[:-1] + research_run("b", "s")[:-1]
    assert [group.key for group in group_trajectories(build_trajectories(spans))] == ["a", "b"]
    assert group_trajectories(build_trajectories(Run("a").end()))[0].key == "agent:run null"


def _run(id: str, **fields: object) -> Trajectory:
    return Trajectory(id=id, revision="r", **fields)  # type: ignore[arg-type]


def test_by_entry_joins_what_was_recorded_under_several_names() -> None:
    why = {"question": "why?"}
    runs = [
        _run("a", entry="/A/shop/agent.py:answer", arguments=why),
        _run("b", entry="/B/deep/shop/agent.py:answer", arguments=why),
        _run("c", entry="agent:answer", arguments=why),
        _run("d", entry="shop.agent:answer", entry_name="shop.agent:answer", arguments=why),
        _run("e", group="/A/shop/agent.py:answer {} (replay)", entry="agent:answer", metadata={"replay_of": "a"}),
        _run("f", entry="/A/shop/agent.py:other", arguments=why),
        _run("g", entry="/A/shop/agent.py:answer", arguments=why, group="mine"),
        _run("h", entry="/A/shop/agent.py:answer", arguments={"question": "how?"}),
    ]
    keys = keys_by("entry", runs)
    assert {keys[id] for id in "abcde"} == {'shop.agent:answer {"question":"why?"}'}
    assert (keys["f"], keys["g"]) == ('agent:other {"question":"why?"}', "mine")
    assert keys["h"] == 'shop.agent:answer {"question":"how?"}'


@pytest.mark.parametrize("said", [["a"], {"run": "a"}, 1, None, "gone", "b"])
def test_metadata_that_names_no_replayed_run_joins_nothing(said: object) -> None:
    a, b = (_run(id, entry="m:f", entry_name="m:f", arguments=id, metadata={"replay_of": said}) for id in "ab")
    assert keys_by("entry", [msgspec.structs.replace(a, metadata={}), b]) == {"a": 'm:f "a"', "b": 'm:f "b"'}


def test_by_entry_takes_modules_of_packages_for_the_names_of_older_records() -> None:
    why = {"question": "why?"}
    runs = [
        _run("a", entry="/A/shop/agent.py:answer", arguments=why),
        _run("b", entry="shop.agent:answer", arguments=why),
        _run("c", entry="agent:answer", arguments=why),
        _run("d", entry="/B/agent.py:answer", arguments=why),
    ]
    assert set(keys_by("entry", runs).values()) == {'shop.agent:answer {"question":"why?"}'}


def test_by_entry_joins_nothing_where_two_packages_have_a_function_of_this_name() -> None:
    why = {"question": "why?"}
    runs = [
        _run("a", entry="shop.agent:answer", arguments=why),
        _run("b", entry="bank.agent:answer", entry_name="bank.agent:answer", arguments=why),
        _run("c", entry="agent:answer", arguments=why),
        _run("d", entry="/A/bank/agent.py:answer", arguments=why),
    ]
    assert keys_by("entry", runs) == {
        "a": 'shop.agent:answer {"question":"why?"}',
        "b": 'bank.agent:answer {"question":"why?"}',
        "c": 'agent:answer {"question":"why?"}',
        "d": 'bank.agent:answer {"question":"why?"}',
    }


def test_by_a_value_of_metadata_or_arguments() -> None:
    runs = [
        _run("a", metadata={"task": {"id": 7}}, arguments={"city": "Oslo"}),
        _run("b", metadata={"task.id": "7"}, arguments={"city": "Oslo", "days": 3}),
        _run("c", arguments=["Oslo"]),
        _run("d", metadata={"task": {"id": "x" * 500}}, arguments={"city": "[redacted, 4 characters]"}),
    ]
    by_task = keys_by("metadata.task.id", runs)
    assert (by_task["a"], by_task["b"], by_task["c"]) == ("7", "7", None)
    assert len(by_task["d"] or "") < 80
    assert keys_by("argument.city", runs) == {"a": "Oslo", "b": "Oslo", "c": None, "d": None}
    with pytest.raises(ValueError, match="none of entry, input"):
        keys_by("metadata.", runs)
