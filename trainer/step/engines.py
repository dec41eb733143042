"""The engines behind the gateway, beside a step: they can load its adapter, and sleep while it is made where they share
the learner's card."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from arttrace.system.errors import TrainingError
from trainer.learner.machine.memory import let_go
from trainer.serving import GatewayStatus
from trainer.step.retry import Retry


class Sleeping(Protocol):
    """A gateway whose engines may sleep, as GatewayClient does it."""

    def status(self) -> GatewayStatus | None: ...
    def fall_asleep(self) -> Callable[[], None]: ...


@contextmanager
def engines_asleep(gateway: Sleeping | None, retry: Retry, *, lora_rank: int = 0) -> Iterator[bool]:
    """The engines sleep meanwhile, where `arttrace serve --sleep-while-training` says that they share the card.

    Gives whether they do. They wake however this ends, by the death of this process too.

    Raises TrainingError, before anything sleeps, where the engines load no adapter of `lora_rank`.
    """
    status = None if gateway is None else retry(gateway.status)
    if status is not None:
        _require_loadable(status, lora_rank)
    if gateway is None or status is None or not status.sleeps:
        yield False
        return
    wake = retry(gateway.fall_asleep, lambda wake: wake())
    try:
        yield True
    except BaseException as error:
        let_go(error)
        raise
    finally:
        _give_cached_memory_back()
        wake()


def _require_loadable(status: GatewayStatus, lora_rank: int) -> None:
    if 0 < status.max_lora_rank < lora_rank:
        raise TrainingError(
            f"`arttrace serve` loads adapters up to rank {status.max_lora_rank}, and this one would have {lora_rank}.",
            f"Serve with --vllm-arg=--max-lora-rank={lora_rank}, or train with --lora-rank {status.max_lora_rank}.",
        )


def _give_cached_memory_back() -> None:
    """PyTorch keeps what a step has used; an engine that wakes needs it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
