"""The real MLflow, in an environment of its own beside this one, and what it holds of a policy's run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from own_environment import kept_environment, own_packages

ROOT = Path(__file__).parents[2]


def mlflow_python(tmp_path: Path) -> str:
    """An interpreter that has MLflow and all that this one has; its environment is kept where TEST_ENVIRONMENTS
    says."""
    environment = kept_environment("mlflow", "mlflow", tmp_path)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text(f"{own_packages()}{ROOT}\n")
    return str(environment / "bin" / "python")


def mlflow_holds(python: str, folder: Path) -> dict[str, Any]:
    """What MLflow's own client reads of the only run in a policy's directory: name and status, numbers by name as
    (step, value), the adapters' files, example tables, and the settings."""
    done = subprocess.run([python, "-c", _READ, str(folder)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


_READ = """
import json, sys
import mlflow
client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}/mlflow.db")
experiment = client.get_experiment_by_name("arttrace")
[run] = client.search_runs([experiment.experiment_id])
id = run.info.run_id
def text(path):
    return json.loads(open(client.download_artifacts(id, path)).read())
folders = sorted(one.path for one in client.list_artifacts(id, "adapters"))
print(json.dumps({
    "run": [run.info.run_name, run.info.status],
    "numbers": {
        name: [[one.step, one.value] for one in client.get_metric_history(id, name)] for name in run.data.metrics
    },
    "adapters": sorted(file.path for folder in folders for file in client.list_artifacts(id, folder)),
    "examples": [text(one.path) for one in client.list_artifacts(id, "examples")],
    "config": text("config.json"),
}))
"""
