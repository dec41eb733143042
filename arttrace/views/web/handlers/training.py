"""`/training`: what the daemon does now, a policy's curves and versions, and the runs of a step."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from arttrace.records.values.nesting import UNREADABLE
from arttrace.store.access.late_spans import late
from arttrace.system.evaluations import read_evaluations
from arttrace.system.journal.lock import lives_and_holds
from arttrace.system.paths import DataDir
from arttrace.views.web.handlers.request_fields import integer, reader_of
from arttrace.views.web.handlers.runs import once_all_read
from arttrace.views.web.models.run_list import run_row
from arttrace.views.web.models.training_page import DaemonStatus, ServedPolicy, charts, doing, versions
from arttrace.views.web.rendering import page
from arttrace.views.web.store_reader import NotHere

MOST_VERSIONS = 1000


def show(request: Request) -> Response:
    """The page of a policy."""
    reader = reader_of(request)
    newest = reader.newest_steps()
    daemons = {one.policy: one for one in _daemons(reader.store.data)}
    names = sorted({*newest, *daemons})
    wanted = request.query_params.get("policy", "")
    if wanted and wanted not in names:
        raise NotHere("policy", f"There is no policy {wanted!r} here.", "Training has those there are.")
    policy = wanted or next(iter(names), "")
    steps = reader.store.policy_steps(policy) if policy else []
    daemon = daemons.get(policy)
    evaluated = read_evaluations(reader.store.data, policy) if policy else {}
    made = versions(policy, steps, evaluated)
    return page(
        "training.html",
        section="training",
        policies=[(name, newest.get(name)) for name in names],
        policy=policy,
        daemon=daemon,
        served=_served(reader.store.data, policy),
        doing=doing(daemon, lives_and_holds(daemon.pid, reader.store.data.training_lock(policy))) if daemon else "",
        charts=charts(steps, evaluated),
        versions=made[:MOST_VERSIONS],
        total=len(made),
        any_evaluated=any(one.evaluated for one in made),
        base_model=steps[-1].base_model if steps else "",
    )


@once_all_read("Training")
def step(request: Request) -> Response:
    """The runs that a step was trained on."""
    reader, policy, number = reader_of(request), request.query_params.get("policy", ""), integer(request, "step")
    found = next((one for one in reader.store.policy_steps(policy) if one.step == number), None)
    if found is None:
        raise NotHere("version", f"There is no {policy}@{number} here.")
    known = {run.id: run for run in reader.runs()}
    trained = found.trained
    runs = [known[one.trajectory_id] for one in trained if one.trajectory_id in known]
    return page(
        "step.html",
        section="training",
        step=found,
        rows=[run_row(run) for run in runs],
        late=late(reader.store, runs, policy),
        trained=len(trained),
        gone=len(trained) - len(runs),
        set_aside=len(found.consumed) - len(trained),
        metrics=sorted(found.numbers.items()),
    )


def _served(data: DataDir, policy: str) -> str:
    """The version of `policy` that answers now, "" when nobody serves it here."""
    try:
        serving = msgspec.json.decode(data.serving.read_bytes(), type=ServedPolicy)
    except (OSError, *UNREADABLE):
        return ""
    here = serving.policy == policy and lives_and_holds(serving.pid, data.serving_lock)
    return (serving.version or "a version not known here") if here else ""


def _daemons(data: DataDir) -> list[DaemonStatus]:
    found = []
    for file in sorted(data.policies.glob("*/daemon.json")):
        try:
            found.append(msgspec.json.decode(file.read_bytes(), type=DaemonStatus))
        except (OSError, *UNREADABLE):  # replaced at this moment, or of another version
            continue
    return found
