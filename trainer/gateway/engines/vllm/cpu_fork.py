"""vLLM's engine on a CPU as a fork of its API server: it does not import again what took that five seconds.

vLLM spawns it there, because it preloads OpenMP's library into it so that its threads keep to their cores. With one
thread there is nothing to keep apart, nor a pool of threads that a fork would lack. With more, it stays as vLLM has it.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import socket
import stat
import sys
from multiprocessing.context import BaseContext
from pathlib import Path


def fork_engine(address: str) -> None:
    """Have vLLM fork the engine's process, where this process runs on Linux and computes in one thread. `address` is
    the socket in the file system at which the API server listens."""
    if sys.platform != "linux" or os.environ.get("OMP_NUM_THREADS") != "1":
        return
    import torch
    import vllm.v1.engine.core  # what the engine would import first
    import vllm.v1.engine.utils

    if not hasattr(vllm.v1.engine.utils, "get_mp_context"):
        logging.getLogger("vllm").warning("the engine's process starts slowly: this vLLM starts it by another function")
        return
    torch.set_num_threads(1)
    os.register_at_fork(after_in_child=functools.partial(_leave_the_servers_own, address))
    vllm.v1.engine.utils.get_mp_context = _forking


def _forking() -> BaseContext:
    return multiprocessing.get_context("fork")


def _leave_the_servers_own(address: str) -> None:
    """In the engine, a signal would be one to the event loop of the API server, whose pipe it has too. And while it had
    the socket at which the server listened that has died, requests would be taken, and not refused."""
    signal.set_wakeup_fd(-1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if _is_bound_to(address, fd):
            os.dup2(nothing, fd)  # not closed: the server's object for it would close whatever has its number next
    os.close(nothing)


def _is_bound_to(address: str, fd: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
    except OSError:  # that of the listing itself
        return False
    with socket.socket(fileno=os.dup(fd)) as one:
        return one.family == socket.AF_UNIX and one.getsockname() == address
