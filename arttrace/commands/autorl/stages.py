"""The stages of AutoRL: write scenarios, run the held-out ones, train step by step, run them again, compare.

Each stage first looks up what is done already, in the state and in the store, and does the rest.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from arttrace.capture.decorators import trajectory
from arttrace.commands.autorl.state import HeldOutScores, State, StateFile, TrainingStep
from arttrace.commands.shared.progress import BESIDE_LINES_S, Progress
from arttrace.loop.gathering.gather import gather_trajectory_groups
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.model import TrainableModel
from arttrace.loop.scenarios import Scenario, generate_scenarios, split
from arttrace.mcp import Offer, rollout
from arttrace.mcp import generate_scenarios as generate_for_server
from arttrace.records import semconv
from arttrace.records.group import Group
from arttrace.records.reward import Judgement
from arttrace.records.values.units import quantity
from arttrace.rewards import score_groups, trajectory_reward
from arttrace.rewards.judge_errors import JudgeUnavailable
from arttrace.rewards.selection import judgeable
from arttrace.system.errors import JudgeError, TrainingError
from arttrace.system.evaluations import add_evaluation
from arttrace.system.paths import DataDir

JudgeParams = dict[str, Any]


class Judges(Protocol):
    """What the stages need of a backend beside the model's own methods: `LocalBackend` has it."""

    data: DataDir

    async def judge(
        self,
        groups: Sequence[TrajectoryGroup],
        judge_model: str = ...,
        extra_litellm_params: JudgeParams | None = None,
        rubric: str = ...,
    ) -> list[Judgement]: ...


