"""The demo's phases that need no engine."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from arttrace.records.policy import PolicyStep
from arttrace.system.paths import DataDir
from trainer.demo.pipeline import DemoSettings, _Demo, is_sure, program_as_typed
from trainer.demo.report import markdown
from trainer.demo.screen import Screen


def test_a_demo_in_which_no_round_taught_anything_still_closes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        demo = _Demo(DemoSettings(DataDir(tmp_path), 1, 1), Screen(), stack)
        demo._began = 0.0
        demo._close(tmp_path / "base")
    assert (tmp_path / "report.md").is_file()
    assert "arttrace ls" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "on_path", "shown"),
    [
        (".venv/bin/arttrace", False, ".venv/bin/arttrace"),
        (".venv/bin/arttrace", True, "arttrace"),
        ("/usr/lib/python3/some_test.py", False, "arttrace"),
    ],
)
def test_the_commands_to_try_next_can_be_copied(
    typed: str, on_path: bool, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_path:
        (tmp_path / "arttrace").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [typed, "demo"])
    assert program_as_typed() == shown


def test_the_report_adds_up_seconds_and_nothing_else() -> None:
    metrics = {"reward_mean": 0.5, "reward_spread": 1.0, "tokens_trained": 9.0, "loss": 0.0, "tokens_per_second": 900.0}
    step = PolicyStep("policy", 1, "", metrics={**metrics, "rollout_s": 2.0, "step_s": 1.25})
    assert "| 1 | 0.500 | 1.000 | 9 | 0.0000 | 3.2 |" in markdown([step], {}, [])


@pytest.mark.parametrize(
    ("rewards", "sure"),
    [
        ([], False),
        ([1.0] * 4, False),
        ([0.5, 0.98, 1.0, 1.0, 0.98, 1.0], True),
        ([1.0, 1.0, 1.0, 0.98, 0.96], False),
        ([*[1.0] * 5, 0.9], False),
    ],
)
def test_the_demo_is_sure_when_the_last_five_steps_were_rewarded_fully_but_for_a_hundredth(
    rewards: list[float], sure: bool
) -> None:
    steps = [PolicyStep("policy", n, "", metrics={"reward_mean": reward}) for n, reward in enumerate(rewards, 1)]
    assert is_sure(steps) == sure
