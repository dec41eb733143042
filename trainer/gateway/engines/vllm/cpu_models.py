"""What vLLM asks of a model's class is found out on a CPU without a process of its own.

vLLM starts one where it has not seen that class yet, so that importing it does not initialise CUDA in the API server.
Most of the first start of a kind of model is then the second import of vLLM. On a CPU there is nothing to be kept from
that, and what is imported here the engine, a fork, has too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def look_at_models_here() -> None:
    """Have vLLM import a model's class in this process."""
    from vllm.model_executor.models import registry

    if not hasattr(registry, "_run_in_subprocess"):
        logging.getLogger("vllm").warning(
            "the first start of a kind of model takes longer: this vLLM looks at models by another function"
        )
        return
    registry._run_in_subprocess = _here


def _here(fn: Callable[[], _T]) -> _T:
    return fn()
