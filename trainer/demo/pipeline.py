"""The demo from end to end: demonstrations, base model, serving, rollouts, judging, training, and two evaluations.

Every phase leaves its result on disk (the cached model, the store, the checkpoints, demo.json) and looks there first,
so that a demo killed anywhere goes on where it was.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from arttrace.records import semconv
from arttrace.records.group import Group
from arttrace.records.policy import PolicyStep
from arttrace.records.reward import Judgement, Reward, reward_clock
from arttrace.rewards import judgement_key, score_groups, to_store
from arttrace.rewards.judge_calls import load_litellm
from arttrace.store.server.owner import hold_store
from arttrace.system.errors import JudgeError, ServingError
from arttrace.system.evaluations import add_evaluation
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_trajectories
from trainer.demo import recipe, stand_in, stand_in_judge
from trainer.demo.report import markdown
from trainer.demo.scenarios import MarketScenario, draw, load_world, truth
from trainer.demo.screen import Screen
from trainer.demo.state import DemoState, Success, load_state
from trainer.demo.teacher import Teacher, choices
from trainer.grpo.trainer import PolicyTrainer
from trainer.learner.interface import Learner
from trainer.policies.checkpoints import Checkpoints
from trainer.rollouts.workers import RolloutJob, RolloutResult, RolloutWorkers
from trainer.serving import Serving, start_serving
from trainer.step.phases import Clock, Phase

POLICY = "policy"


def program_as_typed() -> str:
    """`arttrace`, or the path it was started by where that name alone would not be found."""
    typed = Path(sys.argv[0])
    return str(typed) if typed.name == "arttrace" and shutil.which("arttrace") is None else "arttrace"


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The options of `arttrace demo`. `steps` None is as many as the task needs; `judge` None is the stand-in;
    `base_model` None is the one built on the spot."""

    data: DataDir
    seed: int
    steps: int | None = None
    judge: str | None = None
    base_model: Path | None = None

    @property
    def most_steps(self) -> int:
        """How many steps are made at most."""
        return self.steps or recipe.STEPS


def is_sure(steps: Sequence[PolicyStep]) -> bool:
    """Whether the last steps were rewarded so well, in the mean, that more of them would teach little."""
    last = [step.metrics["reward_mean"] for step in steps[-recipe.SURE_STEPS :]]
    return len(last) == recipe.SURE_STEPS and sum(last) / len(last) >= recipe.SURE_REWARD


def run_demo(settings: DemoSettings, screen: Screen) -> None:
    """Run the demo, or what a killed one left of it. Children are stopped however this ends."""
    with ExitStack() as stack:
        _Demo(settings, screen, stack).run()


def prepare_base_model(settings: DemoSettings, screen: Screen) -> Path:
    """The directory of the demo's tiny base model, which is built and cached when it is not there yet."""
    with ExitStack() as stack:
        return _Demo(settings, screen, stack).base_model()


