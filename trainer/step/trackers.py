"""The trackers that a step's numbers can go to: TensorBoard, W&B, trackio, MLflow, each imported only when asked for.

Each gets the numbers at their step, an example run as a table, and, where it keeps artifacts, the adapter as a version
of one. A restart goes on with the run of the policy, which is known by an id that lies in the policy's directory:
policies of one name in two stores are two runs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from arttrace.records.policy import PolicyStep
from arttrace.system.files import replace_file
from arttrace.system.processes import signals_after_imports
from trainer.step.example import COLUMNS, ExampleTable

_PROJECT = "arttrace"
_FILES = ("adapter_config.json", "adapter_model.safetensors")
_RUN_ID = "tracker_run_id"
_LONGEST_NAME = 48  # W&B takes ids of 64 characters


def run_id(folder: Path, policy: str) -> str:
    """The id of the policy's run, made once. A policy that had versions before it had an id was reported under its
    name, and stays so."""
    path = folder / _RUN_ID
    with contextlib.suppress(FileNotFoundError):
        if known := path.read_text().strip():  # an earlier version could be killed before it was written
            return known
    folder.mkdir(parents=True, exist_ok=True)
    is_known = any(folder.glob("*@[1-9]*"))
    made = policy if is_known else f"{policy[:_LONGEST_NAME]}-{secrets.token_hex(4)}"
    replace_file(path, made.encode())
    return made


class StepIsOver(Exception):
    """A tracker takes numbers in the order of their steps, and has later ones."""


class Tracker(Protocol):
    """One place that numbers go to. A step is written `held_s` seconds after a later one was told, at the latest, or
    when it is closed; a kill before that loses it. 0: it is written at once."""

    held_s: float

    def step(self, done: PolicyStep, adapter: Path | None, example: ExampleTable | None) -> None:
        """The numbers of one version; `adapter` is its directory while it has weights. Raises StepIsOver as `log`."""
        ...

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Further numbers at a step. Raises StepIsOver where the tracker takes none at that step any more."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files under `folder`. It keeps no artifacts."""

    held_s = 0.0

    def __init__(self, folder: Path, policy: str, config: Mapping[str, Any]) -> None:
        with signals_after_imports():
            from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard" / policy))

    def step(self, done: PolicyStep, adapter: Path | None, example: ExampleTable | None) -> None:
        """One scalar per number, the example as text."""
        at = done.time_ns / 1e9
        for name, value in done.metrics.items():
            self._writer.add_scalar(name, value, done.step, walltime=at)
        if example is not None:
            self._writer.add_text("example", example.markdown(), done.step, walltime=at)
        self._writer.flush()

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """One scalar per number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


class WandB:
    """A run per policy, in the project WANDB_PROJECT or else `arttrace`; each version's adapter is a version of the
    artifact that has the run's id as its name."""

    held_s = 30.0  # its service writes a step when the next one begins, every 15 s

    def __init__(self, folder: Path, policy: str, config: Mapping[str, Any]) -> None:
        # The service of a program that started this process outlives it, and would keep the run of one that was killed.
        os.environ.pop("WANDB_SERVICE", None)
        with signals_after_imports():
            wandb: Any = import_module("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        self._wandb = wandb
        self._artifact = run_id(folder, policy)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            name=policy,
            id=self._artifact,
            resume="allow",
            dir=str(folder),
            config=dict(config),
        )

    def step(self, done: PolicyStep, adapter: Path | None, example: ExampleTable | None) -> None:
        """The adapter's files, and the numbers as `log` takes them."""
        if adapter is not None:
            artifact = self._wandb.Artifact(self._artifact, type="model", metadata={"version": done.version})
            for name in _FILES:
                artifact.add_file(str(adapter / name))
            self._run.log_artifact(artifact, aliases=["latest", f"step-{done.step}"])
        table = {} if example is None else {"example": self._wandb.Table(columns=[*COLUMNS], data=example.cells())}
        self.log({**done.metrics, **table}, done.step)

    def log(self, numbers: Mapping[str, Any], step: int) -> None:
        """The numbers beside those of the step. Raises StepIsOver: W&B drops what comes for an earlier step."""
        if step < self._run.step:
            raise StepIsOver(f"W&B is at step {self._run.step}, and takes no more numbers of step {step}")
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


