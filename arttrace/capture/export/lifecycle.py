"""The one recorder of this process: made on first use, flushed and delivered at exit, renewed in a forked child."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from arttrace.capture.base.guard import Guard, SaidLater, logger
from arttrace.capture.base.settings import NONE, Settings
from arttrace.capture.export import summary
from arttrace.system import native_threads
from arttrace.system.files import replace_file
from arttrace.system.paths import beside_another
from arttrace.system.private_files import make_directory

if TYPE_CHECKING:
    from arttrace.capture.export.recorder import Recorder
    from arttrace.capture.export.spool import Counts


class _Outlasted(NamedTuple):
    """A recorder that was replaced, its counts when it was closed, and itself once more while it has work; later it is
    held by what is still open under it, and by nothing else."""

    recorder: ref[Recorder]
    counts: Counts
    at_work: Recorder | None


_lock = native_threads.Lock()
_recorder: Recorder | None = None
_outlasted: list[_Outlasted] = []
_gone: Counts | None = None
"""Of those that were replaced, and that nothing holds any more."""
_exiting = Guard("the flush at exit", background=True)

_DELIVER_AT_EXIT_S = 5.0  # to a collector that answers; the rest stays in the outbox

_delivers: int | None = None
"""The process that delivers at its end what its children recorded."""

before_exit: list[Callable[[], None]] = []
"""Called before the last flush: what is still open ends here."""


def recorder() -> Recorder:
    """The recorder, with the settings of `init` or of the environment."""
    return _recorder if _recorder is not None else configure()


def is_off() -> bool:
    """Whether capture was stopped, and has not been configured again; runs that are open then go on when it is."""
    return _recorder is not None and _recorder.settings.disabled


def settings_in_force() -> Settings:
    """Those of `init` unless capture was stopped, else those of the environment."""
    return Settings.resolve() if _recorder is None or _recorder.settings.disabled else _recorder.settings


def configure(settings: Settings | None = None, *, renew: bool = False) -> Recorder:
    """Make the recorder (by the environment without `settings`), or with `renew` put another in its place."""
    global _recorder
    with SaidLater(_lock), _lock:
        if _recorder is not None and not renew:
            return _recorder
        from arttrace.capture.export.recorder import Recorder  # on first use: importing arttrace stays quick

        settings = settings or Settings.resolve()
        if not settings.disabled and "ARTTRACE_DIR" not in os.environ and (above := settings.data.above()) is not None:
            logger.warning("arttrace: %s", beside_another(settings.data, above))
        _leave_wish(settings)
        if _recorder is not None:
            if _recorder.settings == settings:
                return _recorder
            _recorder.retire()
            if not _recorder.settings.disabled:
                _outlasted.append(_Outlasted(ref(_recorder), _recorder.counts(), _recorder))
            _let_go()
        atexit.unregister(at_exit)
        if not settings.disabled:
            atexit.register(at_exit)
            for each in _outlasting():
                each.is_off = False
        _recorder = Recorder(settings)
        return _recorder


def _let_go() -> None:
    """Hold none of the replaced that has nothing to do: a program may configure capture for each of its runs."""
    global _outlasted, _gone
    _gone = _sum(_counts_of_gone())
    kept: list[_Outlasted] = []
    for one in _outlasted:
        if (recorder := one.recorder()) is None:
            continue
        if recorder.counts() != one.counts:  # a run ended under it since
            recorder.retire()
        kept.append(_Outlasted(ref(recorder), recorder.counts(), recorder if recorder.has_work else None))
    _outlasted = kept


def _outlasting() -> list[Recorder]:
    return [recorder for one in _outlasted if (recorder := one.recorder()) is not None]


def _counts_of_gone() -> list[Counts]:
    return [*([_gone] if _gone is not None else []), *(one.counts for one in _outlasted if one.recorder() is None)]


def _leave_wish(settings: Settings) -> None:
    """Leave in the data directory how long runs are to be kept, where the settings say it and a store is there."""
    said = {"retain": settings.retain, "retain_size": settings.retain_size}
    if settings.disabled or settings.endpoint is not None or not any(said.values()):
        return
    file = settings.data.retention
    try:
        before = json.loads(file.read_bytes())
    except (OSError, ValueError):
        before = None
    try:
        known = before if isinstance(before, dict) else {}
        wish = {**known, **{name: value for name, value in said.items() if value}}
        wish = {name: value for name, value in wish.items() if value != NONE}
        if wish != before:
            make_directory(settings.data.root)
            replace_file(file, json.dumps(wish).encode())
    except (OSError, ValueError) as error:
        logger.warning("arttrace: %s cannot be written, so that retention stays as it was: %s", file, error)


def started() -> bool:
    """Whether anything of this process could have been recorded."""
    return _recorder is not None


def records() -> bool:
    """Whether this process has recorded something, since its fork where it was forked."""
    return any(each.has_begun for each in _all())


def flush(timeout_s: float | None) -> bool:
    """Put on the disk what ended so far, in runs that outlasted their settings too; False when that takes longer than
    `timeout_s`."""
    left_s = _countdown(timeout_s)
    in_time = True
    for each in _at_work():
        in_time &= each.flush(left_s())
    return in_time


def shutdown(timeout_s: float | None) -> bool:
    """Close the spool's segment and deliver it, and what ended in runs that outlasted their settings; False when that
    takes longer than `timeout_s`."""
    left_s = _countdown(timeout_s)
    in_time = True
    at_work = _at_work()
    for each in at_work:
        in_time &= each.close(left_s())
    for each in at_work:
        in_time &= each.deliver(left_s())
    return in_time


def _at_work() -> list[Recorder]:
    return [*(each for each in _outlasting() if each.has_work), recorder()]


def _countdown(timeout_s: float | None) -> Callable[[], float | None]:
    """What is left of it, each time it is asked."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    return lambda: None if end is None else max(0.0, end - time.monotonic())


