"""Installs the hooks into other people's modules, each when the user's program has imported it and not before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType

import wrapt

from arttrace.capture import hops, http_hook, openai_hook, processes, runtime, threads, tool_hooks
from arttrace.capture.call import close_open_calls
from arttrace.capture.guard import Guard

_installing = Guard("installing a hook")
_lock = threading.Lock()
_installed = False


def install() -> None:
    """Install once; further calls do nothing."""
    global _installed
    if _installed:
        return
    with _lock:
        first, _installed = not _installed, True
    if first:
        with _installing:
            threads.install()
            runtime.before_exit.insert(0, close_open_calls)
            for name, hook in (
                ("httpx", http_hook.install),
                ("httpx2", http_hook.install),
                ("openai._base_client", openai_hook.install),
                *tool_hooks.HOOKS,
                ("httpx", hops.install),  # after the taps, so that these see the headers that go out
                ("httpx2", hops.install),
                ("subprocess", processes.install_subprocess),
                ("multiprocessing.process", processes.install_process),
                ("multiprocessing.pool", processes.install_pool),
                ("concurrent.futures.process", processes.install_executor),
            ):
                wrapt.register_post_import_hook(_guarded(hook), name)


def _guarded(hook: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def run(module: ModuleType) -> None:
        with _installing:
            hook(module)

    return run
