"""docs/reference/json.md has every field that the commands print with --json, and no other."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from doc_blocks import ROOT
from msgspec.structs import replace
from simulated_agent import T0, research_run

from arttrace.commands import cli
from arttrace.commands.autorl.state import HeldOutScores, Plan, State, TrainingStep
from arttrace.loop.scenarios import Scenario
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.reward import Reward
from arttrace.rewards.judge_check import JudgeCheck
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.console.events import Events
from arttrace.views.langfuse.pull import Pulled
from arttrace.views.langfuse.push import Pushed
from trainer.commands.rollout import _show_plan
from trainer.commands.train.offline import _print_plan
from trainer.commands.train.report import print_step
from trainer.daemon.state import DaemonState, write_state
from trainer.gateway.status import ServingFile
from trainer.offline.plan import OfflinePlan
from trainer.learner import LearnerConfig
from trainer.policies.checkpoints import Checkpoints
from trainer.rollouts.replay import RecordedInput, ReplayPlan
from trainer.rollouts.report import Outcome, Report

PAGE = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
COMMANDS = {
    "ls": "ls",
    "show": "show one",
    "diff": "diff one two",
    "stats": "stats",
    "tail": "",
    "top": "top",
    "group": "group --by input --dry-run",
    "doctor": "doctor",
    "prune": "prune --older-than 0s --dry-run",
    "score --dry-run": "score --judge openai/stand-in --dry-run",
    "policies": "policies",
    "status": "status",
    "train --print-config": "train --print-config",
}
NOT_TABLES = {"sql", "policies compare"}


def documented(command: str) -> set[str]:
    """The fields in the first column of a command's table, `a.b` for those of objects in a field."""
    [section] = re.findall(rf"^## `arttrace {re.escape(command)}`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def fields(value: Any, levels: set[str], prefix: str = "") -> set[str]:
    """Every field of an object, or of each in a list; below a field where the page goes below it."""
    found: set[str] = set()
    for one in value if isinstance(value, list) else [value]:
        for name, inner in one.items() if isinstance(one, dict) else ():
            path = f"{prefix}{name}"
            found.add(path)
            if any(level.startswith(f"{path}.") for level in levels):
                found |= fields(inner, levels, f"{path}.")
    return found


STEP = PolicyStep("policy", 1, "", consumed=(Consumed("one", "r"),), metrics={"reward_mean": 0.5})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("json")
    now = time.time_ns() - T0
    running = [replace(span, start_ns=span.start_ns + now) for span in research_run("three", "s")[:-1]]
    data = DataDir(root)
    checkpoints = Checkpoints(data.policies, "policy")
    checkpoints.write(1, lambda folder: (folder / "adapter_model.safetensors").touch(), STEP)
    write_state(checkpoints.directory, DaemonState(policy="policy"))
    with Store.open(data, create=True) as store:
        store.append([*research_run("one", "s"), *research_run("two", "t"), *research_run("four", "s"), *running])
        store.append([Reward(id="r", trajectory_id="two", value=0.5)])
    return root


def invoked(root: Path, *arguments: str) -> Any:
    """What a command prints, as JSON."""
    done = CliRunner(catch_exceptions=False).invoke(cli, [*arguments, "--json", "--dir", str(root)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def check(command: str, printed: Any) -> None:
    assert printed
    shown = documented(command)
    assert fields(printed, shown) == shown


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_has_every_field(root: Path, command: str) -> None:
    if command == "tail":
        with Store.open(DataDir(root)) as store:
            check(command, msgspec.to_builtins(Events(store, 0).new()))
    else:
        check(command, invoked(root, *COMMANDS[command].split()))


def test_scores_by_judge_and_by_function(root: Path, tmp_path: Path, judge_server: Any) -> None:
    judge = ("--judge", "openai/stand-in", "--judge-base-url", judge_server.url)
    scored = invoked(root, "score", *judge)
    assert scored["scored_now"] == 1
    shown = documented("score")
    assert fields(scored, shown) == shown
    (tmp_path / "mine.py").write_text("def worth(run):\n    return 1.0\n")
    check("score --reward", invoked(root, "score", "--reward", f"{tmp_path / 'mine.py'}:worth"))


def test_what_comes_in_and_goes_out(root: Path, tmp_path: Path) -> None:
    check("dataset", invoked(root, "dataset", "--format", "trl-sft", "--output", str(tmp_path / "rows.jsonl")))
    talk = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "because"}]
    (tmp_path / "runs.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    check("import", invoked(tmp_path / "other", "import", str(tmp_path / "runs.jsonl")))


def test_what_training_would_do_and_did(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check("train --dry-run", invoked(root, "train", "--dry-run"))
    checkpoints = Checkpoints(DataDir(root).policies, "policy")
    _print_plan(checkpoints, OfflinePlan("sft"), as_json=True)
    check("train --method sft --dry-run", json.loads(capsys.readouterr().out))
    print_step(STEP, as_json=True)
    check("train", json.loads(capsys.readouterr().out))
    arguments = {"question": "why?"}
    _show_plan(ReplayPlan((RecordedInput("agent:answer", arguments, "g"),)), "agent:answer", 2, True)
    check("rollout --dry-run", json.loads(capsys.readouterr().out))


MEASURED = Outcome("t", "g", None, "complete", "", 1.0, ("policy@3",), reward=0.5, held_out=True)


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("judge-check", JudgeCheck(1, 2, 3, 0, None, None, 0, None, None, None)),
        ("langfuse push", Pushed()),
        ("langfuse pull", Pulled()),
        ("serve", ServingFile("http://127.0.0.1:8000", "model", "policy", 1, "vllm.log")),
        (
            "rollout",
            Report((MEASURED,), 1, 1.0, False, None).document("agent:answer", {}),
        ),
        (
            "autorl",
            State(
                Plan("task", "model", "policy", None, "writer", "judge", "rubric", 1, 1, 1, 1, 1, 1, 1),
                [Scenario("task")],
                [TrainingStep(1, "policy@1", 1, 0.5)],
                1,
                [HeldOutScores("task", 0.1, 0.2)],
            ),
        ),
    ],
)
def test_what_is_printed_as_it_is_has_every_field(command: str, printed: Any) -> None:
    check(command, msgspec.to_builtins(printed))


def commands_with_json(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if any("--json" in option.opts for option in command.params):
        yield " ".join(path)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) is not None:
                yield from commands_with_json(found, (*path, name))


def test_the_page_has_every_command_that_prints_json() -> None:
    sections = re.findall(r"^## `arttrace ([^`]+)`", PAGE, re.MULTILINE)
    assert {one.partition(" --")[0] for one in sections} == set(commands_with_json(cli))
    assert len(set(sections)) == len(sections)
    assert all(documented(one) for one in sections if one not in NOT_TABLES)