class _Demo:
    """One run of the demo. Its methods are the phases, in order."""

    def __init__(self, settings: DemoSettings, screen: Screen, stack: ExitStack) -> None:
        self._settings, self._screen, self._stack = settings, screen, stack
        self._data = settings.data
        self._world = load_world()
        self._file = self._data.root / "demo.json"
        wanted = DemoState(settings.seed, str(settings.base_model or "built"), settings.judge or "stand-in")
        self._state, self._resumed = load_state(self._file, wanted)
        self._state.save(self._file)
        self._store = stack.enter_context(hold_store(self._data, create=True))

    def run(self) -> None:
        """All of it."""
        self._began = time.perf_counter()
        self._introduce()
        base_model = self._settings.base_model or self.base_model()
        serving, learner = self._serve(base_model)
        self._judge_params = self._judge()
        workers = self._stack.enter_context(self._workers(serving.client_environment))
        checkpoints = Checkpoints(self._data.policies, POLICY)
        self._stack.enter_context(checkpoints.only_writer())
        loop = PolicyTrainer(
            policy=POLICY,
            base_model=str(base_model),
            store=self._store,
            learner=learner,
            checkpoints=checkpoints,
            gateway=self._stack.enter_context(closing(serving.client())),
            scale=recipe.ADVANTAGE_SCALE,
        )
        if loop.resume() == 0:
            self._evaluate(workers, f"{POLICY}@0")
        self._train(loop, workers)
        if trained := loop.checkpoints.latest():
            self._evaluate(workers, f"{POLICY}@{trained}")
        self._close(base_model)

    # --- phases --------------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        settings = self._settings
        notes = [
            "The whole loop on this machine: capture an agent, judge its runs, train a LoRA on them, serve it, repeat.",
        ]
        if settings.base_model is None:
            notes.append(
                "No weights are shipped: a tiny base model is built here, from captured demonstrations of a [bold]"
                "stand-in[/] for a teacher, a script that errs on purpose. A real user passes --base-model DIR."
            )
        if settings.judge is None:
            notes.append(
                "The judge is a [bold]stand-in[/]: a script that follows RULER's protocol and sees trajectories only. "
                "A real one: --judge openai/o3, or any other model that litellm knows."
            )
        where = escape(str(recipe.AGENT.parent))
        notes.append(f"The agent is [bold]{recipe.AGENT.name}[/] in {where}, unmodified `openai` code.")
        if self._resumed:
            notes.append(f"[bold]Resuming[/] what an earlier run left in {escape(str(self._data.root))}.")
        self._screen.title(f"arttrace demo, seed {settings.seed}", notes)

    def base_model(self) -> Path:
        """The cached base model of the seed, or one built now from demonstrations."""
        path = recipe.base_model_path(self._settings.seed)
        if (path / "config.json").exists():
            self._screen.line("base model", f"cached in {path}")
            return path
        from trainer.demo.model.build import build_base_model
        from trainer.demo.model.demonstrations import demonstrations

        wanted = draw(self._world, recipe.DEMONSTRATIONS, f"demonstrations {self._settings.seed}", held_out=False)
        with self._screen.phase("demonstrations") as phase:
            jobs = [scenario.job(group=f"demonstrations/{n}") for n, scenario in enumerate(wanted)]
            missing = self._missing(jobs)
            kept = {_group(job) for job in jobs} - {_group(job) for job in missing}
            earlier = demonstrations(self._store.trajectories(groups=sorted(kept), complete_only=True) if kept else ())
            teacher = Teacher(self._settings.seed, choices(one.reply for one in earlier))
            with stand_in.serve(lambda body: teacher.reply(body["messages"], body["tools"]), "stand-in-teacher") as url:
                env = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "stand-in"}
                with self._workers(env) as workers:
                    self._run(workers, missing, phase.update)
            examples = demonstrations(
                self._store.trajectories(groups=[_group(job) for job in jobs], complete_only=True)
            )
            phase.result = f"{len(jobs)} runs of the agent under the stand-in teacher, {len(examples)} calls captured"
        with self._screen.phase("base model") as phase:
            built = build_base_model(examples, self._settings.seed, path, progress=phase.update)
            phase.result = f"{built.parameters / 1e6:.2f} M parameters, {built.steps} steps from scratch, in {path}"
        return path

    def _serve(self, base_model: Path) -> tuple[Serving, Learner]:
        """Start vLLM and, meanwhile, load the learner."""
        with self._screen.phase("vLLM and gateway") as phase, ThreadPoolExecutor(1) as pool:
            loading = pool.submit(_load_learner, base_model, self._settings.seed)
            pool.submit(load_litellm)
            serving = self._stack.enter_context(
                start_serving(
                    self._data,
                    base_model,
                    policy=POLICY,
                    options=recipe.SERVE_OPTIONS if self._settings.base_model is None else (),
                    on_progress=lambda line, _: phase.update(line),
                )
            )
            phase.update("loading the learner")
            learner = loading.result()
            phase.result = f"serving {serving.record.version} at {serving.url}/v1"
        return serving, learner

    def _judge(self) -> dict[str, Any]:
        if self._settings.judge is not None:
            return {}
        url = self._stack.enter_context(stand_in.serve(stand_in_judge.reply, stand_in_judge.NAME))
        return {"api_base": url, "api_key": "stand-in"}

    def _train(self, loop: PolicyTrainer, workers: RolloutWorkers) -> None:
        steps = self._store.policy_steps(POLICY)
        if self._enough(steps):
            return
        self._screen.steps_head()
        for past in steps:
            self._screen.step(past)
        rounds = 2 * self._settings.most_steps
        pool = draw(self._world, recipe.GROUPS * rounds, f"training {self._settings.seed}", held_out=False, evenly=True)
        while not self._enough(steps) and (number := len(steps) + self._state.skipped + 1) <= rounds:
            with self._screen.status(f"step {len(steps) + 1}") as status:
                clock = Clock(watch=lambda phase: status(phase.value))
                clock(Phase.ROLLOUT)
                groups = self._rollouts(workers, number, pool[(number - 1) * recipe.GROUPS : number * recipe.GROUPS])
                clock(Phase.SCORE)
                made = loop.train(self._score(groups), clock)
            if made is None:
                self._state.skipped += 1
                self._state.save(self._file)
                self._screen.line("", f"round {number}: all rewards within each group are equal, nothing to learn")
            else:
                steps.append(made)
                self._screen.step(made)
        if len(steps) < self._settings.most_steps and self._enough(steps):
            last = f"the last {recipe.SURE_STEPS} steps"
            self._screen.line("", f"the mean reward of {last} is {recipe.SURE_REWARD} or more: no further steps")

    def _enough(self, steps: Sequence[PolicyStep]) -> bool:
        return len(steps) >= self._settings.most_steps or (self._settings.steps is None and is_sure(steps))

    def _rollouts(self, workers: RolloutWorkers, number: int, scenarios: Sequence[MarketScenario]) -> list[Group]:
        jobs = [
            scenario.job(group=f"round-{number:04d}/{scenario.name}")
            for scenario in scenarios
            for _ in range(recipe.GROUP_SIZE)
        ]
        self._run(workers, self._missing(jobs))
        return self._groups({_group(job) for job in jobs})

    def _score(self, groups: Sequence[Group]) -> list[Group]:
        judge = self._settings.judge or f"openai/{stand_in_judge.NAME}"
        due = [group for group in groups if self._store.judgement(judgement_key(group, judge)) is None]

        def keep(_: Group, judgement: Judgement) -> None:
            self._store.append(to_store(judgement))

        outcomes = asyncio.run(score_groups(due, judge, self._judge_params, on_judged=keep))
        failed = [outcome for outcome in outcomes if isinstance(outcome, JudgeError)]
        if failed:
            raise failed[0]
        return self._groups({group.key for group in groups})

    def _evaluate(self, workers: RolloutWorkers, version: str) -> None:
        """Held-out success of the version that is served now, by ground truth, sampled and greedy."""
        scenarios = draw(self._world, recipe.HELD_OUT, f"held out {self._settings.seed}", held_out=True)
        for mode, temperature in (("sampled", 1.0), ("greedy", 0.0)):
            label = f"{version} {mode}"
            if label in self._state.held_out:
                continue
            with self._screen.phase(f"held-out, {mode}") as phase:
                began = time.perf_counter()
                jobs = [
                    scenario.job(
                        group=f"held-out/{version}/{mode}/{scenario.name}",
                        temperature=temperature,
                        tags=(semconv.HELD_OUT_TAG,),
                    )
                    for scenario in scenarios
                ]
                results = workers.run(jobs)
                _complain_if_all_failed(results)
                correct = {
                    result.trajectory_id: result.result == truth(self._world, scenario)
                    for result, scenario in zip(results, scenarios, strict=True)
                }
                right = sum(correct.values())
                success = Success(right, len(jobs), time.perf_counter() - began)
                phase.result = f"{version}: {right} of {len(jobs)} right ({100 * success.rate:.1f} %)"
            self._store.ingest_spool()
            self._store.append([_verdict(run, is_right) for run, is_right in correct.items()])
            add_evaluation(self._data, POLICY, int(version.rpartition("@")[2]), {f"held-out/{mode}": success.rate})
            self._state.held_out[label] = success
            self._state.save(self._file)

    def _close(self, base_model: Path) -> None:
        self._store.ingest_spool()
        steps = self._store.policy_steps(POLICY)
        report = self._data.root / "report.md"
        facts = [
            ("store", str(self._data.store)),
            ("adapters", str(self._data.policies / POLICY)),
            ("base model", str(base_model)),
            ("report", str(report)),
            ("this run took", f"{time.perf_counter() - self._began:.0f} s"),
        ]
        report.write_text(markdown(steps, self._state.held_out, facts), encoding="utf-8")
        option = f"--dir {self._data.root}"
        trained = steps[-1].trained[:1] if steps else ()  # nothing to show when no round taught anything
        program = program_as_typed()
        show = [f"{program} show {one.trajectory_id[:8]} {option}" for one in trained]
        self._screen.closing(
            self._state.held_out,
            steps,
            facts,
            [
                (f"{program} ls {option} --limit 20", "what was captured"),
                *((command, "one run as a tree: planner, sub-agents, tools, rewards") for command in show),
                (f"{program} view {option}", "runs, groups and training in the browser"),
                (f"{program} serve --base-model {base_model} {option}", "serve the trained policy to your own code"),
            ],
        )

    # --- helpers -------------------------------------------------------------------------------------------

    def _workers(self, env: dict[str, str]) -> RolloutWorkers:
        return RolloutWorkers(
            f"{recipe.AGENT}:answer",
            self._data,
            env=env,
            workers=recipe.WORKERS,
            concurrency=recipe.CONCURRENCY,
        )

    def _groups(self, keys: set[str]) -> list[Group]:
        return group_trajectories(self._store.trajectories(groups=sorted(keys), complete_only=True))

    def _missing(self, jobs: Sequence[RolloutJob]) -> list[RolloutJob]:
        """The jobs whose trajectories an earlier run did not leave in the store."""
        there: dict[str, int] = {}
        if self._resumed:
            for group in self._groups({_group(job) for job in jobs}):
                there[group.key] = len(group.trajectories)
        missing = []
        for job in jobs:
            if there.get(_group(job), 0) > 0:
                there[_group(job)] -= 1
            else:
                missing.append(job)
        return missing

    def _run(self, workers: RolloutWorkers, jobs: Sequence[RolloutJob], update: Any = None) -> None:
        """Run the jobs, and take in what comes of them."""
        if not jobs:
            return
        done = 0

        def count(_: RolloutResult) -> None:
            nonlocal done
            done += 1
            if update is not None:
                update(f"{done} of {len(jobs)} runs")

        _complain_if_all_failed(workers.run(jobs, on_result=count))
        self._store.ingest_spool()


def _load_learner(base_model: Path, seed: int) -> Learner:
    from trainer.learner import LearnerConfig, make_learner

    config = LearnerConfig(
        learning_rate=recipe.LEARNING_RATE,
        adam_betas=recipe.ADAM_BETAS,
        lora_rank=recipe.LORA_RANK,
        lora_alpha=recipe.LORA_ALPHA,
        kl_weight=recipe.KL_WEIGHT,
        seed=seed,
    )
    return make_learner(base_model, config)


def _verdict(trajectory_id: str, is_right: bool) -> Reward:
    """Whether a held-out run's answer is the true one, for whoever looks at it: nothing is trained on these runs."""
    return Reward(
        id=f"{trajectory_id}/correct",
        trajectory_id=trajectory_id,
        value=float(is_right),
        name="correct",
        time_ns=reward_clock.now_ns(),
    )


def _group(job: RolloutJob) -> str:
    assert job.group is not None
    return job.group


def _complain_if_all_failed(results: Sequence[RolloutResult]) -> None:
    errors = [result.error for result in results if result.error]
    if results and len(errors) == len(results):
        raise ServingError(f"every run of the agent failed; the first with: {errors[0]}", "See logs/ in the directory.")
