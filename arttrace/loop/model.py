"""Model: what rollouts call; TrainableModel: one that is a policy, trained from a base model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol

from arttrace.loop.evaluation.gathered import gathered_groups, record_rewards, require_trainable
from arttrace.loop.evaluation.numbers import Run, numbers_of
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.processes.art_arguments import OF_A_MODEL, OF_REGISTRATION, OF_TRAINING, refusing
from arttrace.loop.processes.art_names import TrainConfig, TrainSFTConfig, either, said_of_attribute, settings_of
from arttrace.loop.processes.openai_client import client_of
from arttrace.loop.processes.served import ServedStep, served_step
from arttrace.loop.processes.trainer_process import LoggedNumbers, TrainedStep
from arttrace.loop.trajectory import Trajectory
from arttrace.system.errors import ServingError, TrainingError
from arttrace.system.evaluations import add_evaluation
from arttrace.system.paths import DataDir, require_policy_name
from arttrace.wire.content.secrets import NO_KEY

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Config = TypeVar("Config", default=Any)
else:  # no default before Python 3.13; none is needed where a class is subscripted
    from typing import TypeVar

    Config = TypeVar("Config")

BEST_BY = "train/reward"
"""What `delete_checkpoints` ranks versions by, as ART names it."""


def api_key() -> str:
    """The gateway's key, $ARTTRACE_API_KEY; for one without a key any text, since the clients insist on one."""
    return os.environ.get("ARTTRACE_API_KEY") or NO_KEY


class Backend(Protocol):
    """What a model needs of the backend that serves and trains it: LocalBackend has it."""

    data: DataDir

    async def register(self, model: TrainableModel) -> None: ...

    async def train(
        self, model: TrainableModel, groups: Sequence[TrajectoryGroup] | None = None, **settings: Any
    ) -> list[TrainedStep]: ...

    async def train_sft(
        self,
        model: TrainableModel,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        **settings: Any,
    ) -> list[TrainedStep]: ...

    async def log(self, model: TrainableModel, numbers: LoggedNumbers, report_to: Sequence[str]) -> None: ...

    async def delete_checkpoints(self, model: TrainableModel, keep_best: int = 1, keep_latest: int = 1) -> None: ...


