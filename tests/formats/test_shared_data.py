"""Real data that nobody here wrote (../shared/data), imported by the command: what comes out matches the source."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from arttrace.trajectories.groups import group_trajectories

FOLDER = Path(__file__).parents[3] / "shared" / "data"
TAU = FOLDER / "tau-bench-gpt-4o-airline.json.gz"
CACHES = FOLDER / "agent-lightning-prompt_caches.jsonl"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the folder ../shared/data is absent")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_tau_bench(tmp_path: Path) -> None:
    source: list[dict[str, Any]] = json.loads(gzip.decompress(TAU.read_bytes()))
    printed = run("import", str(TAU), "--dir", str(tmp_path))
    assert "200 conversations: 200 traces, 2700 spans, 200 rewards" in printed
    last = Counter(item["traj"][-1]["role"] for item in source)
    assert last == {"tool": 51, "user": 149}
    run("import", str(TAU), "--dir", str(tmp_path))  # a second time changes nothing
    with Store.open(DataDir(tmp_path)) as store:
        summaries = store.summaries()
        trajectories = store.trajectories()
        assert store.sql("SELECT count(*), count(DISTINCT span_id) FROM span_records")[1] == [(2700, 2700)]
        sql = store.sql("SELECT count(*), count(*) FILTER (spread = 0), sum(trajectories)::INT FROM groups")[1]
    assert sql == [(50, 24, 200)]
    groups = group_trajectories(trajectories)
    assert len(trajectories) == len(summaries) == 200
    assert [len(group.trajectories) for group in groups] == [4] * 50
    assert sum(len({t.rewards[0].value for t in group.trajectories}) == 1 for group in groups) == 24
    assert sum(t.rewards[0].value == 1 for t in trajectories) == 84
    assert Counter(len(t.calls) for t in trajectories) == Counter(
        sum(message["role"] == "assistant" for message in item["traj"]) for item in source
    )
    assert sum(len(t.calls) for t in trajectories) == 2454
    asking = [c for t in trajectories for c in t.calls if c.call.choices[0].message.tool_calls]
    assert len(asking) == 1164
    assert sum(len(t.tool_calls) for t in trajectories) == 1164
    answers = sum(message["role"] == "tool" for item in source for message in item["traj"])
    assert sum(tool.result is not None for t in trajectories for tool in t.tool_calls) == answers - 5  # ids used twice
    assert not any(t.incomplete for t in trajectories)
    for trajectory in trajectories:  # linear: one branch, every message of the source once on it
        assert len(trajectory.agents) == 1
        parents = Counter(node.parent_id for node in trajectory.nodes)
        assert max(parents.values()) == 1
    lengths = Counter(len(item["traj"]) - (item["traj"][-1]["role"] != "assistant") for item in source)
    assert Counter(len(t.nodes) for t in trajectories) == lengths
    reports = [sequences(t) for t in trajectories]
    assert not any(found for found, _ in reports)
    assert sum(report.reasons["no token ids"] for _, report in reports) == 2454


def test_agent_lightning_prompt_caches(tmp_path: Path) -> None:
    printed = run("import", str(CACHES), "--dir", str(tmp_path))
    assert "49 exchanges: 37 traces, 49 spans, 0 rewards" in printed  # 12 extend an earlier row
    with Store.open(DataDir(tmp_path)) as store:
        trajectories = store.trajectories()
    calls = [placed.call for trajectory in trajectories for placed in trajectory.calls]
    assert len(trajectories) == 37
    assert len(calls) == 49
    assert sum(bool(call.tools) for call in calls) == 26
    assert sum(bool(choice.message.tool_calls) for call in calls for choice in call.choices) == 18
    assert sum(sequences(trajectory)[1].reasons["no token ids"] for trajectory in trajectories) == 49


def test_what_is_imported_can_be_exported_and_imported_again(tmp_path: Path) -> None:
    first, second = DataDir(tmp_path / "a"), DataDir(tmp_path / "b")
    run("import", str(CACHES), "--dir", str(first.root))
    out = tmp_path / "out.jsonl"
    assert "49 spans" in run("export", "--output", str(out), "--dir", str(first.root))
    assert "49 spans" in run("import", str(out), "--dir", str(second.root))
    with Store.open(first) as one, Store.open(second) as other:
        assert one.trajectories() == other.trajectories()
