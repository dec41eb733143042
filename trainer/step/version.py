"""Makes a learner's weights the next version of a policy: checkpoint, publish, record; the same for every method.

The adapter is handed over as soon as it is written; the optimizer's state and the disk are waited for afterwards. A
version exists, and what it was trained on counts as consumed, once its manifest is on disk: a process that is killed
before that takes the step again when it is started; one that is killed later publishes and records the version first.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.store import AnyStore
from arttrace.system.errors import ArttraceError, ServingError, TrainingError
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.retention import KEPT_STATES, states_to_drop
from trainer.serving import GatewayStatus, PublishReport
from trainer.step.phases import Clock, Phase
from trainer.step.retry import Retry, no_retry

_log = logging.getLogger("trainer")


class PublishingGateway(Protocol):
    """Where a version is published, as GatewayClient does it; None from `publish` says that nobody serves."""

    def publish(self, step: int, path: Path) -> PublishReport | None: ...
    def status(self) -> GatewayStatus | None: ...
    def fall_asleep(self) -> Callable[[], None]: ...


class Saving(Protocol):
    """Who holds the weights, as Learner does it."""

    base_weights: str

    def save_adapter(self, directory: Path) -> None: ...
    def save_rest(self, directory: Path) -> None: ...


def complete_step(
    store: AnyStore,
    checkpoints: Checkpoints,
    gateway: PublishingGateway | None,
    base_model: str,
    learner: Saving,
    consumed: tuple[Consumed, ...],
    metrics: Mapping[str, float],
    clock: Clock,
    retry: Retry = no_retry,
    *,
    method: str,
    keep_states: int = KEPT_STATES,
) -> PolicyStep:
    """Make the learner's weights the next version: served as soon as its adapter is written, then whole on disk, which
    is when its runs count as consumed, then recorded. Raises ServingError where it could not be served: it is recorded
    then, and served when the engine is back. All but the newest `keep_states` versions lose their optimizer
    state (0: none)."""
    clock(Phase.CHECKPOINT)
    before = checkpoints.served() or 0
    step, path = retry(lambda: checkpoints.hand_over(learner.save_adapter))
    manifest = PolicyStep(
        policy=checkpoints.policy,
        step=step,
        adapter=str(path),
        consumed=consumed,
        metrics=_finite(metrics, f"{checkpoints.policy}@{step}"),
        base_model=base_model,
        time_ns=time.time_ns(),
        method=method,
        base_weights=learner.base_weights,
    )
    clock(Phase.PUBLISH)
    answered = False
    try:
        published = _published_early(gateway, step, path)
        answered = True
        clock(Phase.CHECKPOINT)
        retry(lambda: checkpoints.complete(step, learner.save_rest, manifest))
    except BaseException:
        if gateway is not None and step not in checkpoints.steps():  # nothing but a version may answer for long
            with contextlib.suppress(ArttraceError):
                # Also where publishing it was given up, too early; interrupted, it may go on for a while.
                if not answered or ((status := gateway.status()) is not None and status.step == step):
                    gateway.publish(before, checkpoints.path(before))
        raise
    if gateway is not None:
        try:
            if published is None:
                clock(Phase.PUBLISH)
                published = retry(lambda: gateway.publish(step, path))
            if (status := retry(gateway.status)) is not None and status.step != step:  # it was restarted meanwhile
                retry(lambda: gateway.publish(step, path))
        except ArttraceError as error:
            with contextlib.suppress(ArttraceError):
                store.append([manifest])  # what is on disk counts, served or not
            raise ServingError(
                f"{manifest.version} was made and is not served yet: {error.message}",
                "Its runs count as trained on. It is served as soon as the engine is back or `arttrace serve` runs "
                "again: go on with new runs then.",
            ) from error
    clock(Phase.RECORD)
    numbers = dict(manifest.metrics)
    if published:
        numbers["publish_logprob_change"] = published.max_logprob_change
    clock.stop()
    numbers |= {f"{phase.value}_s": seconds for phase, seconds in clock.seconds.items()}
    done = msgspec.structs.replace(manifest, metrics=numbers)
    retry(lambda: store.append([done]))
    checkpoints.drop_states(states_to_drop(checkpoints.steps(), keep_states, checkpoints.kept()))
    return done


def _finite(metrics: Mapping[str, float], version: str) -> dict[str, float]:
    """Those that JSON has a number for: a manifest with another could not be read again."""
    if odd := sorted(name for name, value in metrics.items() if not math.isfinite(value)):
        are = "is no finite number, and is" if len(odd) == 1 else "are no finite numbers, and are"
        _log.warning("%s: %s %s not stored", version, " and ".join(odd), are)
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _published_early(gateway: PublishingGateway | None, step: int, path: Path) -> PublishReport | None:
    """Publish what is not on disk yet; what goes wrong is tried again, and raised, when it is."""
    try:
        return gateway.publish(step, path) if gateway else None
    except ArttraceError:
        return None


def require_recorded_versions(store: AnyStore, checkpoints: Checkpoints, retry: Retry = no_retry) -> None:
    """Raises TrainingError when the newest version that the store knows is not on disk: what it was trained on stands
    in its manifest, so training would begin anew, on the same runs, under the same name."""
    query = f"SELECT max(step) FROM policy_step_records WHERE policy = '{checkpoints.policy}'"  # noqa: S608  a file name
    _, [(newest,)] = retry(lambda: store.sql(query))
    if newest is not None and newest > max(checkpoints.all_steps(), default=0):
        raise TrainingError(
            f"{checkpoints.policy}@{newest} was made here, but is not in {checkpoints.directory}: the directory was "
            "deleted, moved or restored from an older copy.",
            "Put it back, or train another policy: --policy NAME.",
        )


def finish_open_step(
    store: AnyStore, checkpoints: Checkpoints, gateway: PublishingGateway | None, retry: Retry = no_retry
) -> None:
    """Record and publish the checkpoints that a killed or failed step left unrecorded or unserved.

    To be called before anyone asks the store what a policy was not trained on.
    """
    require_recorded_versions(store, checkpoints, retry)
    newest = checkpoints.latest() or 0
    recorded = {done.step for done in retry(lambda: store.policy_steps(checkpoints.policy))} if newest else set()
    missing = [checkpoints.manifest(n) for n in checkpoints.all_steps() if n not in recorded]
    if missing:
        retry(lambda: store.append(missing))
    served = retry(gateway.status) if gateway is not None else None
    if gateway is None or served is None:
        return
    # What was handed over by a step that was not completed goes on answering: the step is about to be taken again.
    if newest > max(served.step, served.passed_over) and checkpoints.served() == newest:
        retry(lambda: gateway.publish(newest, checkpoints.path(newest)))