class Model(Generic[Config]):
    """A model that is called and not trained, for comparison. `Model[Config]` is one whose `config` is a Config.

    Args:
        name: The model's name here, and in requests where `inference_model_name` is None.
        project: The project's name; by default that of capture.
        config: Whatever the program's rollouts want to read of it, as `model.config`.
        inference_model_name: The `model` of its requests.
        inference_base_url: Its server's base URL; by default $OPENAI_BASE_URL, or OpenAI's.
        inference_api_key: Its server's key; by default $OPENAI_API_KEY.
    """

    trainable = False

    @refusing(OF_A_MODEL)
    def __init__(
        self,
        name: str,
        project: str | None = None,
        *,
        config: Config | None = None,
        inference_model_name: str | None = None,
        inference_base_url: str | None = None,
        inference_api_key: str | None = None,
    ) -> None:
        self.name = name
        self.project = project
        self.config: Config = config  # type: ignore[assignment]  # without one nothing reads it
        self.inference_model_name = inference_model_name
        self.inference_base_url = inference_base_url
        self.inference_api_key = inference_api_key
        self.backend: Backend | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def inference_name(self) -> str:
        """The `model` of a request."""
        return self.inference_model_name or self.name

    def get_inference_name(self, step: int | None = None) -> str:
        """`inference_name`, as ART's programs ask for it.

        Args:
            step: The step whose version is meant; by default the newest. 0 is the base model.
        """
        return self.inference_name if step is None else f"{self.inference_model_name or self.name}@{step}"

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Arguments of litellm's `acompletion` that call it, as ART's programs ask for them.

        Args:
            step: The step whose version is meant; by default the newest.
        """
        named = self.get_inference_name(step)
        return {
            "model": f"hosted_vllm/{named}" if self.trainable else named,
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    def get_step(self) -> ServedStep:
        """0: nothing trains it. It need not be awaited, but may be."""
        return ServedStep(0)

    def openai_client(self) -> Any:
        """An `openai.AsyncOpenAI` that calls it; use it with `model=model.inference_name`."""
        return client_of(self.inference_base_url, self.inference_api_key)

    @refusing(OF_REGISTRATION)
    async def register(self, backend: Backend) -> None:
        """Have `log` write into the data directory of a backend, which does not serve this model.

        Args:
            backend: The backend.
        """
        self.backend = backend

    async def log(
        self,
        groups: Iterable[Run] | None = None,
        split: str = "val",
        step: int | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
        trajectories: Iterable[Run] | None = None,
    ) -> dict[str, float]:
        """Log the rewards and metrics of runs, such as those of a validation set, or numbers of the program's own.

        Args:
            groups: Gathered groups, trajectories that rollouts returned, or captured runs; not needed beside metrics.
            split: The name of the set, such as "val": the prefix of the numbers' names. Runs that were recorded here
                are held out from then on (tag `held-out`): nothing is trained on them, unless the set is "train".
            step: The step to which they are compared; 0 where it is None.
            metrics: Further numbers by name, such as those of a trained step. A name with a slash in it stays as it is,
                and one that a mean has stands in its place.
            trajectories: The same as `groups`, by the name that ART's programs use.

        Returns:
            The numbers by name, the mean "val/reward" among them, as they are appended to `logs/NAME.jsonl` in the data
            directory.

        Raises:
            ServingError: The model is not registered.
            ArttraceError: A number is not finite, or there are neither runs nor metrics.
        """
        data = self._require_registered().data
        numbers = await numbers_of(either(groups, trajectories, "groups and trajectories"), metrics, split)
        await asyncio.to_thread(add_evaluation, data, self.name, step or 0, numbers)
        return numbers

    if not TYPE_CHECKING:  # to a type checker a name that is not here is an error

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(said_of_attribute(type(self).__name__, name), name=name, obj=self)

    def _require_registered(self) -> Backend:
        if self.backend is None:
            raise ServingError(
                f"the model {self.name} is not registered", "Call `await model.register(backend)` first."
            )
        return self.backend


class TrainableModel(Model[Config]):
    """A policy, trained as a LoRA on a base model.

    Args:
        name: The policy's name; its versions are `name@1`, `name@2` and so on.
        base_model: The directory of a model in Hugging Face form, or its name on the hub.
        project: The project's name, set when the model is registered; by default that of capture.
        config: Whatever the program's rollouts want to read of it, as `model.config`.

    Raises:
        TrainingError: No policy can have that name: it has letters, digits, '.', '_' and '-', at most 100.

    `register` sets `backend`, `inference_base_url` and, where the server has a key, `inference_api_key`; before it the
    model cannot be called.

    Example:
        ```python
        model = TrainableModel(name="agent-001", project="my-agentic-task", base_model="Qwen/Qwen3-0.6B")
        async with LocalBackend() as backend:
            await model.register(backend)
            groups = await gather_trajectory_groups(
                (TrajectoryGroup(rollout(model, scenario) for _ in range(8)) for scenario in scenarios),
                after_each=lambda group: ruler_score_group(group, "openai/o3", swallow_exceptions=True),
            )
            await model.train(groups, config=TrainConfig(learning_rate=1e-5))
        ```
    """

    trainable = True

    @refusing(OF_A_MODEL)
    def __init__(
        self, name: str, base_model: str | Path, *, project: str | None = None, config: Config | None = None
    ) -> None:
        require_policy_name(name)
        super().__init__(name, project, config=config)
        self.base_model = base_model

    @property
    def inference_name(self) -> str:
        """The `model` of a request that means the newest version of the policy."""
        return f"{self.name}:latest"

    def openai_client(self) -> Any:
        """An `openai.AsyncOpenAI` that calls the gateway; use it with `model=model.inference_name`, or `model.name`.

        Raises ServingError before the model is registered.
        """
        self._require_registered()
        return client_of(self.inference_base_url, self.inference_api_key or api_key())

    @refusing(OF_REGISTRATION)
    async def register(self, backend: Backend) -> None:
        """Have a backend serve and train this model.

        Args:
            backend: The backend. Use it as a context manager, or `close` it at the end.

        Raises:
            ServingError: The gateway there serves another policy or base model, or the start fails.
        """
        await backend.register(self)

    @refusing(OF_TRAINING)
    async def train(
        self, groups: Sequence[TrajectoryGroup], config: TrainConfig | None = None, **settings: Any
    ) -> list[TrainedStep]:
        """Train one step on exactly these gathered groups, with the rewards that their runs have now.

        Cancelled, it drops the step with a LocalBackend, if the weights have not changed yet. A server goes on with it.

        Args:
            groups: What `gather_trajectory_groups` returned.
            config: Settings under ART's names.
            settings: The options of `arttrace train` by their names, over those of `config`.

        Returns:
            A TrainedStep whose version is served when this returns; an empty list if all rewards within each group are
            equal.

        Raises:
            ServingError: The model is not registered.
            TrainingError: There is nothing to compare, there are no sampled tokens to train on, or the step failed.
        """
        backend = self._require_registered()
        groups = gathered_groups(groups, "train")
        require_trainable(self.name, groups)
        await record_rewards(groups)  # for a backend of the program's own too
        return await backend.train(self, groups, **(settings_of(config) | settings))

    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
        *,
        log_metrics: bool = True,
        **settings: Any,
    ) -> list[TrainedStep]:
        """Imitate trajectories, whoever wrote them: one version, after a pass over them in their order. The next step,
        of whichever method, starts from it.

        Args:
            trajectories: What is to be imitated, such as what a larger model answered.
            config: How many of them make an optimizer step, its learning rate, and which messages are imitated.
            _config: Nothing, as in ART.
            verbose: Taken: a step says how far it is in any case.
            log_metrics: Taken: the version has its numbers in any case.
            settings: The options of `arttrace train --method sft` by their names: `lora_rank=8`.

        Returns:
            The TrainedStep, whose version is served when this returns.

        Raises:
            ServingError: The model is not registered.
            ArttraceError: Something else than trajectories was passed, or a message is none.
            TrainingError: There is nothing to imitate, there is a learning rate too few or too many, or the step
                failed.
        """
        backend = self._require_registered()
        return await backend.train_sft(
            self, trajectories, config, **({"_config": _config} if _config else {}), **settings
        )

    async def log(
        self,
        groups: Iterable[Run] | None = None,
        split: str = "val",
        step: int | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
        trajectories: Iterable[Run] | None = None,
        report_to: str | Sequence[str] = (),
    ) -> dict[str, float]:
        """Log the rewards and metrics of runs, such as those of a validation set, or numbers of the program's own.

        Args:
            groups: Gathered groups, trajectories that rollouts returned, or captured runs; not needed beside metrics.
            split: The name of the set, such as "val": the prefix of the numbers' names. Runs that were recorded here
                are held out from then on (tag `held-out`): nothing is trained on them, unless the set is "train".
            step: The step whose version sampled them; by default the one served now.
            metrics: Further numbers by name, such as those of a trained step. A name with a slash in it stays as it is,
                and one that a mean has stands in its place.
            trajectories: The same as `groups`, by the name that ART's programs use.
            report_to: Trackers to send them to, by the names that `train` uses ("wandb,tensorboard"), in the run to
                which the trainer reports the steps.

        Returns:
            The numbers by name, the mean "val/reward" among them, as they are appended to `logs/NAME.jsonl` in the data
            directory; `arttrace policies` and the viewer show them beside the version, but for those of "train", which
            the version has itself.

        Raises:
            ServingError: The model is not registered, or its step is not known.
            TrainingError: There is no such tracker, or its package is missing.
            ArttraceError: A number is not finite, or there are neither runs nor metrics.
        """
        backend = self._require_registered()
        step = int(await asyncio.to_thread(self.get_step) if step is None else step)
        numbers = await super().log(groups, split, step, metrics=metrics, trajectories=trajectories)
        trackers = report_to.split(",") if isinstance(report_to, str) else report_to
        if trackers:
            await backend.log(self, LoggedNumbers(step, numbers), [one.strip() for one in trackers])
        return numbers

    async def delete_checkpoints(
        self, keep_best: int = 1, keep_latest: int = 1, *, best_checkpoint_metric: str = BEST_BY
    ) -> None:
        """Remove the weights of old versions. The record of what they were trained on is kept.

        Args:
            keep_best: The number of versions to keep with the highest reward.
            keep_latest: The number of newest versions to keep, at least two. Versions that are served, rolled back to
                or forked from are kept too.
            best_checkpoint_metric: What the best is the best by: the reward of the runs that it sampled, no other.

        Raises:
            ServingError: The model is not registered, or its versions are on a server.
            TrainingError: The versions cannot be removed, or the best by another number is asked for.
        """
        if best_checkpoint_metric != BEST_BY:
            raise TrainingError(
                f"versions are not ranked by {best_checkpoint_metric}: keep_best goes by {BEST_BY}",
                "Leave best_checkpoint_metric out, or keep more of the newest: keep_latest=10.",
            )
        await self._require_registered().delete_checkpoints(self, keep_best, keep_latest)

    def get_step(self) -> ServedStep:
        """The step that made the version served now; 0 is the base model. It need not be awaited, but may be.

        Raises:
            ServingError: The model is not registered, or the gateway does not answer.
        """
        self._require_registered()
        url = str(self.inference_base_url).removesuffix("/v1")
        return served_step(self.name, url, self.inference_api_key or api_key())
