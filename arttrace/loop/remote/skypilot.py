"""SkyPilotBackend: the server on a cloud GPU for as long as a program runs, by SkyPilot's own commands.

The server listens on its machine's loopback and is reached through ssh: no port is open, and no key is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from arttrace.capture.export.lifecycle import recorder
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.model import TrainableModel
from arttrace.loop.processes.art_names import TrainSFTConfig
from arttrace.loop.processes.trainer_process import LoggedNumbers, TrainedSteps
from arttrace.loop.remote.backend import ServerBackend
from arttrace.loop.trajectory import Trajectory
from arttrace.system.errors import ServingError
from arttrace.system.exit_status import how_ended

_PORT = 8000
_TASK = Path("examples") / "skypilot" / "server.yaml"
_LOOK_EVERY_S = 5.0
_STOP_SERVER = """
pid=$(sed -n 's/.*"pid": *\\([0-9][0-9]*\\).*/\\1/p' checkpoints/serving.json 2>/dev/null)
[ -z "$pid" ] && exit 0
kill -INT "$pid" 2>/dev/null || exit 0
timeout 1800 sh -c "while kill -0 $pid 2>/dev/null; do sleep 1; done" && exit 0
echo "the server does not stop" >&2
exit 1
"""
"""As Ctrl-C: the server finishes its step, writes what is in memory and closes the store, so that the copy is
consistent."""
_SHOWN = 2000
_SSH_ITSELF = 255
"""How ssh ends where not the command that it runs has failed, but ssh."""


class SkyPilotBackend:
    """Serves and trains on a cloud machine that it launches, and tears down at the end.

    `register` launches it, by `sky launch`, with the model's base model and name. `close`, and the end of an `async
    with` block, stops the server after its step, copies runs and versions here and deletes the machine; where they
    cannot be copied the machine stays, and the error says so. A program that is killed leaves the machine running:
    `sky down NAME` ends it.

    Needs the commands of `skypilot` (with a cloud that `sky check` finds), ssh and rsync.

    Args:
        accelerators: GPUs as SkyPilot names them, such as "H100:1"; by default those of the task's file.
        cluster: The machine's name. A machine of this name that runs already is used.
        infra: Where, such as "aws/us-east-1"; by default the cheapest that SkyPilot finds.
        checkpoints: The directory here that runs and versions are copied to.
        workdir: A clone of arttrace to install there; by default the one that this code is in.
        ready_within_s: Seconds until the server must answer, once it is launched.

    Example:
        ```python
        async with art.SkyPilotBackend("H100:1") as backend:
            await model.register(backend)
            ...
        ```
    """

    def __init__(
        self,
        accelerators: str | None = None,
        *,
        cluster: str = "arttrace",
        infra: str | None = None,
        checkpoints: str | Path = "checkpoints",
        workdir: str | Path | None = None,
        ready_within_s: float = 3600.0,
    ) -> None:
        self.data = recorder().settings.data
        self._accelerators = accelerators
        self._cluster = cluster
        self._infra = infra
        self._checkpoints = Path(checkpoints).absolute()
        self._workdir = Path(__file__).parents[3] if workdir is None else Path(workdir).absolute()
        self._ready_within_s = ready_within_s
        self._server: ServerBackend | None = None
        self._tunnel: asyncio.Task[None] | None = None
        self._launched = False

    async def __aenter__(self) -> SkyPilotBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def register(self, model: TrainableModel) -> None:
        """Launch the machine and its server, and point the model's client and its training there.

        Args:
            model: The model to serve; its base model is a name on the Hugging Face hub.

        Raises:
            ServingError: A command is missing or fails, or the server does not answer in time.
        """
        if self._server is None:
            self._server = await self._launch(model)
        await self._server.register(model)

    async def train(
        self, model: TrainableModel, groups: Sequence[TrajectoryGroup] | None = None, **settings: Any
    ) -> TrainedSteps:
        """As `ServerBackend.train`.

        Args:
            model: The model to train, registered.
            groups: Gathered groups, with the rewards that their runs have by now.
            settings: The options of `arttrace train` by their names, or by those of ART.

        Returns:
            A list with a TrainedStep per step.

        Raises:
            TrainingError: The step failed.
            ServingError: The model is not registered, or the server does not answer.
        """
        return await self._launched_server().train(model, groups, **settings)

    async def train_sft(
        self,
        model: TrainableModel,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        **settings: Any,
    ) -> TrainedSteps:
        """As `ServerBackend.train_sft`.

        Args:
            model: The model to train, registered.
            trajectories: What is to be imitated; one without messages is imitated as its run was captured.
            config: How many of them make an optimizer step, its learning rate, and which messages are imitated.
            settings: The options of `arttrace train --method sft` by their names.

        Returns:
            A list with the TrainedStep.

        Raises:
            ArttraceError: Something else than trajectories was passed, or a message is none.
            TrainingError: There is nothing to imitate, there is a learning rate too few or too many, or the step
                failed.
            ServingError: The model is not registered, or the server does not answer.
        """
        return await self._launched_server().train_sft(model, trajectories, config, **settings)

    async def log(self, model: TrainableModel, numbers: LoggedNumbers, report_to: Sequence[str]) -> None:
        """As `ServerBackend.log`.

        Args:
            model: The model whose run in the tracker it is.
            numbers: The step, and the numbers by name.
            report_to: The trackers' names.

        Raises:
            TrainingError: There is no such tracker, or the server lacks its package.
            ServingError: The model is not registered, or the server does not answer.
        """
        await self._launched_server().log(model, numbers, report_to)

    def _launched_server(self) -> ServerBackend:
        if self._server is None:
            raise ServingError("no machine is launched", "Call `await model.register(backend)` first.")
        return self._server

    async def delete_checkpoints(self, model: TrainableModel, keep_best: int = 1, keep_latest: int = 1) -> None:
        """As `ServerBackend.delete_checkpoints`.

        Args:
            model: The model.
            keep_best: The number of versions to keep with the highest reward.
            keep_latest: The number of newest versions to keep.

        Raises:
            ServingError: Always, with the command.
        """
        raise ServingError(
            f"the versions of {model.name} lie on {self._cluster}",
            f"There: ssh {self._cluster} arttrace-env/bin/arttrace policies --dir checkpoints prune {model.name} "
            f"--keep-best {keep_best} --keep-latest {keep_latest}",
        )

    async def close(self) -> None:
        """Stop the server, copy runs and versions to `checkpoints` and delete the machine.

        Raises:
            ServingError: They could not be copied, or looked for, so the machine still runs; or it could not be
                deleted.
        """
        if not self._launched:
            return
        if self._tunnel is not None:
            self._tunnel.cancel()
            await asyncio.wait((self._tunnel,))
            self._tunnel = None
        if self._server is not None or await self._holds_versions():
            self._checkpoints.mkdir(parents=True, exist_ok=True)
            try:
                await self._on_machine(_STOP_SERVER)
                await _run("rsync", "-a", f"{self._cluster}:checkpoints/", f"{self._checkpoints}/")
            except ServingError as error:
                raise ServingError(
                    f"versions could not be copied from {self._cluster}, which still runs and costs: {error.message}",
                    f"Copy them: rsync -a {self._cluster}:checkpoints/ checkpoints/ - then: sky down {self._cluster}",
                ) from error
            self._server = None  # only now: a second `close` copies too, before anything is deleted
        await _run("sky", "down", "--yes", self._cluster)
        self._launched = False

    async def _holds_versions(self) -> bool:
        """Whether the machine has versions, of a program before that was killed. Raises ServingError when it cannot be
        asked."""
        try:
            await self._on_machine("ls checkpoints/policies")
        except _CommandFailed as failed:
            if failed.status != _SSH_ITSELF:
                return False
            raise ServingError(
                f"{self._cluster} cannot be asked whether it has versions, and is not deleted: {failed.message}",
                f"If it runs, it costs. `sky status` says so; to delete it: sky down {self._cluster}",
            ) from failed
        return True

    async def _on_machine(self, command: str) -> None:
        """Run a shell command on the machine. Raises ServingError when it fails."""
        await _run("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", self._cluster, command)

    def _launch_command(self, model: TrainableModel) -> list[str]:
        chosen = {"--gpus": self._accelerators, "--infra": self._infra}
        options = [word for option, value in chosen.items() if value for word in (option, value)]
        named = ["--env", f"MODEL={model.base_model}", "--env", f"POLICY={model.name}"]
        place = ["--cluster", self._cluster, "--workdir", str(self._workdir)]
        return ["sky", "launch", "--yes", "--detach-run", *place, *named, *options, str(self._workdir / _TASK)]

    async def _launch(self, model: TrainableModel) -> ServerBackend:
        for command, hint in (("sky", "pip install skypilot, in any environment"), ("ssh", ""), ("rsync", "")):
            if shutil.which(command) is None:
                raise ServingError(f"there is no command {command}", hint or f"Install {command}.")
        if not (self._workdir / _TASK).is_file():
            raise ServingError(
                f"{self._workdir} is not a clone of arttrace, which the machine installs it from",
                "Pass workdir=, the directory of a clone.",
            )
        self._launched = True
        try:
            await _run(*self._launch_command(model))
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self._tunnel = asyncio.create_task(self._keep_tunnel(port))
            return await self._answering(f"http://127.0.0.1:{port}", model)
        except BaseException:
            try:
                await self.close()
            except ServingError as left:
                print(f"arttrace: {left.message} {left.hint or ''}".rstrip(), file=sys.stderr)
            raise

    async def _answering(self, url: str, model: TrainableModel) -> ServerBackend:
        until = time.monotonic() + self._ready_within_s
        while True:
            backend = ServerBackend(url)
            try:
                await backend.status()
            except ServingError as error:
                if time.monotonic() > until:
                    raise ServingError(
                        f"the server for {model.base_model} on {self._cluster} did not answer in "
                        f"{self._ready_within_s:.0f} s: {error.message}",
                        f"Its log: sky logs {self._cluster}",
                    ) from error
                await asyncio.sleep(_LOOK_EVERY_S)
            else:
                return backend

    async def _keep_tunnel(self, port: int) -> None:
        """An ssh that forwards `port` to the server, started again when it ends."""
        options = ("-o", "ServerAliveInterval=15", "-o", "ExitOnForwardFailure=yes")
        while True:
            process = await asyncio.create_subprocess_exec(
                "ssh",
                "-N",
                *options,
                "-L",
                f"{port}:127.0.0.1:{_PORT}",
                self._cluster,
                stdin=asyncio.subprocess.DEVNULL,
            )
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()
            await asyncio.sleep(1.0)


class _CommandFailed(ServingError):
    """A command ended with another exit code than 0."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def _run(*command: str) -> None:
    """Run a command to its end; its output is shown. Raises _CommandFailed, a ServingError, when it fails."""
    with tempfile.TemporaryFile() as errors:  # what it leaves running would hold a pipe open
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stderr=errors)
        try:
            await process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
            raise
        errors.seek(0)
        said = errors.read()
    if process.returncode:
        last = said.decode(errors="replace").strip()[-_SHOWN:]
        raise _CommandFailed(
            f"`{' '.join(command[:2])}` ended with {how_ended(process.returncode)}: {last or 'it printed nothing'}",
            process.returncode,
        )