class AutoRL:
    """One run of AutoRL on a registered model.

    Args:
        state: What was done so far; updated by each stage.
        file: The file in which the state is kept.
        model: The registered policy.
        backend: Judges and trains.
        params: Further arguments of litellm's `acompletion` for judge and writer.
        settings: Options of `arttrace train` by their names.
        say: Prints a line.
    """

    def __init__(
        self,
        state: State,
        file: StateFile,
        model: TrainableModel,
        backend: Judges,
        params: JudgeParams,
        settings: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._state, self._file, self._model, self._backend = state, file, model, backend
        self._params, self._settings, self._say = params, settings, say
        self._plan = state.plan

    async def train(self) -> None:
        """Everything but the scenarios, which `write_scenarios` wrote.

        Raises:
            TrainingError: The policy was trained by something else, or a step failed.
            JudgeError: The judge cannot be asked.
            ArttraceError: All rollouts failed.
        """
        training, held_out = split(self._state.scenarios, self._plan.held_out)
        await self._adopt(self._model.get_step(), training)
        await self._measured(held_out, "before", "held out, before")
        made = len(self._state.steps)
        unit = "further steps" if made else "steps"
        progress = Progress(self._plan.steps - made, unit, self._say, every_s=BESIDE_LINES_S, tells_short=False)
        for number in range(made + 1, self._plan.steps + 1):
            await self._step(number, training)
            progress(number - made)
        await self._measured(held_out, self._version, "held out, after")
        await self._compare(held_out)

    @property
    def _version(self) -> str:
        """The newest version that a step made, which names the runs after it."""
        return next((step.version for step in reversed(self._state.steps) if step.version), "before")

    async def _adopt(self, served: int, training: Sequence[Scenario]) -> None:
        """A step may have been trained when the process ended before it could be noted."""
        trained = sum(step.version is not None for step in self._state.steps)
        if served == trained + 1 and self._state.steps_begun > len(self._state.steps):
            number = len(self._state.steps) + 1
            groups = await _stored(list(self._chosen(number, training)))
            self._note(number, f"{self._plan.policy}@{served}", [group for group in groups if _is_scored(group)])
        elif served != trained:
            raise TrainingError(
                f"{self._plan.policy} has {quantity(served, 'step')}, {trained} of this run",
                "Name another policy with --policy, or roll this one back with `arttrace policies rollback`.",
            )

    async def _step(self, number: int, training: Sequence[Scenario]) -> None:
        chosen = self._chosen(number, training)
        groups = await self._gathered(list(chosen), list(chosen.values()), self._plan.group_size, f"step {number}")
        groups = await self._scored(groups)
        self._state.steps_begun = number
        self._file.save(self._state)
        done = await self._model.train(groups, **self._settings)
        self._note(number, done[-1].version if done else None, groups)

    def _chosen(self, number: int, training: Sequence[Scenario]) -> dict[str, Scenario]:
        """The scenarios of a step, by the key of their group."""
        count = min(self._plan.groups, len(training))
        places = range((number - 1) * self._plan.groups, (number - 1) * self._plan.groups + count)
        keys = (f"autorl/{self._plan.policy}/step {number}/{place}" for place in range(count))
        return dict(zip(keys, (training[place % len(training)] for place in places), strict=True))

    def _note(self, number: int, version: str | None, groups: Sequence[TrajectoryGroup]) -> None:
        """Record and print what a step was trained on, and what it made."""
        trained = [run for group in groups for run in group.group.trajectories]
        rewards = [value for run in trained if (value := trajectory_reward(run)) is not None]
        mean = statistics.fmean(rewards) if rewards else None
        self._state.steps.append(TrainingStep(number, version, len(trained), mean))
        self._file.save(self._state)
        shown = "no reward" if mean is None else f"mean score {mean:.3f}"
        self._say(f"step {number}/{self._plan.steps}: {shown}, {version or 'nothing to learn: equal scores'}")

    async def _scored(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """The groups with the judge's scores. A group that it cannot score is reported and left out, unless all are."""
        failure: JudgeError | None = None
        if unscored := [group for group in groups if not _is_scored(group)]:
            try:
                await self._backend.judge(unscored, self._plan.judge, self._params, self._plan.rubric)
            except JudgeUnavailable:
                raise
            except JudgeError as error:
                failure = error
                self._say(f"left out what the judge could not score: {error.message}")
        scored = [group for group in await _stored([group.key for group in groups]) if _is_scored(group)]
        if failure is not None and not scored:
            raise failure
        return scored

    async def _measured(self, held_out: Sequence[Scenario], version: str, what: str) -> None:
        """One complete run of each held-out scenario under a version, which nothing is trained on."""
        await self._gathered(self._held_out_keys(held_out, version), held_out, 1, what, tags=[semconv.HELD_OUT_TAG])

    async def _gathered(
        self, keys: Sequence[str], scenarios: Sequence[Scenario], size: int, what: str, *, tags: Sequence[str] = ()
    ) -> list[TrajectoryGroup]:
        """A stored group of `size` complete runs for each key; missing runs are made now."""
        there = await _stored(keys)
        missing = [
            TrajectoryGroup(
                (self._rollout(scenario) for _ in range(size - len(group.group.trajectories))), tags=tags, key=key
            )
            for key, scenario, group in zip(keys, scenarios, there, strict=True)
            if len(group.group.trajectories) < size
        ]
        if not missing:
            return there
        await gather_trajectory_groups(missing, pbar_desc=what)
        return await _stored(keys)

    def _rollout(self, scenario: Scenario) -> Awaitable[Any]:
        request = {"max_tokens": self._plan.max_tokens, "temperature": 1.0}
        if self._plan.mcp is not None:
            return rollout(
                self._model,
                scenario.task,
                self._plan.mcp,
                max_turns=self._plan.max_turns,
                system_prompt=self._plan.task,
                **request,
            )
        return _chat(self._model, self._plan.task, scenario.task, request)

    def _held_out_keys(self, held_out: Sequence[Scenario], version: str) -> list[str]:
        return [f"autorl/{self._plan.policy}/held out, {version}/{place}" for place in range(len(held_out))]

    async def _compare(self, held_out: Sequence[Scenario]) -> None:
        """Have the judge rank the run before against the run after, scenario by scenario; no reward is stored."""
        if self._version == "before":
            return
        pairs = []
        for place, (before, after) in enumerate(
            zip(self._held_out_keys(held_out, "before"), self._held_out_keys(held_out, self._version), strict=True)
        ):
            runs = [TrajectoryGroup.stored(key).group.trajectories[:1] for key in (before, after)]
            pairs.append(Group(f"autorl/{self._plan.policy}/comparison/{place}", (*runs[0], *runs[1])))
        whole = [pair for pair in pairs if len(judgeable(pair)[0].trajectories) == 2]
        judged = await score_groups(whole, self._plan.judge, self._params, self._plan.rubric, votes=2)
        found = dict(zip((pair.key for pair in whole), judged, strict=True))
        self._state.comparisons = [
            _compared(scenario, pair, found.get(pair.key)) for scenario, pair in zip(held_out, pairs, strict=True)
        ]
        self._note_evaluations()
        self._file.save(self._state)

    def _note_evaluations(self) -> None:
        """Record the means over the scenarios of which both runs were judged, for `arttrace policies` and the
        viewer."""
        both = [
            (one.before, one.after)
            for one in self._state.comparisons
            if one.before is not None and one.after is not None
        ]
        if both:
            data, policy = self._backend.data, self._plan.policy
            for step, scores in zip((0, int(self._version.rpartition("@")[2])), zip(*both, strict=True), strict=True):
                add_evaluation(data, policy, step, {"held-out/score": statistics.fmean(scores)})


async def write_scenarios(state: State, file: StateFile, offer: Offer | None, params: JudgeParams) -> None:
    """Have the writer write the scenarios that are missing.

    Args:
        state: The state of the run.
        file: The file in which it is kept, after each answer.
        offer: What the MCP server offers, if there is one.
        params: Further arguments of litellm's `acompletion`.

    Raises:
        ArttraceError: The writer wrote nothing new several times in a row.
        JudgeError: The writer cannot be reached, or its answers cannot be used.
    """

    def keep(so_far: list[Scenario]) -> None:
        state.scenarios = so_far
        file.save(state)

    plan = state.plan
    if offer is None:
        about = f"The agent's instructions are:\n{plan.task}"
        await generate_scenarios(about, plan.scenarios, plan.writer, params, known=state.scenarios, on_batch=keep)
    else:
        about = f"The agent's instructions are:\n{plan.task}"
        await generate_for_server(
            offer, plan.scenarios, plan.writer, params, instructions=about, known=state.scenarios, on_batch=keep
        )


@trajectory(name="autorl")
async def _chat(model: TrainableModel, task: str, question: str, request: dict[str, Any]) -> str:
    messages = [{"role": "system", "content": task}, {"role": "user", "content": question}]
    async with model.openai_client() as client:
        answer = await client.chat.completions.create(model=model.inference_name, messages=messages, **request)
    return answer.choices[0].message.content or ""


async def _stored(keys: Sequence[str]) -> list[TrajectoryGroup]:
    return await asyncio.to_thread(lambda: [TrajectoryGroup.stored(key) for key in keys])


def _is_scored(group: TrajectoryGroup) -> bool:
    runs = judgeable(group.group)[0].trajectories
    return bool(runs) and all(any(reward.source == "judge" for reward in run.rewards) for run in runs)


def _compared(scenario: Scenario, pair: Group, judged: Judgement | JudgeError | None) -> HeldOutScores:
    if not isinstance(judged, Judgement):
        return HeldOutScores(scenario.task, None, None, str(judged or "a run is missing, or cannot be read"))
    before, after = (run.id for run in pair.trajectories)
    return HeldOutScores(scenario.task, judged.scores[before], judged.scores[after], judged.explanations.get(after, ""))
