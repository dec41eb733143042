from __future__ import annotations

from simulated_agent import Run, research_run

from arttrace.groups import group_key, group_trajectories
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories


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