def stop(timeout_s: float | None) -> bool:
    """Deliver as `shutdown` does, end every thread, and record nothing until `configure` is given settings."""
    delivered = shutdown(timeout_s) if _recorder is not None else True
    configure(replace(_recorder.settings if _recorder is not None else Settings.resolve(), disabled=True), renew=True)
    for each in _all():
        each.stop()
        each.is_off = True
    return delivered


def hand_over(timeout_s: float) -> None:
    """Return when what was recorded outlives this process, which may be killed any moment."""
    for each in _all():
        if each.has_work:
            each.hand_over(timeout_s)
    summary.write()


def counts() -> Counts:
    """What became of this process's records so far: spooled, refused for want of disk or memory, delivered; and its
    runs that sampling left out."""
    return _sum([*_counts_of_gone(), *(each.counts() for each in _all())])


def _sum(of_each: Iterable[Counts]) -> Counts:
    from arttrace.capture.export.spool import Counts

    of_each = list(of_each)
    return Counts(
        recorded=sum(each.recorded for each in of_each),
        refused=sum(each.refused for each in of_each),
        delivered=sum(each.delivered for each in of_each),
        rejected=sum(each.rejected for each in of_each),
        left_out=sum(each.left_out for each in of_each),
    )


def _all() -> list[Recorder]:
    return [*_outlasting(), *([_recorder] if _recorder is not None else [])]


def finish_all(guard: Guard) -> None:
    """End what would end with the process: open calls, then the program's own trajectory."""
    for finish in before_exit.copy():
        with guard:
            finish()


def at_exit() -> None:
    """End what is open, and deliver what can be delivered soon."""
    native_threads.never_switch()
    with _exiting:
        finish_all(_exiting)
    for each in _all():
        with _exiting:
            each.exit()
    if _recorder is not None:
        with _exiting:
            _recorder.deliver(_DELIVER_AT_EXIT_S, patient=False)


def deliver_for_children() -> None:
    """A child is being started, which leaves what it records to this process to deliver: at its end it does so, if it
    has recorded nothing itself, too."""
    global _delivers
    if _delivers is None and _recorder is None:
        _delivers = os.getpid()
        atexit.register(_deliver_of_children)


def _deliver_of_children() -> None:
    from arttrace.system.journal import list_segments  # as the recorder: importing arttrace stays quick

    with _exiting:
        if _recorder is None and _delivers == os.getpid():
            settings = Settings.resolve()
            if not settings.disabled and settings.collector is not None and list_segments(settings.data.outbox):
                recorder().deliver(_DELIVER_AT_EXIT_S, patient=False)


def _after_fork_in_child() -> None:
    global _lock, _outlasted, _gone
    _lock, _gone = native_threads.Lock(), None
    for each in _all():
        each.after_fork_in_child()
    _outlasted = [_Outlasted(ref(each), each.counts(), None) for each in _outlasting()]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
