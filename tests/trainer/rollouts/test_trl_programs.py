"""A program of TRL's GRPOTrainer (rows, a tool, a reward function) is rolled out as the documentation says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from doc_blocks import ROOT, blocks
from scripted_server import Asked, Call, Reply, serve_script

from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.commands.rollout import command

PRICES = '''
def price(item):
    """The price of an item."""
    return f"price {len(item)}"

def right_price(completions, solution, **kwargs):
    return [float(one[-1]["content"] == right) for one, right in zip(completions, solution)]
'''


def _model(asked: Asked) -> Reply:
    """Asks for the price, then says it; of figs it says nothing."""
    if not asked.results:
        return Reply(calls=(Call("price", {"item": asked.users[-1]}),))
    return Reply("" if asked.users[-1] == "fig" else asked.results[-1])


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    page = ROOT / "docs" / "from-other-trainers.md"
    [program] = [one.text for one in blocks(page) if one.language == "python"]
    (tmp_path / "agent.py").write_text(program)
    (tmp_path / "prices.py").write_text(PRICES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    return tmp_path


def rolled_out(folder: Path, *rows: dict[str, Any]) -> tuple[list[Any], str]:
    (folder / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    data = folder / "data"
    with serve_script(_model) as policy:
        given = ["--dir", str(data), "--policy", policy.url, "--entry", "agent.py:answer", "--input", "train.jsonl"]
        done = CliRunner().invoke(command, [*given, "-n", "2", "--concurrency", "1"])
    with Store.open(DataDir(data), create=True) as store:
        return store.trajectories(), f"{done.output} {done.exception or ''}"


def test_rows_are_rolled_out_in_groups_and_rewarded_by_trls_function(written: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": item}], "solution": "price 4"} for item in ("plum", "fig")]
    runs, said = rolled_out(written, *rows)
    assert len({str(run.arguments) for run in runs}) == 2, said
    found = sorted((run.calls[0].call.messages[0].text, run.rewards[0].value, run.incomplete) for run in runs)
    assert found == [("fig", 0.0, ""), ("fig", 0.0, ""), ("plum", 1.0, ""), ("plum", 1.0, "")]


def test_a_column_that_the_function_does_not_take_is_refused(written: Path) -> None:
    runs, said = rolled_out(written, {"prompt": [], "solution": "4", "difficulty": 2})
    assert runs == []
    assert "difficulty" in said
