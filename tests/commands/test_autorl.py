"""AutoRL's stages, with the real store, capture, litellm and HTTP. The policy is scripted, and its training only noted;
tests/e2e/test_autorl.py has both for real."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from scripted_server import Asked, Reply, ScriptedServer, serve_script

import arttrace
import arttrace.loop as art
from arttrace.commands import cli
from arttrace.commands.autorl import command as autorl_command
from arttrace.commands.autorl import stages, stand_in
from arttrace.commands.autorl.report import markdown, summary
from arttrace.commands.autorl.state import HeldOutScores, Plan, State, policy_name
from arttrace.loop.backend import LocalBackend
from arttrace.loop.model import TrainableModel
from arttrace.loop.scenarios import split
from arttrace.records import semconv
from arttrace.records.trajectory import Trajectory
from arttrace.rewards import judge_calls
from arttrace.store import open_store
from arttrace.system.errors import ServingError
from arttrace.system.evaluations import read_evaluations
from arttrace.system.paths import DataDir

TASK = "Answer questions about things in one sentence."


class Killed(BaseException):
    """The process ends here."""


class Site:
    """A backend that serves by script and trains nothing; what it is asked to do can end it."""

    def __init__(self, policy: ScriptedServer) -> None:
        self.policy = policy
        self.step = 0
        self.trained: list[list[str]] = []
        self.settings: dict[str, Any] = {}
        self.ends_at: list[str] = []
        self.serve()

    def serve(self) -> None:
        self.policy.headers[semconv.POLICY_VERSION_HEADER] = f"things@{self.step}"

    def reached(self, point: str) -> None:
        if point in self.ends_at:
            self.ends_at.remove(point)
            raise Killed(point)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site, judge = self, LocalBackend.judge

        async def register(backend: LocalBackend, model: TrainableModel) -> None:
            model.inference_base_url, model.backend = site.policy.url, backend

        async def judged(backend: LocalBackend, *args: Any, **kwargs: Any) -> Any:
            found = await judge(backend, *args, **kwargs)
            site.reached(f"judged {site.step + 1}")
            return found

        async def train(
            backend: LocalBackend, model: TrainableModel, groups: Sequence[art.TrajectoryGroup], **settings: Any
        ) -> list[art.TrainedStep]:
            site.trained.append([run.id for group in groups for run in group.group.trajectories])
            site.settings = settings
            site.step += 1
            site.serve()
            site.reached(f"trained {site.step}")
            return [art.TrainedStep(f"things@{site.step}", "x")]

        monkeypatch.setattr(LocalBackend, "register", register)
        monkeypatch.setattr(LocalBackend, "judge", judged)
        monkeypatch.setattr(LocalBackend, "train", train)
        monkeypatch.setattr(TrainableModel, "get_step", lambda _model: site.step)


def said(asked: Asked) -> Reply:
    """Short answers from a trained policy, others by what was said before."""
    return Reply("a word" * (1 + len(asked.users[-1]) % 3))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with serve_script(said) as policy:
        site = Site(policy)
        site.install(monkeypatch)
        yield site
    arttrace.shutdown()


COMMAND = [
    *("autorl", TASK, "--base-model", "base", "--policy", "things", "--stand-in", "--scenarios", "6"),
    *("--held-out", "2", "--group-size", "2", "--groups", "2", "--steps", "2", "--json"),
]


def autorl(data: Path, *more: str) -> Any:
    return CliRunner(catch_exceptions=False).invoke(cli, [*COMMAND, "--dir", str(data), *more])


def runs(data: Path) -> list[Trajectory]:
    with open_store(DataDir(data)) as store:
        return store.trajectories()


def test_the_model_is_looked_for_before_the_writer_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer is paid for; with the real backend, whose `arttrace serve` finds out."""

    async def written(*_: Any, **__: Any) -> None:
        pytest.fail("the writer was asked")

    monkeypatch.setattr(autorl_command, "write_scenarios", written)
    command = [*COMMAND, "--dir", str(tmp_path / "data"), "--base-model", str(tmp_path / "nowhere")]
    try:
        refused = CliRunner().invoke(cli, command).exception
    finally:
        arttrace.shutdown()
    assert isinstance(refused, ServingError)
    assert f"there is no model directory {tmp_path / 'nowhere'}" in refused.message


