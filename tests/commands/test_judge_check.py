"""`arttrace judge-check` on real runs with true rewards, asking a stand-in judge over real HTTP."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from recorded_runs import cut_to, recorded_group

from arttrace.commands import cli
from arttrace.commands.shared.progress import CountedProgress
from arttrace.rewards.judge_prompt import parse_prompt
from arttrace.store import Store
from arttrace.system.paths import DataDir

SOURCE = Path(__file__).parents[3] / "shared" / "data" / "tau-bench-gpt-4o-airline.json.gz"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def by_length(request: dict[str, Any]) -> tuple[int, Any]:
    """A stand-in for a judge: the shorter a run, the better."""
    runs = parse_prompt(request["messages"][1]["content"])
    lengths = {id: sum(len(h["messages"]) for a in one["agents"] for h in a["histories"]) for id, one in runs.items()}
    scores = [
        {"trajectory_id": id, "explanation": f"{length} messages", "score": 1 / length}
        for id, length in lengths.items()
    ]
    content = json.dumps({"scores": scores})
    return 200, {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "stand-in",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


@pytest.mark.skipif(not SOURCE.exists(), reason="the folder ../shared/data is absent")
def test_a_stand_in_judge_on_real_groups(tmp_path: Path, judge_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run("import", str(SOURCE), "--dir", str(tmp_path))
    judge_server.script = [by_length] * 1000
    ask = ["judge-check", "--judge", "openai/stand-in", "--judge-base-url", judge_server.url, "--dir", str(tmp_path)]
    found = json.loads(run(*ask, "--repeats", "2", "--limit", "12", "--json"))
    assert (found["groups"], found["runs"], found["ballots"], found["failed"]) == (12, 48, 24, 0)
    assert 0 < found["equal_groups"] < 12
    assert found["repeat_std"] == 0.0, "this judge always says the same"
    assert found["first_minus_last"] == pytest.approx(0.0)
    assert 0.0 <= found["agreement"] <= 1.0
    assert -1.0 <= found["tau"] <= 1.0
    prompts = [request["messages"][1]["content"] for request in judge_server.requests]
    assert not any('"reward"' in prompt for prompt in prompts), "the judge sees no reward"
    monkeypatch.setattr("arttrace.commands.scoring.judge_check.CountedProgress", partial(CountedProgress, every_s=0.0))
    asked = CliRunner().invoke(cli, [*ask, "--repeats", "1", "--limit", "3"])
    assert re.search(r"^2 of 3 answers, .* left$", asked.stderr, re.MULTILINE), asked.stderr
    table = asked.stdout
    assert "openai/stand-in on 3 groups of 12 runs" in table
    assert "pairs ordered as the rewards" in table


def test_runs_that_the_judge_is_not_shown_are_counted(tmp_path: Path, judge_server: Any) -> None:
    cut = cut_to(recorded_group("g", [0.0, 1.0, 0.5, 0.5]), 30)
    incomplete = recorded_group("h", [1.0])[1:]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*cut[:8], *recorded_group("g", [0.0, 1.0, 0.5, 0.5])[8:], *incomplete])
    judge_server.script = [by_length] * 10
    ask = ["judge-check", "--judge", "openai/stand-in", "--judge-base-url", judge_server.url, "--dir", str(tmp_path)]
    found = json.loads(run(*ask, "--json"))
    assert (found["groups"], found["runs"]) == (1, 2)
    judge = f"openai/stand-in-[tuned]-{'x' * 80}"
    assert f"{judge} on 1 group of 2 runs\n" in run("judge-check", "--judge", judge, *ask[3:])
    assert found["left_out"] == {"messages that cannot be read": 2, "incomplete": 1}
    assert "2 runs left out: messages that cannot be read; 1 run left out: incomplete." in run(*ask).splitlines()


def test_without_labelled_groups_the_error_says_what_to_do(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["judge-check", "--judge", "openai/o3", "--dir", str(tmp_path)])
    assert result.exception is not None
    assert "no" in str(result.exception).lower()
