"""The functions of the public surface that are not decorators: init, reward, update, flush and their like."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from arttrace.capture.base.guard import Guard, logger
from arttrace.capture.base.receiver import Receiver
from arttrace.capture.base.sample_rate import Sample
from arttrace.capture.base.settings import Orphans, Settings
from arttrace.capture.context import program
from arttrace.capture.context.flow import calling_flow, current_flow, set_flow
from arttrace.capture.context.no_capture import NoCapture
from arttrace.capture.context.recorded_tools import RecordedTools
from arttrace.capture.context.rewards import record_reward, warn_unknown_run
from arttrace.capture.context.run import RunOverrides
from arttrace.capture.decorators import trajectory
from arttrace.capture.export import lifecycle
from arttrace.capture.handle import RunHandle, handle_of
from arttrace.capture.patches import hooks
from arttrace.records.values.users_text import plain_text
from arttrace.system.paths import DataDir
from arttrace.wire.content import ContentMode, Mask

_T = TypeVar("_T")

_guard = Guard("the public functions")


def init(
    *,
    project: str | None = None,
    dir: str | Path | None = None,
    capture_content: ContentMode | None = None,
    mask: Mask | None = None,
    sample: Sample | None = None,
    retain: str | None = None,
    retain_size: str | None = None,
    orphans: Orphans | None = None,
    capture_http: bool | None = None,
    http_spans: bool | Sequence[str] | None = None,
    trainable: Sequence[str] | None = None,
    propagate: Sequence[str] | None = None,
    endpoint: str | None = None,
    api_key: str | None = None,
    receivers: Sequence[Receiver | str] = (),
    langfuse: bool | None = None,
) -> None:
    """Configure capture. An argument goes before its environment variable; without a call the first decorated run uses
    the environment and the defaults.

    Args:
        project: The project's name. ARTTRACE_PROJECT; "default".
        dir: The data directory. ARTTRACE_DIR; ".arttrace".
        capture_content: "full", "redacted" (structure and lengths) or "off". ARTTRACE_CAPTURE_CONTENT; "full".
        mask: A callable `(value, *, kind)` that returns the masked value. It is called with lists of structured
            messages, arguments, results, metadata and errors before they are written, in a thread of arttrace's. Where
            it raises, that value is dropped and its span is kept.
        sample: The share of runs that is stored, 0 to 1, or a callable that is called with each run at its beginning
            (`.id`, `.name`, `.tags`, `.metadata`) and returns a bool or a share. Runs that fail or are rewarded before
            they end are always stored. ARTTRACE_SAMPLE (a number); 1.
        retain: Remove runs from the local store once they are older: "30d", "12h". The value is kept in the data
            directory and applies to whoever opens the store there, until another one is set; "none" unsets it.
            ARTTRACE_RETAIN; none are removed.
        retain_size: Remove the oldest runs while the local store is larger: "10GB". ARTTRACE_RETAIN_SIZE; none are
            removed.
        orphans: "record" calls outside any trajectory, or "ignore" them. ARTTRACE_ORPHANS; "record".
        capture_http: Record model calls of plain HTTP clients too. ARTTRACE_CAPTURE_HTTP; False.
        http_spans: Record the requests that tools make with httpx, httpx2, requests and aiohttp: method, address,
            status, sizes and times. `["headers", "bodies"]`, or one of them, is recorded with them, without secrets.
            ARTTRACE_HTTP_SPANS (`1`, or `headers,bodies`); False.
        trainable: Base URLs of servers that are asked for token ids. ARTTRACE_TRAINABLE; none.
        propagate: Hosts ("host" or "host:port") whose servers receive the trajectory id, so that what they do joins it.
            ARTTRACE_PROPAGATE; none.
        endpoint: The base URL of a collector to ship to; after a comma further receivers. ARTTRACE_ENDPOINT; none.
        api_key: The collector's bearer token. ARTTRACE_API_KEY; none.
        receivers: OTLP receivers to which everything recorded is sent, beside the local store or the collector: base
            URLs, or `arttrace.Receiver(url, headers=...)`. The one of OTEL_EXPORTER_OTLP_* is added.
        langfuse: Send everything recorded to the Langfuse project of LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and
            LANGFUSE_BASE_URL (or LANGFUSE_HOST) too. ARTTRACE_LANGFUSE; False.

    A later call with other values closes the spool of the one before.
    """
    with _guard:
        settings = Settings.resolve(
            project=project,
            dir=dir,
            capture_content=capture_content,
            mask=_unrecorded(mask),
            sample=_unrecorded(sample),
            retain=retain,
            retain_size=retain_size,
            orphans=orphans,
            capture_http=capture_http,
            http_spans=http_spans,
            trainable=trainable,
            propagate=propagate,
            endpoint=endpoint,
            api_key=api_key,
            receivers=receivers,
            langfuse=langfuse,
        )
        lifecycle.configure(settings, renew=True)
        hooks.install(again=True)


def _unrecorded(rule: _T) -> _T:
    """What a rule of the user's calls is no agent's: a mask would be asked about it in turn, for ever."""
    return no_capture()(rule) if callable(rule) else rule


def change(*, project: str | None = None, dir: str | Path | None = None) -> None:
    """Give capture another project or data directory; whatever else `init` set stays, a mask above all.

    Args:
        project: The project's name; None leaves it.
        dir: The data directory; None leaves it.
    """
    with _guard:
        settings = lifecycle.settings_in_force()
        settings = dataclasses.replace(
            settings,
            project=project or settings.project,
            data=settings.data if dir is None else DataDir.resolve(dir),
        )
        lifecycle.configure(settings, renew=True)
        hooks.install(again=True)


def current_trajectory() -> RunHandle | None:
    """The root of the trajectory that the caller runs in (`.id` is the trajectory's), or None outside of one.

    Under `arttrace run` the program's own trajectory is the outermost.
    """
    with _guard:
        scope = calling_flow().scope or program.scope()
        return None if scope is None else handle_of(scope.root)
    return None


def reward(value: float, name: str = "reward", *, trajectory_id: str | None = None) -> None:
    """Give a trajectory a reward: the one the caller runs in, or one named by id, also long after and elsewhere.

    Args:
        value: A finite number; any other is logged and not recorded.
        name: What is rewarded, for people and for SQL; rewards of all names add up.
        trajectory_id: The run's id (`run.id`), by default that of the run that the caller is in.

    Each call adds a reward. Outside a trajectory and without an id nothing is recorded, and a warning is logged. An id
    that this process does not know is logged once, and its reward is stored: the run may be another process's, or start
    later.
    """
    with _guard:
        if lifecycle.recorder().settings.disabled:
            return
        run = current_trajectory()
        named = None if trajectory_id is None else plain_text(trajectory_id)
        target = named or (run.id if run else None)
        if target is None:
            logger.warning("arttrace: reward(%r) outside a trajectory and without trajectory_id was not recorded", name)
        else:
            if named is not None:
                warn_unknown_run(named)
            record_reward(target, value, name)


def update(*, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()) -> None:
    """Add metadata and tags to the trajectory the caller runs in, whichever process began it. Outside of one, nothing
    happens.

    Args:
        metadata: JSON values by name.
        tags: Free words.

    Tags add up. If several processes set one key of metadata, the value from the process that began the trajectory
    counts, else that of the span that began later.
    """
    with _guard:
        scope = calling_flow().scope or program.scope()
        if scope is not None:
            scope.update(metadata=metadata, tags=tags)


def no_capture() -> NoCapture:
    """Record nothing of what the block calls: `with no_capture():`, or `@no_capture()` on a function of any kind.

    Threads that are started there, and jobs that pools are given, are not recorded either; nor are the processes that
    it starts, where they would be captured because this one is.
    """
    return NoCapture()


def flush(timeout: float | None = None) -> bool:
    """Wait until every call and run finished so far is decoded and on the disk.

    Args:
        timeout: The seconds to wait at most; None waits as long as it takes.

    Returns:
        False when that took longer than `timeout` seconds.
    """
    with _guard:
        return lifecycle.flush(timeout) if lifecycle.started() else True
    return False


def shutdown(timeout: float | None = None) -> bool:
    """Flush, close the spool's segment so that the store may take it away, and, with an endpoint, deliver it.

    Args:
        timeout: The seconds to wait at most; None waits as long as it takes.

    Returns:
        False when that took longer than `timeout` seconds, or a receiver refuses the key or the address, where waiting
        does not help. What was not delivered stays on the disk; the next process or `arttrace ship` delivers it.

    The hooks stay installed, and later calls are recorded in a new segment; `uninstrument` removes the hooks too.
    """
    with _guard:
        return lifecycle.shutdown(timeout) if lifecycle.started() else True
    return False


def uninstrument(timeout: float | None = None) -> bool:
    """Remove arttrace from this process: for tests, notebooks, and applications that others embed.

    Args:
        timeout: The seconds to wait at most; None waits as long as it takes.

    Returns:
        What `shutdown` returns; whatever is open is ended and delivered in the same way.

    Afterwards every module is what it was before arttrace was imported, no thread of arttrace runs, and decorated
    functions run as if they were not decorated. Nothing is recorded until `arttrace.init` installs everything again. A
    hook that another library has wrapped stays in place and passes calls through. A run that is open then is recorded
    no further, and goes on if `arttrace.init` is called before it ends.
    """
    with _guard:
        hooks.uninstall()
        program.end()
        return lifecycle.stop(timeout)
    return False


def run_entry(
    fn: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    trajectory_id: str | None = None,
    scenario: str | None = None,
    group: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    args: Sequence[Any] = (),
    tools: RecordedTools | None = None,
) -> Any:
    """Run an entry point as one trajectory, with values of the rollout in place of its decorator's.

    Args:
        fn: The entry point. It may be decorated with `trajectory` (its name stays), below other decorators too, or not
            at all.
        arguments: Its keyword arguments.
        trajectory_id: The id of the run; random by default.
        scenario: What the run attempts.
        group: The key of its group.
        metadata: JSON values by name.
        tags: Labels, added to those of its decorator.
        args: Its positional arguments.
        tools: A record from which its tools are answered; without one they run.

    Returns:
        What `fn(*args, **arguments)` returns; for a coroutine function a coroutine to be awaited. It raises what `fn`
        raises.
    """
    entry = fn if _is_decorated(fn) else trajectory(fn)
    overrides = RunOverrides(
        trajectory_id=trajectory_id, scenario=scenario, group=group, metadata=metadata, tags=tags, tools=tools
    )
    before = current_flow()
    set_flow(replace(before, overrides=overrides))
    try:
        outcome = entry(*args, **arguments)
    finally:
        set_flow(before)
    return _awaited(outcome, overrides) if inspect.isawaitable(outcome) else outcome


async def _awaited(outcome: Any, overrides: RunOverrides) -> Any:
    before = current_flow()
    set_flow(replace(before, overrides=overrides))
    try:
        return await outcome
    finally:
        set_flow(before)


def _is_decorated(fn: Any) -> bool:
    seen = 0
    while fn is not None and seen < 20:
        if getattr(fn, "_self_arttrace_kind", None) == "trajectory":
            return True
        fn, seen = getattr(fn, "__wrapped__", None), seen + 1
    return False