def test_all_stages_and_the_report(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "BESIDE_LINES_S", 0.0)
    done = autorl(tmp_path / "data", "--report-to", "wandb,mlflow", "--learning-rate", "0.5")
    assert done.exit_code == 0, done.output
    assert site.settings == {"learning_rate": 0.5, "report_to": "wandb,mlflow"}
    state = msgspec.json.decode(done.stdout, type=State)
    assert len(state.scenarios) == 6
    assert [(step.version, step.runs) for step in state.steps] == [("things@1", 4), ("things@2", 4)]
    assert all(one.before is not None and one.after is not None for one in state.comparisons)
    stored = runs(tmp_path / "data")
    held_out = [run for run in stored if "held out" in str(run.group)]
    assert len(held_out) == 4
    assert not any(run.rewards for run in held_out)
    assert {run.tags for run in held_out} == {("held-out",)}
    assert not any(run.tags for run in stored if run not in held_out)
    assert {run.policy_versions for run in held_out} == {("things@0",), ("things@2",)}
    assert {run.id for run in held_out}.isdisjoint(id for step in site.trained for id in step)
    asked = {run.id: run.arguments for run in stored}
    tasks = {one.task for one in state.scenarios}
    assert all(any(task in str(arguments) for task in tasks) for arguments in asked.values())
    evaluated = read_evaluations(DataDir(tmp_path / "data"), "things")
    assert [list(numbers) for numbers in evaluated.values()] == [["held-out/score"]] * 2
    assert [0, int((state.steps[-1].version or "@0").rpartition("@")[2])] == list(evaluated)
    report = (tmp_path / "data" / "autorl" / "things" / "report.md").read_text()
    assert stand_in.NOTE in report
    assert "| 2 | things@2 | 4 |" in report
    assert "held out, 2 scenarios" in report
    assert stand_in.NOTE in done.stderr
    assert re.findall(r"^\d of 2 steps, .+$", done.stderr, re.MULTILINE)[0].endswith(" left")


POINTS = (
    *("written", "answer 1 of things@0", "answer 6 of things@0", "judged 1", "trained 1", "judged 2", "trained 2"),
    *("answer 1 of things@2", "compared"),
)
"""In every stage: scenarios; the two held-out runs before; the four runs of a step, their scores, the step itself; the
held-out runs after; what the judge says of both."""


