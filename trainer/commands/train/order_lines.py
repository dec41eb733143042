"""The lines of `arttrace train --orders`: orders, cancellations of orders, and answers, each a JSON document."""

from __future__ import annotations

from typing import Any

import msgspec

from arttrace.loop.processes.trainer_process import LoggedNumbers, OrderedBatch, OrderedGroup
from arttrace.system.errors import TrainingError


class TrainOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Train on these groups, or by SFT on these batches; without either, on all that wait, in at most `steps` steps.
    With `log`, which stands alone, only send these numbers to the trackers of the settings."""

    id: int
    settings: dict[str, Any] = {}
    groups: tuple[OrderedGroup, ...] | None = None
    batches: tuple[OrderedBatch, ...] | None = None
    log: LoggedNumbers | None = None


def require_one_thing(order: TrainOrder) -> None:
    """Raise TrainingError where an order has several things to do, of which it would do one."""
    has = [name for name in ("log", "groups", "batches") if getattr(order, name) is not None]
    if len(has) > 1:
        raise TrainingError(
            f"The order has both {has[0]} and {has[1]}.",
            "Order the step, and send the numbers by another order."
            if order.log is not None
            else "Order a step on the groups, and another on the batches.",
        )


class _Cancellation(msgspec.Struct, frozen=True):
    """Do not carry out this order, or not to its end; other lines have no `cancel`."""

    cancel: int = 0


def cancelled_by(line: bytes) -> int:
    """The order that a line cancels, 0 for an order."""
    return msgspec.json.decode(line, type=_Cancellation).cancel


class OrderCancelled(TrainingError):
    """The step of an order was given up: weights and optimizer are as they were before it."""


class OrderResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The versions that were made, how many steps had nothing to learn from, and the error, if any."""

    id: int
    steps: list[dict[str, Any]] = []
    skipped: int = 0
    error: str = ""
    hint: str | None = None


class OrderProgress(msgspec.Struct, frozen=True):
    """A line for a person, while an order is carried out."""

    id: int
    said: str
