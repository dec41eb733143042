"""`arttrace stats` over stored runs: what it counts, by SQL and by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from simulated_agent import T0, Run, message

from arttrace.commands import cli
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir


def run(directory: Path, *arguments: str) -> Any:
    result = CliRunner().invoke(cli, [*arguments, "--dir", str(directory)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three runs of one entry with a tool, one of them two hours old, one failed."""
    made = []
    for number, hours in enumerate((0, 0, 2)):
        one = Run(f"run-{number}")
        at = int((time.time_ns() - T0) / 1e3 - hours * 3.6e9)
        asked = [message("user", "why?")]
        one.chat("m", asked, message("assistant", "so"), at=at + 1, policy=f"policy@{min(number, 1)}")
        [*calls, root_span] = one.end(at=at + 10, ENTRY_NAME="shop.agent:answer", ENTRY_ARGUMENTS="{}")
        made += [*calls, replace(root_span, start_ns=T0 + at * 1000, status_code=2 * (number == 1))]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(made)
        store.append([Reward(id=f"r{n}", trajectory_id=f"run-{n}", value=n) for n in range(2)])
    return tmp_path


def test_figures_are_those_of_the_runs(root: Path) -> None:
    found = json.loads(run(root, "stats", "--json").output)
    assert set(found) == {"entry", "agent", "model", "tool"}
    [entry] = found["entry"]
    assert (entry["name"], entry["count"], entry["runs"], entry["calls"]) == ("shop.agent:answer", 3, 3, 3)
    assert (entry["errors"], entry["reward"]) == (1, 0.5)
    assert 0 < entry["p50_s"] <= entry["p90_s"] <= entry["p99_s"]
    assert [(one["name"], one["runs"]) for one in found["model"]] == [("policy@1", 2), ("policy@0", 1)]
    with Store.open(DataDir(root)) as store:
        [(asked, answered)] = store.sql("SELECT sum(input_tokens), sum(output_tokens) FROM trajectories")[1]
    assert (entry["input_tokens"], entry["output_tokens"]) == (asked, answered)
    assert sum(one["calls"] or 0 for one in found["agent"]) == 3


def test_a_run_that_is_judged_again_counts_once(root: Path) -> None:
    """A group that grows is judged anew: the reward is what `ls` shows, not the sum of all judgements."""
    with Store.open(DataDir(root)) as store:
        judged = [("one", 0.4), ("two", 0.8)]
        store.append([Reward(a, "run-2", v, "ruler", "judge", time_ns=n) for n, (a, v) in enumerate(judged, 1)])
        store.append([Reward("three", "run-1", 0.5, "ruler", "judge", time_ns=3)])
        [(groups, mean)] = store.sql("SELECT count(*), avg(mean_reward) FROM groups")[1]
        assert [store.trajectory("run-2").rewards[0].id, len(store.trajectory("run-2").rewards)] == ["two", 1]
        sql = dict(store.sql("SELECT id, reward FROM trajectories")[1])
        assert store.sql("SELECT id FROM rewards WHERE trajectory_id = 'run-2'")[1] == [("two",)]
    listed = {one["id"]: one["reward"] for one in json.loads(run(root, "ls", "--json").output)}
    assert listed == sql == {"run-0": 0.0, "run-1": 0.75, "run-2": 0.8}
    [entry] = json.loads(run(root, "stats", "--json", "--by", "entry").output)["entry"]
    assert entry["reward"] == mean == pytest.approx(1.55 / 3)
    assert groups == 1


def test_since_and_by(root: Path) -> None:
    [entry] = json.loads(run(root, "stats", "--json", "--by", "entry", "--since", "1h").output)["entry"]
    assert entry["runs"] == 2
    shown = run(root, "stats", "--by", "entry").output
    assert "agent:answer" in shown
    assert "p99 s" in shown
    assert "policy@1" not in shown
    assert "nothing began since" in run(root, "stats", "--since", "2999-01-01").output


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    Store.open(DataDir(tmp_path), create=True).close()
    assert "no trajectories yet" in run(tmp_path, "stats").output


def test_calls_below_tools_are_of_the_agent_above_them(tmp_path: Path) -> None:
    """Also where a framework has steps of its own between an agent and its calls, and whatever those steps name."""
    one = Run("r")
    asked = [message("user", "why?")]
    usage = {"USAGE_INPUT_TOKENS": 10, "USAGE_OUTPUT_TOKENS": 2}
    one.chat("m", asked, message("assistant", "so"), at=1, **usage)
    tool = one.tool("t", "look", at=10, until=50)
    one.chat("in", asked, message("assistant", "so"), at=11, parent=tool, **usage)
    helper = one.agent("helper", at=20, until=40, parent=tool)
    step = one.tool("u", "step", at=21, until=39, parent=helper)
    one.chat("deep", asked, message("assistant", "so"), at=22, parent=step, **usage)
    around = one.span_id("a"), one.span_id("b")
    for name, above in zip("ab", reversed(around), strict=True):
        one.tool(name, "circle", at=60, until=70, parent=above)
    one.chat("lost", asked, message("assistant", "so"), at=61, parent=around[0], **usage)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(one.end(at=100))
    found = json.loads(run(tmp_path, "stats", "--json").output)
    assert {row["name"]: (row["calls"], row["input_tokens"], row["output_tokens"]) for row in found["agent"]} == {
        "planner": (2, 20, 4),
        "helper": (1, 10, 2),
    }
    assert {row["name"]: row["unpriced_calls"] for row in found["agent"]} == {"planner": 2, "helper": 1}