class Trackio:
    """A run per policy in the project `arttrace`, where trackio keeps its own; adapters as in W&B. It knows runs by
    their names alone, so that the run's id is its name."""

    held_s = 0.0

    def __init__(self, folder: Path, policy: str, config: Mapping[str, Any]) -> None:
        with signals_after_imports():
            self._trackio: Any = import_module("trackio")
        self._name = run_id(folder, policy)
        with redirect_stdout(sys.stderr):  # it talks; stdout is for versions
            self._trackio.init(project=_PROJECT, name=self._name, resume="allow", config=dict(config))

    def step(self, done: PolicyStep, adapter: Path | None, example: ExampleTable | None) -> None:
        """The numbers at their step, and the adapter's files."""
        with redirect_stdout(sys.stderr):
            table = {} if example is None else {"example": self._trackio.Table([*COLUMNS], example.cells())}
            self._trackio.log({**done.metrics, **table}, step=done.step)
            if adapter is not None:
                artifact = self._trackio.Artifact(self._name, type="model", metadata={"version": done.version})
                for name in _FILES:
                    artifact.add_file(str(adapter / name))
                self._trackio.log_artifact(artifact, aliases=[f"step-{done.step}"])

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """The numbers at their step."""
        with redirect_stdout(sys.stderr):
            self._trackio.log(dict(numbers), step=step)

    def close(self) -> None:
        """Ends the run."""
        with redirect_stdout(sys.stderr):
            self._trackio.finish()


class MLflow:
    """A run per policy in the experiment `arttrace`, at MLFLOW_TRACKING_URI or else in `mlflow.db` and `mlflow` under
    `folder`; each version's adapter lies in the artifacts under `adapters/policy@N`."""

    held_s = 0.0

    def __init__(self, folder: Path, policy: str, config: Mapping[str, Any]) -> None:
        # A server that is away costs each request these at most: as MLflow has them it would be minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        with signals_after_imports():
            mlflow: Any = import_module("mlflow")
            self._entities: Any = import_module("mlflow.entities")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{(folder / 'mlflow.db').absolute()}"
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        self._run = self._run_of(policy, folder, config)

    def _run_of(self, policy: str, folder: Path, config: Mapping[str, Any]) -> str:
        id = run_id(folder, policy)
        known = self._client.get_experiment_by_name(_PROJECT)
        if known is None:
            at = None if os.environ.get("MLFLOW_TRACKING_URI") else (folder / "mlflow").absolute().as_uri()
            experiment = self._client.create_experiment(_PROJECT, artifact_location=at)
        else:
            experiment = known.experiment_id
            for tag in ("arttrace.run", "arttrace.policy"):
                for run in self._client.search_runs([experiment], f"tags.`{tag}` = '{id}'", max_results=1000):
                    if run.data.tags.get("arttrace.run", id) == id:
                        return str(run.info.run_id)
        made = self._client.create_run(
            experiment, run_name=policy, tags={"arttrace.policy": policy, "arttrace.run": id}
        )
        self._client.log_dict(made.info.run_id, dict(config), "config.json")
        return str(made.info.run_id)

    def step(self, done: PolicyStep, adapter: Path | None, example: ExampleTable | None) -> None:
        """The numbers at their step, the example as a table of its own, and the adapter's files."""
        self._numbers(done.metrics, done.step, done.time_ns)
        if example is not None:
            rows = example.cells()
            columns = {name: [row[at] for row in rows] for at, name in enumerate(COLUMNS)}
            self._client.log_table(self._run, columns, f"examples/step-{done.step}.json")
        for name in _FILES if adapter is not None else ():
            self._client.log_artifact(self._run, str(adapter / name), f"adapters/{done.version}")  # type: ignore[operator]

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """The numbers at their step."""
        self._numbers(numbers, step, time.time_ns())

    def _numbers(self, numbers: Mapping[str, float], step: int, time_ns: int) -> None:
        metrics = [self._entities.Metric(name, value, time_ns // 1_000_000, step) for name, value in numbers.items()]
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(self._run, metrics=metrics[start : start + 1000])

    def close(self) -> None:
        """Marks the run as finished; the next start goes on with it."""
        self._client.set_terminated(self._run)
