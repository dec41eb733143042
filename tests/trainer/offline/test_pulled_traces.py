"""What another tracer sent to Langfuse is pulled, scored, written for other libraries, and trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from langfuse_server import LangfuseServer, langfuse_server
from one_thread import one_thread as one_thread
from tiny_model import make_base_model

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.commands.train.cli import command
from trainer.policies.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures("one_thread")
REWARD = "def short(trajectory):\n    return 1.0 if len(trajectory.result or '') < 20 else 0.0\n"


def fill(server: LangfuseServer) -> None:
    """Four traces of an agent with one call each, two of a question; those that answer it have a score of 1."""
    for number in range(4):
        trace, root, call = f"{number + 1:032x}", f"{number + 1:016x}", f"{number + 101:016x}"
        question, is_right = ("A pear?", "A plum?")[number // 2], number % 2
        answer = "three" if is_right else "I would rather not say"
        at = f"2026-11-20T10:0{number}:0{{}}.000Z"
        seen: dict[str, Any] = {
            "traceId": trace, "projectId": "p", "level": "DEFAULT", "environment": "default", "traceName": "shop",
            "tags": [], "userId": None, "sessionId": None, "metadata": {},
        }  # fmt: skip
        observations = [
            {
                **seen, "id": root, "type": "AGENT", "name": "shop", "parentObservationId": None,
                "isRootObservation": True, "startTime": at.format(0), "endTime": at.format(2),
                "input": json.dumps({"question": question}), "output": json.dumps(answer),
            },
            {
                **seen, "id": call, "type": "GENERATION", "name": "ask", "parentObservationId": root,
                "isRootObservation": False, "startTime": at.format(1), "endTime": at.format(2), "model": "gpt-4o",
                "input": json.dumps([{"role": "user", "content": question}]),
                "output": json.dumps({"role": "assistant", "content": answer}),
                "usageDetails": {"input": 5, "output": 2, "total": 7},
            },
        ]  # fmt: skip
        for one in observations:
            server.observations[trace, one["id"], one["startTime"]] = one
        scored = {"id": f"s{number}", "name": "right", "value": float(is_right), "dataType": "NUMERIC"}
        server._score({**scored, "traceId": trace, "timestamp": at.format(3)})


def test_pulled_traces_are_scored_written_and_trained_on(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    (tmp_path / "rewarding.py").write_text(REWARD)

    def arttrace(*arguments: str, **environ: str) -> str:
        done = CliRunner().invoke(cli, [*arguments, "--dir", str(data.root)], env=environ, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    with langfuse_server() as server:
        fill(server)
        assert arttrace("langfuse", "pull", **server.environ()) == "8 observations and 4 scores taken in\n"
        again = arttrace("langfuse", "pull", **server.environ())
        assert again == "8 observations and 4 scores taken in: 0 new, 12 already stored\n"
    arttrace("group", "--by", "input")
    arttrace("score", "--reward", f"{tmp_path / 'rewarding.py'}:short")
    with Store.open(data) as store:
        runs = store.summaries()
        assert {tuple(sorted({one.value for one in run.rewards})) for run in runs} == {(0.0,), (1.0,)}
        assert {len(run.rewards) for run in runs} == {2}, "the score that was pulled, and the one that was given here"
    assert len(json.loads(arttrace("export").splitlines()[0])["resourceSpans"]) > 0
    pairs = tmp_path / "pairs.jsonl"
    arttrace("dataset", "--format", "trl-preference", "-o", str(pairs))
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert sorted((row["prompt"][0]["content"], row["chosen"][0]["content"]) for row in rows) == [
        ("A pear?", "three"),
        ("A plum?", "three"),
    ]
    base_model = str(make_base_model(tmp_path / "base"))
    for method in ("sft", "dpo"):
        given = ["--dir", str(data.root), "--base-model", base_model, "--lora-rank", "8", "--method", method]
        done = CliRunner().invoke(command, given)
        assert done.exception is None, done.output
    checkpoints = Checkpoints(data.policies, "policy")
    assert [checkpoints.manifest(step).method for step in (1, 2)] == ["sft", "dpo"]
    assert all(checkpoints.manifest(step).metrics["tokens_trained"] > 0 for step in (1, 2))
    assert len(checkpoints.manifest(2).consumed) == 4
