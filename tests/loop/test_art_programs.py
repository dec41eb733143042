"""Programs as ART's documentation prints them, with another import line, against a stand-in policy and judge."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
from scripted_server import Asked, Call, Reply, ScriptedServer, serve_script

import arttrace
import arttrace.loop as art
from arttrace.loop import LocalBackend
from arttrace.loop.gathering import outcome
from arttrace.loop.model import Backend
from arttrace.loop.processes.trainer_process import LoggedNumbers, TrainerProcess
from arttrace.records import semconv
from arttrace.records.group import Group
from arttrace.records.policy import PolicyStep
from arttrace.records.sequence import NotTrained
from arttrace.rewards import ruler_score_group, trajectory_reward
from arttrace.rewards.selection import never_trained_on
from arttrace.rewards.transcript import transcript
from arttrace.store import Store
from arttrace.system.errors import ArttraceError, ServingError, TrainingError
from arttrace.system.paths import DataDir
from trainer.policies.checkpoints import Checkpoints

TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


class StandInBackend:
    """Serves by the scripted policy, and keeps what it is asked to train."""

    def __init__(self, data: DataDir, url: str) -> None:
        self.data = data
        self.url = url
        self.trained: list[tuple[Any, dict[str, Any]]] = []
        self.logged: list[tuple[LoggedNumbers, list[str]]] = []

    async def register(self, model: art.TrainableModel) -> None:
        model.inference_base_url, model.backend = self.url, self

    async def log(self, model: art.TrainableModel, numbers: LoggedNumbers, report_to: Sequence[str]) -> None:
        self.logged.append((numbers, list(report_to)))

    async def delete_checkpoints(self, model: art.TrainableModel, keep_best: int = 1, keep_latest: int = 1) -> None: ...

    async def train(self, model: art.TrainableModel, groups: Any = None, **settings: Any) -> list[art.TrainedStep]:
        self.trained.append((list(groups), settings))
        return [art.TrainedStep("agent-001@1", "x")]


def answer(asked: Asked) -> Reply:
    if asked.tools and not asked.results:
        return Reply("I look.", (Call("look", {"q": asked.users[-1]}),))
    return Reply("the answer is 42")


@pytest.fixture
def policy() -> Iterator[ScriptedServer]:
    with serve_script(answer) as server:
        server.headers[semconv.POLICY_VERSION_HEADER] = "agent-001@0"
        yield server


@pytest.fixture
def backend(tmp_path: Path, policy: ScriptedServer) -> Iterator[StandInBackend]:
    arttrace.init(dir=tmp_path)
    backend: Backend = StandInBackend(DataDir(tmp_path), policy.url)
    yield backend
    arttrace.shutdown()


@pytest.fixture
def model() -> art.TrainableModel:
    return art.TrainableModel(name="agent-001", project="my-agentic-task", base_model="Qwen/Qwen2.5-14B-Instruct")


async def rollout(model: art.Model, scenario: str, reward: float | None = None) -> art.Trajectory:
    client = model.openai_client()
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": scenario}],
        tools=[TOOL],
        metadata={"scenario": scenario},
    )
    while not trajectory.choices() or trajectory.choices()[-1].message.tool_calls:
        completion = await client.chat.completions.create(
            model=model.name, messages=trajectory.messages(), tools=trajectory.tools
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        for call in choice.message.tool_calls or []:
            trajectory.messages_and_choices.append({"role": "tool", "tool_call_id": call.id, "content": "found"})
    trajectory.reward = reward
    trajectory.metrics["turns"] = len(trajectory.choices())
    return trajectory


async def test_train_with_ruler(model: art.TrainableModel, backend: StandInBackend, judge_server: Any) -> None:
    await model.register(backend)
    judge = {"api_base": judge_server.url}
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(model, scenario) for _ in range(2)) for scenario in ("6 x 7?", "5 x 7?")),
        after_each=lambda group: ruler_score_group(group, "openai/o3", judge, swallow_exceptions=True),
    )
    await model.train(groups)
    assert len(groups) == 2
    [(trained, settings)] = backend.trained
    assert (trained, settings) == (groups, {})
    with Store.open(backend.data) as store:
        runs = list(store.trajectories())
    assert len(runs) == 4
    for run in runs:
        assert (run.incomplete, len(run.calls), run.result) == ("", 2, "the answer is 42")
        assert trajectory_reward(run) is not None
        assert (run.metadata["metrics"], run.metadata["scenario"]) == ({"turns": 2}, run.calls[0].call.messages[1].text)
        assert run.calls[1].call.messages[-1].role == "tool"


async def test_rewards_by_hand_and_a_config(model: art.TrainableModel, backend: StandInBackend) -> None:
    await model.register(backend)
    groups = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(model, "6 x 7?", reward) for reward in (0.0, 1.0))], pbar_desc="gather"
    )
    for one in groups[0]:
        assert isinstance(one, art.Trajectory)
        one.reward = (one.reward or 0.0) + 0.5
    await model.train(groups, config=art.TrainConfig(learning_rate=1e-5, beta=0.1))
    assert backend.trained[0][1] == {"learning_rate": 1e-5, "kl_weight": 0.1}
    with Store.open(backend.data) as store:
        stored = {run.id: trajectory_reward(run) for run in store.trajectories()}
    assert sorted(stored.values()) == [0.5, 1.5]
    assert {run.id: trajectory_reward(run) for run in groups[0].captured} == stored


async def test_a_judge_that_fails_leaves_its_group_out(model: art.TrainableModel, backend: StandInBackend) -> None:
    await model.register(backend)
    dead = {"api_base": "http://127.0.0.1:9/v1", "api_key": "x", "max_retries": 0}
    groups = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(model, "6 x 7?") for _ in range(2))],
        after_each=lambda group: ruler_score_group(group, "openai/o3", dead, swallow_exceptions=True),
    )
    assert groups == []


async def test_errors_that_say_what_to_do(
    model: art.TrainableModel, backend: StandInBackend, policy: ScriptedServer
) -> None:
    with pytest.raises(ServingError, match="is not registered"):
        model.openai_client()
    with pytest.raises(ServingError, match="is not registered"):
        await model.train([])
    await model.register(backend)
    [alone] = await art.gather_trajectory_groups([art.TrajectoryGroup([rollout(model, "6 x 7?", 1.0)])])
    with pytest.raises(TrainingError, match="no group has two runs"):
        await model.train([alone])

    async def elsewhere() -> art.Trajectory:
        async with openai.AsyncOpenAI(base_url=policy.url, api_key="any") as client:
            completion = await client.chat.completions.create(model="gpt-4o", messages=[])
        return art.Trajectory([completion.choices[0]], reward=1.0)

    policy.headers.clear()
    [foreign] = await art.gather_trajectory_groups([art.TrajectoryGroup(elsewhere() for _ in range(2))])
    with pytest.raises(TrainingError, match="none of these runs was answered by agent-001: they asked gpt-4o") as shown:
        await model.train([foreign])
    assert "ARTTRACE_CAPTURE_HTTP=1" in str(shown.value.hint)

    async def silent() -> art.Trajectory:
        return art.Trajectory([{"role": "user", "content": "x"}], reward=1.0)

    with pytest.raises(ArttraceError, match="none was captured"):
        await art.gather_trajectory_groups([art.TrajectoryGroup(silent() for _ in range(2))])
    with pytest.raises(ArttraceError, match="not a finite number"):
        await art.gather_trajectory_groups([art.TrajectoryGroup(rollout(model, "x", float("nan")) for _ in range(2))])
    with pytest.raises(ServingError, match="does not report its step"):
        model.get_step()


@pytest.mark.parametrize(
    ("bound", "ends"), [(None, False), (2, False), (1, True), (0.6, False), (0.4, True), (0, True)]
)
async def test_so_many_may_raise(
    bound: float | None, ends: bool, model: art.TrainableModel, backend: StandInBackend
) -> None:
    await model.register(backend)

    async def fails() -> art.Trajectory:
        raise LookupError("no such mail")

    group = art.TrajectoryGroup([fails(), rollout(model, "a", 1.0), fails(), rollout(model, "b", 0.0)])
    gathering = art.gather_trajectory_groups([group], max_exceptions=bound)
    if ends:
        with pytest.raises(ArttraceError, match=r"of 4 rollouts raised, more than max_exceptions=.*no such mail"):
            await gathering
    else:
        [group] = await gathering
        assert [type(one).__name__ for one in group.exceptions] == ["LookupError"] * 2
        assert len(group.trajectories) == 2


def model_that_is_logged(directory: Path) -> art.Model:
    model = art.Model("o3")
    model.backend = StandInBackend(DataDir(directory), "")
    return model


async def test_ready_made_trajectories_are_judged_and_kept_from_a_local_trainer(
    model: art.TrainableModel, judge_server: Any, tmp_path: Path
) -> None:
    arttrace.init(dir=tmp_path)
    said = [[{"role": "user", "content": "6?"}, {"role": "assistant", "content": text}] for text in ("6", "7")]
    judge_server.script.append(
        lambda request: judge_server.says(
            json.dumps({"scores": [{**one, "score": i / 4} for i, one in enumerate(judge_server.scores(request), 1)]})
        )(request)
    )
    trajectories = [art.Trajectory(messages) for messages in said]
    judged = await art.ruler_score_group(
        trajectories, model="openai/o3", extra_litellm_params={"api_base": judge_server.url}
    )
    assert judged is not None
    assert sorted(one.reward or 0.0 for one in judged) == [0.25, 0.5]
    assert await model_that_is_logged(tmp_path).log([judged]) == {"val/runs": 2.0, "val/reward": 0.375}
    assert {one.id for one in trajectories} == {""}  # the server that records a call names it, nobody else
    with pytest.raises(TrainingError, match="put into a group ready-made were not captured"):
        await LocalBackend(tmp_path).train(model, [judged])


async def test_log_keeps_what_nothing_is_trained_on(
    model: art.TrainableModel, backend: StandInBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServingError, match="is not registered"):
        await model.log([])
    await model.register(backend)
    groups = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(model, "6 x 7?", reward) for reward in (0.0, 0.5))]
    )
    means = await model.log([*groups, art.Trajectory(reward=1.0)], split="test", step=3)
    assert means == {"test/runs": 3.0, "test/reward": 0.5, "test/turns": 2.0}
    [line] = (backend.data.root / "logs" / "agent-001.jsonl").read_text().splitlines()
    assert {**json.loads(line), "time": 0} == {"step": 3, "time": 0, **means}
    assert backend.logged == []
    await model.log(groups, step=4, report_to="wandb, tensorboard")
    numbers = {"val/runs": 2.0, "val/reward": 0.25, "val/turns": 2.0}
    assert backend.logged == [(LoggedNumbers(4, numbers), ["wandb", "tensorboard"])]
    with pytest.raises(ArttraceError, match="no run to log"):
        await model.log([], step=0)
    with pytest.raises(ArttraceError, match="the reward of a run is nan, not a finite number"):
        await model.log([art.Trajectory(reward=float("nan"))], step=0)


async def test_runs_that_are_logged_are_held_out_but_for_those_of_training(
    model: art.TrainableModel, backend: StandInBackend, tmp_path: Path
) -> None:
    """As a batch that measures the model, by whatever name: a daemon on the same directory trained on them."""
    await model.register(backend)

    async def gathered(question: str) -> art.TrajectoryGroup:
        made = (rollout(model, question, reward) for reward in (0.0, 1.0))
        return (await art.gather_trajectory_groups([art.TrajectoryGroup(made)]))[0]

    trained, by_default, tested, alone = [await gathered(name) for name in ("1?", "2?", "3?", "4?")]
    [one, other], run = alone.built, alone.captured[0]
    assert run.id in (one.id, other.id)
    await model.log([trained], split="train", step=1)
    for _ in range(2):  # a run is marked once
        await model.log([by_default], step=1)
        await model.log([tested], split="test", step=1)
        await model.log([next(built for built in alone.built if built.id != run.id), run], step=1)
    assert [one.tags for group in (by_default, tested) for one in group.captured] == [("held-out",)] * 4
    with Store.open(DataDir(tmp_path)) as store:
        runs = {one.id: one for one in store.trajectories()}
        tags = dict(store.sql("SELECT id, tags FROM trajectories")[1])
        marks = store.sql("SELECT count(*) FROM spans WHERE name = 'held out'")[1]
    assert {runs[one.id].tags for one in trained.captured} == {()}
    measured = [runs[one.id] for group in (by_default, tested, alone) for one in group.captured]
    assert {never_trained_on(one) for one in measured} == {NotTrained.HELD_OUT}
    assert ({one.incomplete for one in runs.values()}, {len(one.agents) for one in runs.values()}) == ({""}, {1})
    assert ({tuple(tags[one.id]) for one in measured}, marks) == ({("held-out",)}, [(6,)])
    before = {one.id: one for group in (by_default, alone) for one in group.captured}
    assert all(runs[id].end_ns == one.end_ns for id, one in before.items())


async def test_versions_are_forked_and_deleted_by_the_command(
    tmp_path: Path, model: art.TrainableModel, capfd: pytest.CaptureFixture[str]
) -> None:
    async with LocalBackend(tmp_path) as backend:
        with pytest.raises(TrainingError, match="agent-000@3"):
            await backend.fork(model, from_version="agent-000@3")
        manifest = PolicyStep(policy="agent-000", step=4, adapter="", base_model="/models/Qwen3-0.6B", time_ns=1)
        Checkpoints(backend.data.policies, "agent-000").write(4, lambda directory: None, manifest)
        with pytest.raises(TrainingError, match=r"agent-000@4 is a LoRA on /models/Qwen3-0.6B, not on Qwen/Qwen2.5-14"):
            await backend.fork(model, from_version="agent-000@4")
        await backend.fork(art.TrainableModel("agent-002", "Qwen/Qwen3-0.6B"), from_version="agent-000@4")
        model.inference_base_url, model.backend = "http://127.0.0.1:9/v1", backend
        await model.delete_checkpoints(keep_best=2)
    assert "pruned: none" in capfd.readouterr().err
    async with art.ServerBackend("http://127.0.0.1:9") as server:
        with pytest.raises(ServingError, match="lie on the server") as there:
            await server.delete_checkpoints(model, keep_latest=2)
    assert "prune agent-001 --keep-best 1 --keep-latest 2" in str(there.value.hint)


async def test_a_decorated_rollout_is_the_same_run(model: art.TrainableModel, backend: StandInBackend) -> None:
    await model.register(backend)

    @arttrace.trajectory(name="solver")
    async def decorated(question: str) -> str:
        answered = await model.openai_client().chat.completions.create(
            model=model.inference_name, messages=[{"role": "user", "content": question}]
        )
        return str(answered.choices[0].message.content)

    async def around(question: str) -> str:
        return await decorated(question)

    [group] = await art.gather_trajectory_groups([art.TrajectoryGroup([decorated("a"), around("b")])])
    named = {run.calls[0].call.messages[0].text: [agent.name for agent in run.agents] for run in group.trajectories}
    assert named == {"a": ["solver"], "b": ["around", "solver"]}
    assert group.uncaptured == 0


async def test_a_decorated_rollout_says_of_its_run_what_another_one_says(
    model: art.TrainableModel, backend: StandInBackend
) -> None:
    """What it returns was its result as a whole: a judge was shown the reward, and metadata with the truth."""
    await model.register(backend)
    decorated = arttrace.trajectory(name="solver")(rollout)
    group = await art.gather_trajectories([decorated(model, "6 x 7?", 0.25), rollout(model, "6 x 7?", 0.25)])
    for run in group.captured:
        assert run.result == "the answer is 42"
        assert run.metadata == {"scenario": "6 x 7?", "metrics": {"turns": 2}}
        assert "0.25" not in str(transcript(run))


def test_messages_of_choices_go_back_as_they_came() -> None:
    said = {
        "reasoning": "r",
        "reasoning_content": "r",
        "reasoning_details": [{"type": "reasoning.text", "text": "r", "signature": "s"}],
        "thinking_blocks": [{"type": "thinking", "thinking": "r", "signature": "s"}],
    }
    message = {"role": "assistant", "content": "a", **said, "refusal": None, "audio": None}
    choice = openai.types.chat.chat_completion.Choice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": message}
    )
    trajectory = art.Trajectory(
        [{"role": "user", "content": "q"}, choice], additional_histories=[art.History([choice])]
    )
    assert trajectory.messages()[1] == {"role": "assistant", "content": "a", **said}
    assert trajectory.choices() == [choice, choice]
    assert trajectory.record() is None
    with pytest.raises(ArttraceError, match="neither a message nor a choice"):
        art.Trajectory(["text"]).messages()


def test_a_whole_answer_in_the_place_of_its_choice_is_refused() -> None:
    completion = openai.types.chat.ChatCompletion.model_validate(
        {"id": "c1", "object": "chat.completion", "created": 0, "model": "m", "choices": []}
    )
    with pytest.raises(ArttraceError, match="a ChatCompletion is neither a message nor a choice") as shown:
        art.Trajectory([{"role": "user", "content": "q"}, completion]).messages()
    assert "completion.choices[0]" in str(shown.value.hint)


async def test_a_judge_gives_the_trajectories_their_rewards(
    model: art.TrainableModel, backend: StandInBackend, judge_server: Any
) -> None:
    await model.register(backend)
    [judged] = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(model, "6 x 7?", reward) for reward in (None, None, 0.7))],
        after_each=lambda group: ruler_score_group(group, "openai/o3", {"api_base": judge_server.url}),
    )
    scores = {run.id: [one.value for one in run.rewards if one.source == "judge"] for run in judged.captured}
    assert [[one.reward] for one in judged.trajectories[:2]] == [scores[one.id] for one in judged.trajectories[:2]]
    assert judged.trajectories[2].reward == 0.7
    await model.train([judged])
    assert sorted(len(run.rewards) for run in judged.captured) == [1, 1, 2]


async def test_rewards_that_after_each_sets_are_stored(model: art.TrainableModel, backend: StandInBackend) -> None:
    """`arttrace train` and `ls` find them, whether or not this program trains."""
    await model.register(backend)

    def scored(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        for rank, one in enumerate(group):
            one.reward = float(rank)
        return group

    await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(model, "6 x 7?") for _ in range(2))], after_each=scored
    )
    with Store.open(backend.data) as store:
        assert sorted(trajectory_reward(run) or 0.0 for run in store.trajectories()) == [0.0, 1.0]


async def test_a_judge_does_not_replace_the_rewards_of_runs_that_are_grouped_anew(
    model: art.TrainableModel, backend: StandInBackend, judge_server: Any
) -> None:
    await model.register(backend)
    gathered = await art.gather_trajectories(rollout(model, "6 x 7?", reward) for reward in (0.7, None))
    again = art.TrajectoryGroup(gathered.trajectories)
    await ruler_score_group(again, "openai/o3", {"api_base": judge_server.url})
    await model.train([again])
    with Store.open(backend.data) as store:
        runs = {run.id: {one.source: one.value for one in run.rewards} for run in store.trajectories()}
    kept = [runs[one.id] for one in again]
    assert [one.reward for one in again] == [0.7, kept[1]["judge"]]
    assert [sorted(one) for one in kept] == [["code", "judge"], ["judge"]]


async def test_half_an_emoji_in_a_trajectory_is_judged(judge_server: Any) -> None:
    """As in plain conversations: a model that is cut within one answers it."""
    said = [[{"role": "user", "content": "Wave"}, {"role": "assistant", "content": text}] for text in ("\ud83d", "no")]
    tool = {"type": "function", "function": {"name": "wave", "description": "\ud83d"}}
    judged = await art.ruler_score_group(
        [art.Trajectory(messages, tools=[tool]) for messages in said],
        model="openai/o3",
        extra_litellm_params={"api_base": judge_server.url},
    )
    assert judged is not None
    assert None not in [one.reward for one in judged]


async def test_that_a_judge_does_not_replace_rewards_is_said_once(
    model: art.TrainableModel,
    backend: StandInBackend,
    judge_server: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ART's trajectories have a reward from the start, which its judge replaces."""
    monkeypatch.setattr(outcome, "_warned_of_two_rewards", False)
    await model.register(backend)
    judge = {"api_base": judge_server.url}
    for rewards in ((None, None), (0.0, 0.0, None), (0.0, 0.0)):
        await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(model, "6 x 7?", reward) for reward in rewards)],
            after_each=lambda group: ruler_score_group(group, "openai/o3", judge),
        )
    assert [one for one in caplog.messages if "count half each" in one] == [
        "2 of 3 trajectories had a reward before they were judged: it and the judge's score count half each. Leave "
        "reward at None where the judge alone shall count."
    ]


