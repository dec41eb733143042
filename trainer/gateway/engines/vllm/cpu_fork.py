"""vLLM's engine on a CPU as a fork of its API server: it does not import again what took that five seconds.

vLLM spawns it there, because it preloads OpenMP's library into it so that its threads keep to their cores. With one
thread there is nothing to keep apart, nor a pool of threads that a fork would lack. With more, it stays as vLLM has it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from multiprocessing.context import BaseContext


def fork_engine() -> None:
    """Have vLLM fork the engine's process, where this process runs on Linux and computes in one thread."""
    if sys.platform != "linux" or os.environ.get("OMP_NUM_THREADS") != "1":
        return
    import torch
    import vllm.v1.engine.core  # what the engine would import first
    import vllm.v1.engine.utils

    if not hasattr(vllm.v1.engine.utils, "get_mp_context"):
        logging.getLogger("vllm").warning("the engine's process starts slowly: this vLLM starts it by another function")
        return
    torch.set_num_threads(1)
    # Else a signal to the engine would be one to the event loop of the API server, whose pipe the fork has, too.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    vllm.v1.engine.utils.get_mp_context = _forking


def _forking() -> BaseContext:
    return multiprocessing.get_context("fork")