def test_ended_in_every_stage_it_goes_on_where_it_was(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.ends_at = list(POINTS)
    chat = inspect.unwrap(stages._chat)
    answers: Counter[int] = Counter()

    @arttrace.trajectory(name="autorl")
    async def interrupted(*given: Any) -> Any:
        answer = await chat(*given)
        answers[site.step] += 1
        try:
            site.reached(f"answer {answers[site.step]} of things@{site.step}")
        except Killed:
            signal.raise_signal(signal.SIGINT)  # other runs are still going
            await asyncio.sleep(60)
        return answer

    def then(ends: str, done: Any) -> Any:
        async def until(*given: Any) -> None:
            await done(*given)
            site.reached(ends)

        return until

    monkeypatch.setattr(stages, "_chat", interrupted)
    monkeypatch.setattr(stages.AutoRL, "_compare", then("compared", stages.AutoRL._compare))
    monkeypatch.setattr(autorl_command, "write_scenarios", then("written", autorl_command.write_scenarios))
    for number, point in enumerate(POINTS):
        assert site.ends_at == list(POINTS[number:])
        if point.startswith("answer"):
            assert autorl(tmp_path / "data").exit_code != 0
        else:
            with pytest.raises(Killed):
                autorl(tmp_path / "data")
    done = autorl(tmp_path / "data")
    assert done.exit_code == 0, done.output
    state = msgspec.json.decode(done.stdout, type=State)
    assert [(step.version, step.runs) for step in state.steps] == [("things@1", 4), ("things@2", 4)]
    assert all(one.before is not None and one.after is not None for one in state.comparisons)
    whole = [run for run in runs(tmp_path / "data") if not run.incomplete]
    assert len(whole) == 2 + 4 + 4 + 2, "nothing is run twice"
    learned = [run.id for run in whole if "held out" not in str(run.group)]
    assert sorted(id for step in site.trained for id in step) == sorted(learned), "nothing is trained on twice"


def test_a_group_that_has_some_of_its_runs_gets_those_that_are_missing(site: Site, tmp_path: Path) -> None:
    data, key = tmp_path / "data", "autorl/things/step 1/0"

    @arttrace.trajectory(name="autorl")
    async def one_run() -> None:
        async with art.Model("m", inference_base_url=site.policy.url, inference_api_key="k").openai_client() as client:
            await client.chat.completions.create(model="things", messages=[{"role": "user", "content": "x"}])

    arttrace.init(dir=data)
    asyncio.run(art.gather_trajectory_groups([art.TrajectoryGroup([one_run()], key=key)]))
    assert autorl(data, "--steps", "1").exit_code == 0
    assert Counter(run.group for run in runs(data) if "step 1" in str(run.group))[key] == 2
    assert [len(step) for step in site.trained] == [4]


def test_more_steps_of_the_same_run_and_no_other_run_by_its_name(site: Site, tmp_path: Path) -> None:
    assert autorl(tmp_path / "data").exit_code == 0
    more = autorl(tmp_path / "data", "--steps", "3")
    assert [step.version for step in msgspec.json.decode(more.stdout, type=State).steps] == [
        "things@1",
        "things@2",
        "things@3",
    ]
    other = CliRunner().invoke(
        cli,
        [
            "autorl",
            "Another task.",
            "--base-model",
            "base",
            "--policy",
            "things",
            "--stand-in",
            "--dir",
            str(tmp_path / "data"),
        ],
    )
    assert other.exit_code != 0
    assert "things was begun with another task" in str(other.exception)
    site.step = 7
    strange = CliRunner().invoke(
        cli,
        ["autorl", TASK, "--base-model", "base", "--policy", "fresh", "--stand-in", "--dir", str(tmp_path / "data")],
    )
    assert "fresh has 7 steps, 0 of this run" in str(strange.exception)


def test_without_a_key_it_says_that_there_are_stand_ins(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(cli, ["autorl", TASK, "--base-model", "base", "--dir", str(tmp_path / "data")])
    assert "needs a key" in str(done.exception)
    assert "--stand-in" in str(done.exception)


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ([], "openai/o3"),
        (["--writer", "anthropic/claude-sonnet-4-5"], "anthropic/claude-sonnet-4-5"),
        (["--judge", "gemini/gemini-2.5-pro"], "gemini/gemini-2.5-pro"),
    ],
)
def test_a_key_that_is_missing_is_reported_before_the_model_is_started(
    options: list[str], asks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def register(*_: Any) -> None:
        pytest.fail("the model was started")

    monkeypatch.setattr(LocalBackend, "register", register)
    for name in [name for name in os.environ if name.startswith(("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE"))]:
        monkeypatch.delenv(name)
    try:
        done = CliRunner().invoke(
            cli, ["autorl", TASK, "--base-model", "base", "--dir", str(tmp_path / "data"), *options]
        )
    finally:
        arttrace.shutdown()
    assert f"{asks} needs a key" in str(done.exception)
    assert "_API_KEY" in str(done.exception)
    assert "--stand-in" in str(done.exception)


@pytest.mark.parametrize(
    ("model", "params", "environment"),
    [
        ("openai/o3", {"api_base": "http://127.0.0.1:1/v1"}, {}),  # a server of one's own
        ("openai/o3", {}, {"OPENAI_API_KEY": "k"}),
        ("gemini/gemini-2.5-pro", {}, {"GOOGLE_API_KEY": "k"}),
        ("anthropic/claude-sonnet-4-5", {}, {"ANTHROPIC_AUTH_TOKEN": "k"}),
        ("bedrock/x", {}, {}),  # a profile or a role may hold it
        ("together_ai/x", {}, {}),  # litellm reads further names
        ("ollama/x", {}, {}),
        ("unknown/x", {}, {}),
    ],
)
def test_a_key_that_may_be_elsewhere_is_not_missing(
    model: str, params: dict[str, str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    judge_calls.require_key(model, params)


@pytest.mark.parametrize("fail", ["one", "all"])
def test_a_group_that_cannot_be_judged_is_left_out_unless_all_are(
    fail: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score, asked = stand_in.score, 0

    def sulking(document: dict[str, Any]) -> float:
        nonlocal asked
        asked += 1
        first = next(m["content"] for a in document["agents"] for h in a["histories"] for m in h["messages"][1:])
        return score(document) if fail == "one" and first != tasks[0] else 7.0

    tasks: list[str] = []
    monkeypatch.setattr(stand_in, "score", sulking)
    monkeypatch.setattr(judge_calls, "BACKOFF_S", 0.0)
    original = autorl_command.write_scenarios

    async def noted(state: State, *more: Any) -> None:
        await original(state, *more)
        tasks.append(split(state.scenarios, 2)[0][0].task)

    monkeypatch.setattr(autorl_command, "write_scenarios", noted)
    done = CliRunner().invoke(cli, [*COMMAND, "--steps", "1", "--dir", str(tmp_path / "data")])
    assert asked > 0
    if fail == "all":
        assert "outside 0..1" in str(done.exception)
        assert site.trained == []
    else:
        assert done.exit_code == 0, done.output
        assert [len(step) for step in site.trained] == [2]
        assert "left out what the judge could not score" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["x", "--scenarios", "5", "--held-out", "5"], "leave none to train on"), ([" "], "it is empty")],
)
def test_what_cannot_be_is_refused_first(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["autorl", *arguments, "--base-model", "b", "--dir", str(tmp_path)])
    assert done.exit_code == 2
    assert message in done.output


def test_a_name_and_a_report_of_what_was_compared() -> None:
    assert policy_name("Sort e-mails: urgent first!") == "sort-e-mails-urgent-first"
    assert policy_name("???") == "autorl"
    compared = [
        HeldOutScores("a", 0.2, 0.8, "x | y"),
        HeldOutScores("b", 0.5, 0.5),
        HeldOutScores("c", None, None, "no judge"),
    ]
    assert summary(compared) == (
        "held out, 2 scenarios: mean score 0.350 before, 0.650 after; 1 better, 0 worse, 1 equal"
    )
    assert summary([]) == "held out: nothing to compare"
    plan = Plan("Do it.", "base", "p", None, "w", "j", "r", 3, 3, 2, 2, 1, 1, 1)
    text = markdown(State(plan, comparisons=compared))
    assert "| a | 0.20 | 0.80 | x \\| y |" in text
    assert "| c | - | - | no judge |" in text
    assert autorl_command.command.name == "autorl"
