"""LocalBackend: serve, judge and train on this machine. It starts the commands and speaks HTTP; no torch comes in here.

The commands are those that a person would type, so whatever a loop did can be inspected, continued or repeated by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from arttrace.capture.api import change
from arttrace.capture.export.lifecycle import recorder
from arttrace.loop.evaluation.gathered import gathered_groups, record_rewards
from arttrace.loop.evaluation.left_out import require_whole, whole_runs, why_left_out, with_left_out
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.imitation.examples import take_examples
from arttrace.loop.model import TrainableModel, api_key
from arttrace.loop.processes.art_arguments import OF_A_BACKEND, refusing
from arttrace.loop.processes.art_names import TrainSFTConfig, either, own_settings, settings_of_imitation
from arttrace.loop.processes.child import WATCH_STARTER, Child
from arttrace.loop.processes.served import Served, running_gateway
from arttrace.loop.processes.trainer_process import REGISTER_AGAIN, LoggedNumbers, TrainedSteps, TrainerProcess
from arttrace.loop.recorded.directories import captured_runs, copy_runs
from arttrace.loop.recorded.scores import append_scores
from arttrace.loop.trajectory import Trajectory
from arttrace.records.reward import Judgement
from arttrace.records.span import SpanRow
from arttrace.rewards import DEFAULT_RUBRIC, score_groups, to_store
from arttrace.rewards.judge import DEFAULT_JUDGE
from arttrace.store import open_store
from arttrace.system.errors import ServingError, TrainingError
from arttrace.system.exit_status import how_ended

_DIES_WITHIN_S = 0.3
"""How long after it refused a connection a server may be seen dying."""
_PROGRAM = "from arttrace.commands import main; main()"


_trainers_here: dict[tuple[Path, str, str], TrainerProcess] = {}
"""Those of this process, by directory, policy and base model: only one may train a policy, whichever backend began it,
and one that was forgotten without `close` runs as long as the program."""


class LocalBackend:
    """Serves, judges and trains on this machine, with the data directory that this process captures into.

    Use it as an async context manager: what `register` started is stopped at the end. Without that it ends with the
    program, however that ends. For a server that stays start `arttrace serve`.

    Args:
        dir: The data directory; $ARTTRACE_DIR, else ./.arttrace.
        path: The same, by the name that ART's programs use.

    Raises:
        ValueError: Both are given.

    Example:
        ```python
        async with LocalBackend() as backend:
            model = TrainableModel("policy", "Qwen/Qwen3-0.6B")
            await backend.register(model)
            group = await gather_trajectories(answer(model, question) for _ in range(8))
            await backend.judge([group])
            await backend.train(model, [group], learning_rate=1e-5)
        ```
    """

    @refusing(OF_A_BACKEND)
    def __init__(self, dir: str | Path | None = None, *, path: str | Path | None = None) -> None:
        if dir is not None and path is not None:
            raise ValueError("dir and path name the same directory: pass one")
        if (given := path if dir is None else dir) is not None:
            change(dir=given)
        self.data = recorder().settings.data
        self._program = _PROGRAM
        self._server: Child | None = None
        self._own_trainers: dict[str, TrainerProcess] = {}
        self._closed = False

    async def __aenter__(self) -> LocalBackend:
        self._closed = False
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def register(self, model: TrainableModel) -> None:
        """Serve the model, set its `inference_base_url`, and start its trainer, which waits for the first `train`. A
        gateway that runs on this directory is used, else one is started.

        Args:
            model: The model to serve.

        Raises:
            ServingError: The gateway there serves another model or does not answer, or the start fails.
        """
        self._closed = False
        served = await running_gateway(self.data, api_key())
        if served is None:
            served = await self._start(model)
        if not served.is_of(model.name, model.base_model):
            raise ServingError(
                f"the gateway at {served.url} serves {served.policy} on {served.base_model}, "
                f"not {model.name} on {model.base_model}",
                "A data directory serves one model: give this one a backend with a directory of its own, "
                f'LocalBackend("{model.name}"), or stop the gateway.',
            )
        if model.project is not None:
            change(project=model.project, dir=self.data.root)
        model.inference_base_url, model.inference_api_key, model.backend = f"{served.url}/v1", api_key(), self
        with contextlib.suppress(OSError):  # `train` says why it cannot be started
            await self._trainer(model).begin()

    async def judge(
        self,
        groups: Sequence[TrajectoryGroup],
        judge_model: str = DEFAULT_JUDGE,
        extra_litellm_params: dict[str, Any] | None = None,
        rubric: str = DEFAULT_RUBRIC,
    ) -> list[Judgement]:
        """Score gathered groups of two runs or more with RULER, and store judgements and rewards.

        Args:
            groups: What `gather_trajectory_groups` returned; groups of one run are left out.
            judge_model: The judge, by the name that litellm has for it.
            extra_litellm_params: Further arguments of litellm's `acompletion`, such as `api_base` and `api_key`.
            rubric: What the judge is asked to reward, in words.

        Returns:
            One judgement per group that was scored, in order, with a score in 0..1 per run.

        Raises:
            JudgeError: The first one, after the groups that could be judged are stored.
        """
        groups = gathered_groups(groups, "judge")
        await asyncio.to_thread(self._bring, groups)
        comparable = [(record, group) for group in groups if len((record := group.group).trajectories) > 1]
        whole = {id(record): group for record, group in comparable}
        judged: list[tuple[TrajectoryGroup, Judgement]] = []
        try:
            results = await score_groups(
                [record for record, _ in comparable],
                judge_model,
                extra_litellm_params,
                rubric,
                on_judged=lambda record, judgement: judged.append((whole[id(record)], judgement)),
            )
        finally:
            if judged:  # also when the judge gave out half-way: what is paid for is kept
                await asyncio.to_thread(self._keep, judged)
        for result in results:
            if not isinstance(result, Judgement):
                raise result
        return [one for one in results if isinstance(one, Judgement)]

    async def train(
        self,
        model: TrainableModel,
        groups: Sequence[TrajectoryGroup] | None = None,
        *,
        trajectory_groups: Sequence[TrajectoryGroup] | None = None,
        steps: int = 1,
        **settings: Any,
    ) -> TrainedSteps:
        """Train one step on exactly these gathered groups; without groups, on every scored group that the policy has
        not been trained on, in at most `steps` steps.

        The trainer is started by `register`, loads the model in the first call and stays up until `close`. Cancelled,
        as by a timeout or Ctrl-C, it drops the step, whose runs stay as they were; once the weights have changed the
        version is completed and counts, and the next call waits for that.

        Args:
            model: The model to train.
            groups: Gathered groups, with the rewards that their runs have by now.
            trajectory_groups: The same, by the name that ART's programs use.
            steps: The largest number of steps, where no groups are passed.
            settings: The options of `arttrace train` by their names: `learning_rate=1e-4`, `loss="dapo"`,
                `advantages="std"`, `method="dpo"`; or by ART's: `loss_fn="ppo"`, `normalize_advantages=True`.

        Returns:
            A list with a TrainedStep per step, whose version is served when this returns; empty if all rewards within
            each group are equal. Its `left_out` counts the incomplete runs, which are left out with a warning.

        Raises:
            TrainingError: No run is complete, the step failed, a run was trained on already, the trainer died, the
                backend was closed, or a setting of ART has no counterpart.
            ServingError: The server that the backend started died.
        """
        settings = own_settings(settings)
        groups = either(groups, trajectory_groups, "groups and trajectory_groups")
        groups = None if groups is None else gathered_groups(groups, "train")
        if any(not one.captured for group in groups or () for one in group.ready_made):
            raise TrainingError(
                "trajectories that were put into a group ready-made were not captured: their tokens are not known",
                "Put calls of the rollout into the group, TrajectoryGroup(rollout(model, s) for _ in range(8)), and "
                "gather it; ready-made ones are for a server that recorded them (AsyncClient.submit_trajectories).",
            )
        await record_rewards(groups or ())
        await asyncio.to_thread(self._bring, groups or ())
        here = await asyncio.to_thread(captured_runs, [one for group in groups or () for one in group.ready_made])
        ordered = None if groups is None else [whole_runs(one, here) for one in groups]
        left_out = why_left_out(groups or (), here)
        require_whole(left_out, [len(one.trajectories) for one in ordered or ()])
        trainer = self._trainer(model)
        await self._require_server()
        try:
            made = await trainer.train(ordered, {"steps": steps, **settings})
        except TrainingError as error:
            await self._require_server(error)
            raise
        return TrainedSteps(with_left_out(made, left_out), model.get_step)

    async def train_sft(
        self,
        model: TrainableModel,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        **settings: Any,
    ) -> TrainedSteps:
        """Imitate trajectories, whoever wrote them: one version, after a pass over them in their order. As with `train`
        it is served when this returns, and a call that is cancelled drops it.

        Args:
            model: The model to train.
            trajectories: What is to be imitated. Their messages are kept in the store, as runs of the project
                `train_sft`; one without messages is imitated as its run was captured.
            config: How many of them make an optimizer step, its learning rate, and which messages are imitated.
            settings: The options of `arttrace train --method sft` by their names: `lora_rank=8`, `max_length=4096`.

        Returns:
            A list with the TrainedStep; its `left_out` counts what was not imitated, by reason.

        Raises:
            ArttraceError: Something else than trajectories was passed, or a message is none.
            TrainingError: There is nothing to imitate, there is a learning rate too few or too many, the step failed,
                the trainer died, or the backend was closed.
            ServingError: The server that the backend started died.
        """
        settings = settings_of_imitation(settings)
        trainer = self._trainer(model)
        found = await take_examples(trajectories, config or TrainSFTConfig(), self._store)
        await asyncio.to_thread(copy_runs, found.captured, self.data)
        await self._require_server()
        try:
            made = await trainer.imitate(found.batches, settings)
        except TrainingError as error:
            await self._require_server(error)
            raise
        return TrainedSteps(made, model.get_step)

    async def _store(self, runs: Mapping[str, Sequence[SpanRow]]) -> None:
        def append() -> None:
            with open_store(self.data, create=True) as store:
                there = {one.id for one in store.summaries(ids=list(runs))}  # what was stored may have been pruned
                if new := [span for id, spans in runs.items() if id not in there for span in spans]:
                    store.append(new)

        await asyncio.to_thread(append)

    async def log(self, model: TrainableModel, numbers: LoggedNumbers, report_to: Sequence[str]) -> None:
        """Send numbers of a step to trackers, as `TrainableModel.log` does.

        Args:
            model: The model whose run in the tracker it is.
            numbers: The step, and the numbers by name.
            report_to: The trackers' names.

        Raises:
            TrainingError: There is no such tracker, or its package is missing.
        """
        await self._trainer(model).log(numbers, {"report_to": list(report_to)})

    async def fork(self, model: TrainableModel, from_version: str) -> None:
        """Begin the model's policy from a version of another policy, with its weights and optimizer state. Register the
        model afterwards.

        Args:
            model: The model whose policy begins, which has no version yet.
            from_version: The version, NAME@N.

        Raises:
            TrainingError: There is no such version, it was pruned or made for another base model, or the model's policy
                has versions.
        """
        await self._policies("fork", from_version, model.name, "--base-model", str(model.base_model))

    async def delete_checkpoints(self, model: TrainableModel, keep_best: int = 1, keep_latest: int = 1) -> None:
        """Remove the weights of old versions. The record of what they were trained on is kept.

        Args:
            model: The model.
            keep_best: The number of versions to keep with the highest reward.
            keep_latest: The number of newest versions to keep, at least two. Versions that are served, rolled back to
                or forked from are kept too.

        Raises:
            TrainingError: They cannot be removed.
        """
        if not (self.data.policies / model.name).is_dir():
            print(f"arttrace: pruned: none; {model.name} has no version yet", file=sys.stderr)
            return
        await self._policies("prune", model.name, "--keep-best", str(keep_best), "--keep-latest", str(keep_latest))

    async def _policies(self, *arguments: str) -> None:
        """Run `arttrace policies`, and show what it says."""
        command = (sys.executable, "-c", self._program, "policies", "--dir", str(self.data.root), *arguments)
        async with Child.start(*command) as child:
            async for line in child.lines():
                print(f"arttrace: {line.decode(errors='replace').rstrip()}", file=sys.stderr)
            if await child.wait():
                raise TrainingError(f"`arttrace policies {arguments[0]}`: {child.last_lines().removeprefix('error: ')}")

    async def close(self) -> None:
        """Stop the trainers, once a running step is done, and the gateway, if this backend started it.

        If cancelled meanwhile, it drops the step and still stops them.
        """
        self._closed = True
        await self._stop()

    async def _stop(self) -> None:
        try:
            while self._own_trainers:
                trainer = self._own_trainers.popitem()[1]
                try:
                    if trainer.works:
                        await trainer.finish()
                finally:
                    await trainer.stop()
        finally:
            server, self._server = self._server, None
            if server is not None:
                await server.stop()

    async def _require_server(self, error: TrainingError | None = None) -> None:
        """Raise ServingError, with its last words, where the server that this backend started is dead."""
        if self._server is None or self._closed:
            return
        if (death := await self._server.death(_DIES_WITHIN_S if error else 0.0)) is not None:
            raise ServingError(
                f"`arttrace serve` ended{death}",
                "Register the model again, which starts another: await model.register(backend)",
            ) from error

    def _trainer(self, model: TrainableModel) -> TrainerProcess:
        if self._closed:
            raise TrainingError(f"the backend was closed: nothing trains {model.name}", REGISTER_AGAIN)
        key = (self.data.root, model.name, str(model.base_model))
        trainer = _trainers_here.get(key)
        if trainer is None or trainer.closed:
            arguments = ("train", "--orders", "--policy", model.name, "--base-model", str(model.base_model))
            trainer = TrainerProcess((sys.executable, "-c", self._program, *arguments, "--dir", str(self.data.root)))
            _trainers_here[key] = trainer
        self._own_trainers[model.name] = trainer
        return trainer

    def _bring(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Have here what was recorded where another backend of this process reads."""
        copy_runs({id: data for group in groups for id, data in group.directories.items()}, self.data)

    def _keep(self, judged: Sequence[tuple[TrajectoryGroup, Judgement]]) -> None:
        """Store what was judged where the runs were recorded, and here, where they are trained on."""
        for group, judgement in judged:
            group.take(judgement)
            if set(group.directories.values()) - {self.data}:
                with open_store(self.data) as store:
                    append_scores(store, to_store(judgement))

    async def _start(self, model: TrainableModel) -> Served:
        if self._server is not None:
            await self._server.stop()
        self._server = Child.start(
            *(sys.executable, "-c", WATCH_STARTER + self._program),
            *("serve", "--base-model", str(model.base_model), "--policy", model.name, "--port", "0"),
            *("--dir", str(self.data.root), "--json"),
        )
        try:
            if line := await anext(self._server.lines(), None):
                self._server.drain()
                return msgspec.json.decode(line, type=Served)
            code = await self._server.wait()
        except BaseException:
            await self._stop()
            raise
        output = self._server.last_lines()
        self._server = None
        raise ServingError(f"`arttrace serve` ended ({how_ended(code)}): {output}")
