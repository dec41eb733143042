"""Import TRL without what else it would do: load vLLM, reach for the network, print and warn over our output."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import cast

from arttrace.system.errors import TrainingError
from arttrace.system.processes import signals_after_imports

_HUB_OFFLINE = "HF_HUB_OFFLINE"
_TRACKERS = ("is_comet_available", "is_trackio_available", "is_wandb_available")
_NOT_SEEN_BY_TRL = {
    "trl.import_utils": ("is_vllm_available", "is_weave_available"),
    "transformers": _TRACKERS,
    "transformers.integrations": (*_TRACKERS, "is_mlflow_available"),
    "accelerate.utils": ("is_wandb_available",),
}
_NOISY = ("transformers", "trl", "peft", "accelerate", "datasets", "torchao")


@contextlib.contextmanager
def quiet(*, bars: bool = False) -> Iterator[None]:
    """Warnings off, progress bars too unless `bars`, and the libraries' loggers at errors only, inside the block."""
    from transformers.utils import logging as transformers_logging

    levels = {name: logging.getLogger(name).level for name in _NOISY}
    restore = transformers_logging.is_progress_bar_enabled() and not bars
    try:
        if not bars:
            transformers_logging.disable_progress_bar()
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if restore:
            transformers_logging.enable_progress_bar()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def import_trl() -> ModuleType:
    """The module `trl.trainer.grpo_trainer`, imported once.

    TRL imports vLLM, and whatever numbers can be reported to, wherever they are installed: seconds, for an engine that
    only its own process should load, and for accounts that nobody was asked for. TRL sees none while it is imported.
    """
    with _offline(), signals_after_imports(), quiet(), contextlib.redirect_stdout(sys.stderr):
        importlib.import_module("transformers.trainer")  # before: it sees what there is
        with contextlib.ExitStack() as seen_again:
            for place, names in _NOT_SEEN_BY_TRL.items():
                module = importlib.import_module(place)
                for name in names:
                    seen_again.callback(setattr, module, name, getattr(module, name))
                    setattr(module, name, lambda *_args, **_kwargs: False)
            importlib.import_module("trl.trainer.callbacks")
            return importlib.import_module("trl.trainer.grpo_trainer")


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """What is imported inside does not ask the hub, unless the environment says otherwise. Programs that are started
    later do: one that serves may have to fetch its model."""
    if _HUB_OFFLINE in os.environ:
        yield
        return
    os.environ[_HUB_OFFLINE] = "1"
    try:
        yield
    finally:
        del os.environ[_HUB_OFFLINE]


def import_unsloth() -> ModuleType:
    """The module `unsloth`, which has to come before TRL, transformers and PEFT, since it changes them.

    vLLM cannot be imported in this process afterwards. What Unsloth compiles goes to a temporary directory instead of
    the working directory, which is removed when the process ends. Raises TrainingError when it is not installed, does
    not work on this machine, or comes too late.
    """
    os.environ.setdefault(_HUB_OFFLINE, "1")  # Unsloth asks for it whenever it loads a model
    if "UNSLOTH_COMPILE_LOCATION" not in os.environ:
        compiled = tempfile.mkdtemp(prefix="arttrace-unsloth-")
        atexit.register(shutil.rmtree, compiled, ignore_errors=True)
        os.environ["UNSLOTH_COMPILE_LOCATION"] = compiled
    # Unsloth looks for a broken vLLM by loading vllm._C, which in vLLM's CPU build holds AVX-512 instructions whatever
    # the machine has: elsewhere the process dies by SIGILL. A learner needs no engine; None means that there is none.
    sys.modules.setdefault("vllm", cast("ModuleType", None))
    if "trl" in sys.modules and "unsloth" not in sys.modules:
        raise TrainingError("Unsloth has to be loaded before TRL, which this process has imported already.")
    try:
        with signals_after_imports(), warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            return importlib.import_module("unsloth")
    except (ImportError, NotImplementedError, RuntimeError) as error:
        raise TrainingError(
            f"Unsloth cannot be used here: {error}", 'Install it (pip install unsloth), or use loader "transformers".'
        ) from error
