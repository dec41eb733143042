"""ServerBackend: a server elsewhere serves and trains the model; nothing is started here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arttrace.capture.api import change
from arttrace.capture.export.lifecycle import recorder
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.imitation.examples import take_examples
from arttrace.loop.model import TrainableModel
from arttrace.loop.processes.art_names import TrainSFTConfig, either, own_settings, settings_of_imitation
from arttrace.loop.processes.trainer_process import LoggedNumbers, TrainedSteps
from arttrace.loop.remote.connection import ServerConnection, ServerStatus
from arttrace.loop.remote.submission import submit, upload_captured
from arttrace.loop.trajectory import Trajectory
from arttrace.records.record import encode_record
from arttrace.records.span import SpanRow
from arttrace.system.errors import ServingError, TrainingError


class ServerBackend:
    """Serves and trains on a server (`python -m arttrace.server`), on runs that are captured in this process.

    This process needs no torch, no CUDA and no root. The runs are stored in its data directory and, once trained on, in
    the server's.

    Args:
        url: The server's address, with or without "/v1".
        api_key: Its key; by default $ARTTRACE_API_KEY.

    Example:
        ```python
        model = art.TrainableModel("policy", "Qwen/Qwen2.5-7B-Instruct")
        async with art.ServerBackend("http://gpu-box:8000") as backend:
            await model.register(backend)
            groups = await art.gather_trajectory_groups(
                art.TrajectoryGroup(rollout(model, scenario) for _ in range(8)) for scenario in scenarios
            )
            await model.train(groups)
        ```
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.data = recorder().settings.data
        self._connection = ServerConnection(url, api_key)
        self._uploaded: set[str] = set()
        """The runs to imitate that the server has, as far as is known."""

    async def __aenter__(self) -> ServerBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def status(self) -> ServerStatus:
        """The policy, its version and its base model, as the server reports them.

        Raises:
            ServingError: It does not answer, or asks for another key.
        """
        return await self._connection.status()

    async def register(self, model: TrainableModel) -> None:
        """Point the model's client and its training to the server.

        Args:
            model: The model that the server serves, by its name and base model.

        Raises:
            ServingError: The server does not answer, asks for another key, or serves another policy or base model.
        """
        served = await self._connection.status()
        if served.policy != model.name:
            raise ServingError(
                f"the server at {self._connection.shown} serves the policy {served.policy}, not {model.name}",
                f"Start it with --policy {model.name} (POLICY={model.name} in a container), or call the model "
                f"{served.policy}.",
            )
        named = str(model.base_model).rstrip("/")
        if served.base_model not in (named, named.rpartition("/")[2], Path(named).name):
            raise ServingError(
                f"the server at {self._connection.shown} serves {served.base_model}, not {model.base_model}",
                "Start it with --model, or name its model as base_model here.",
            )
        if model.project is not None:
            change(project=model.project, dir=self.data.root)
        model.inference_base_url, model.inference_api_key = f"{self._connection.url}/v1", self._connection.api_key
        model.backend = self

    async def train(
        self,
        model: TrainableModel,
        groups: Sequence[TrajectoryGroup] | None = None,
        *,
        trajectory_groups: Sequence[TrajectoryGroup] | None = None,
        **settings: Any,
    ) -> TrainedSteps:
        """Train one step on these gathered groups, on the server; without groups, on what waits there. The version is
        served there.

        Args:
            model: The model to train, registered.
            groups: Gathered groups, with the rewards that their runs have by now.
            trajectory_groups: The same, by the name that ART's programs use.
            settings: The options of `arttrace train` by their names, or by those of ART.

        Returns:
            A list with a TrainedStep per step, whose version is served when this returns; empty if all rewards within
            each group are equal.

        Raises:
            TrainingError: The step failed, a run was trained on already, or a setting of ART has no counterpart.
            ServingError: The server does not answer.
        """
        settings = own_settings(settings)
        groups = either(groups, trajectory_groups, "groups and trajectory_groups")
        if groups is None:
            made = await self._connection.train(None, settings)
        else:
            made = await submit(self._connection, groups, settings)
        return TrainedSteps(made, model.get_step)

    async def train_sft(
        self,
        model: TrainableModel,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        **settings: Any,
    ) -> TrainedSteps:
        """Imitate trajectories on the server, as `LocalBackend.train_sft` does here; what they say is uploaded.

        Args:
            model: The model to train, registered.
            trajectories: What is to be imitated; one without messages is imitated as its run was captured.
            config: How many of them make an optimizer step, its learning rate, and which messages are imitated.
            settings: The options of `arttrace train --method sft` by their names.

        Returns:
            A list with the TrainedStep, whose version is served there.

        Raises:
            ArttraceError: Something else than trajectories was passed, or a message is none.
            TrainingError: There is nothing to imitate, there is a learning rate too few or too many, or the step
                failed.
            ServingError: The server does not answer.
        """
        settings = settings_of_imitation(settings)
        found = await take_examples(trajectories, config or TrainSFTConfig(), self._upload)
        await upload_captured(self._connection, found.captured)
        try:
            made = await self._connection.imitate(found.batches, settings)
        except TrainingError:
            self._uploaded.clear()  # they may have been pruned there
            raise
        return TrainedSteps(made, model.get_step)

    async def _upload(self, runs: Mapping[str, Sequence[SpanRow]]) -> None:
        new = {id: spans for id, spans in runs.items() if id not in self._uploaded}
        if new:
            await self._connection.upload([encode_record(span) for spans in new.values() for span in spans])
            self._uploaded.update(new)

    async def log(self, model: TrainableModel, numbers: LoggedNumbers, report_to: Sequence[str]) -> None:
        """Have the server send numbers of a step to trackers.

        Args:
            model: The model whose run in the tracker it is.
            numbers: The step, and the numbers by name.
            report_to: The trackers' names.

        Raises:
            TrainingError: There is no such tracker, or the server lacks its package.
            ServingError: The server does not answer.
        """
        await self._connection.log(numbers, {"report_to": list(report_to)})

    async def delete_checkpoints(self, model: TrainableModel, keep_best: int = 1, keep_latest: int = 1) -> None:
        """Raise ServingError: versions are on the server, where `arttrace policies prune` removes them.

        Args:
            model: The model.
            keep_best: The number of versions to keep with the highest reward.
            keep_latest: The number of newest versions to keep.

        Raises:
            ServingError: Always, with the command.
        """
        raise ServingError(
            f"the versions of {model.name} lie on the server at {self._connection.shown}",
            f"There: arttrace policies --dir checkpoints prune {model.name} --keep-best {keep_best} "
            f"--keep-latest {keep_latest}",
        )

    async def close(self) -> None:
        """Nothing was started here; the server goes on."""