async def test_trajectories_may_be_grouped_anew(
    model: art.TrainableModel, backend: StandInBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As self-play does, whose rollouts give a trajectory to each of two groups."""
    ordered: list[Group] = []

    async def order(trainer: TrainerProcess, groups: Sequence[Group], settings: Any) -> list[art.TrainedStep]:
        ordered.extend(groups)
        return [art.TrainedStep("agent-001@1", "x")]

    monkeypatch.setattr(TrainerProcess, "train", order)
    await model.register(backend)
    gathered = await art.gather_trajectories(rollout(model, "6 x 7?", float(number)) for number in range(4))
    low, high = art.TrajectoryGroup(list(gathered)[:2]), art.TrajectoryGroup(list(gathered)[2:])
    high.trajectories[0].reward = 0.5
    model.backend = LocalBackend(backend.data.root)
    await model.train([low, high])
    assert [[run.id for run in group.trajectories] for group in ordered] == [[one.id for one in g] for g in (low, high)]
    assert [[trajectory_reward(run) for run in group.trajectories] for group in ordered] == [[0.0, 1.0], [0.5, 3.0]]


async def test_a_prompted_model_beside_the_policy(
    model: art.TrainableModel, backend: StandInBackend, policy: ScriptedServer
) -> None:
    prompted = art.Model(
        name="gpt",
        project="my-agentic-task",
        config={"turns": 2},
        inference_model_name="gpt-4.1",
        inference_base_url=policy.url,
        inference_api_key="k",
    )
    assert (prompted.get_inference_name(), prompted.trainable, model.trainable) == ("gpt-4.1", False, True)
    assert isinstance(model, art.Model)
    await model.register(backend)
    assert model.inference_base_url == policy.url
    with pytest.raises(ServingError, match="gpt is not registered"):
        await prompted.log([])
    await prompted.register(backend)
    group = await art.gather_trajectories(rollout(prompted, "6 x 7?", reward) for reward in (0.0, 1.0))
    assert {call.call.request_model for run in group.captured for call in run.calls} == {"gpt"}
    means = await prompted.log(group, split="val")
    assert means == {"val/runs": 2.0, "val/reward": 0.5, "val/turns": 2.0}
    assert json.loads((backend.data.root / "logs" / "gpt.jsonl").read_text())["step"] == 0


def test_a_model_is_annotated_with_the_class_of_its_config() -> None:
    """As ART's e-mail agent and its game of tic-tac-toe annotate their rollouts."""

    @dataclass
    class Config:
        turns: int = 3

    def turns(model: art.Model[Config]) -> int:
        return model.config.turns

    models: list[art.Model[Config]] = [
        art.Model("gpt", config=Config(5)),
        art.TrainableModel("p", "b", config=Config()),
    ]
    assert [turns(one) for one in models] == [5, 3]
    assert art.Model[Config]("gpt", config=Config()).config == Config()
    assert art.TrainableModel[Config]("p", "b", config=Config()).config == Config()
    assert [type(one) for one in models] == [art.Model, art.TrainableModel]


async def test_litellm_is_captured(
    model: art.TrainableModel, backend: StandInBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ART's e-mail agent asks its model."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    await model.register(backend)

    async def asking(scenario: str) -> art.Trajectory:
        messages = [{"role": "user", "content": scenario}]
        asked = {"model": f"hosted_vllm/{model.name}", "base_url": model.inference_base_url, "api_key": "k"}
        answered = await litellm.acompletion(messages=messages, **asked)
        return art.Trajectory([*messages, answered.choices[0]], reward=1.0)

    group = await art.gather_trajectories(map(asking, "ab"))
    assert [[call.call.request_model for call in run.calls] for run in group.captured] == [["agent-001"]] * 2
    assert group.trajectories[0].messages()[-1]["content"] == "the answer is 42"


async def test_decorated_runs_are_logged_too(model: art.TrainableModel, backend: StandInBackend) -> None:
    await model.register(backend)

    @arttrace.trajectory
    async def decorated(reward: float) -> None:
        arttrace.reward(reward)

    group = await art.gather_trajectories(map(decorated, (0.0, 1.0)))
    assert await model.log(group, step=1) == await model.log([group], step=1) == {"val/runs": 2.0, "val/reward": 0.5}


async def test_the_step_may_be_awaited(model: art.TrainableModel, backend: StandInBackend) -> None:
    class Status(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"step": 3}')

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Status) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        await model.register(backend)
        model.inference_base_url = f"http://127.0.0.1:{server.server_port}/v1"
        assert list(range(await model.get_step(), 5)) == [3, 4]
        assert model.get_step() == 3
        server.shutdown()


async def test_a_client_for_each_rollout_reads_certificates_once(
    model: art.TrainableModel, backend: StandInBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await model.register(backend)
    await model.openai_client().close()

    def reads(*_: object, **__: object) -> None:
        raise AssertionError("certificates are read again, which takes 20 ms")

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", reads)
    for _ in range(3):
        async with model.openai_client() as client:
            assert (await client.chat.completions.create(model=model.name, messages=[])).choices


async def test_seconds_are_metrics() -> None:
    one = art.Trajectory()
    for _ in range(2):
        async with one.track_duration("llm"):
            await asyncio.sleep(0.01)
    assert one.finish() is one
    assert 0.02 <= one.metrics["llm_duration"] <= one.metrics["duration"]


def test_retry_of_a_plain_function_warns(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([LookupError("busy"), "found"])

    @art.retry(max_attempts=2, delay=0.0)
    def look(word: str) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return f"{word} {answer}"

    assert look("it is") == "it is found"
    assert [record.getMessage() for record in caplog.records if record.name == "arttrace.loop"] == [
        "look raised in attempt 1 of 2: LookupError('busy')"
    ]


async def test_retry_tries_again_and_raises_the_last() -> None:
    tried: list[tuple[str, int]] = []
    calls = 0

    @art.retry(max_attempts=3, delay=0.0, exceptions=(LookupError,), on_retry=lambda e, n: tried.append((str(e), n)))
    async def fails(until: int, error: type[Exception] = LookupError) -> int:
        nonlocal calls
        calls += 1
        if calls < until:
            raise error(str(calls))
        return calls

    assert await fails(3) == 3
    assert tried == [("1", 1), ("2", 2)]
    calls = 0
    with pytest.raises(LookupError, match="3"):
        await fails(9)
    calls = 0
    with pytest.raises(ZeroDivisionError, match="1"):
        await fails(9, ZeroDivisionError)
    with pytest.raises(ValueError, match="below 1"):
        art.retry(max_attempts=0)


async def test_limit_concurrency_holds_for_each_key() -> None:
    running: dict[str, int] = {}
    most: dict[str, int] = {}

    @art.limit_concurrency(2, derive_key=lambda key: key)
    async def counted(key: str) -> None:
        running[key] = running.get(key, 0) + 1
        most[key] = max(most.get(key, 0), running[key])
        for _ in range(5):
            await asyncio.sleep(0)
        running[key] -= 1

    await asyncio.gather(*(counted(key) for key in "ab" * 6))
    assert most == {"a": 2, "b": 2}
    with pytest.raises(ValueError, match="below 1"):
        art.limit_concurrency(0)


async def test_one_client_asks_and_submits_whether_it_is_awaited_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """ART's documentation asks by `client.chat.completions.create`, and submits by `await` with the same client."""

    async def submit(*_: Any) -> list[art.TrainedStep]:
        return [art.TrainedStep("agent-001@1", "x")]

    monkeypatch.setattr("arttrace.loop.remote.clients.submit", submit)
    with art.Client(base_url="http://127.0.0.1:9/v1") as client:
        done = client.submit_trajectories([])
        assert done == await client.submit_trajectories([]) == [art.TrainedStep("agent-001@1", "x")]
