"""The forms of items that say of themselves all that there is to read of a run or a span: one module each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.left_out import Read
from arttrace.formats.systems import art, atif
from arttrace.formats.systems.rollouts import (
    agent_lightning,
    inspect_logs,
    nemo_gym,
    openai_evals,
    rllm,
    tau2,
    verifiers,
    verifiers_traces,
)
from arttrace.formats.systems.swe_agents import mini_swe_agent, swe_agent
from arttrace.formats.systems.tracers import braintrust, langsmith, phoenix
from arttrace.formats.systems.tracers.weave import calls as weave


class ItemForm(Protocol):
    """A module that reads items of one form; `KIND` is what they are called."""

    KIND: str

    def recognises(self, item: dict[str, Any]) -> bool:
        """Whether an item is of this form, by its keys."""

    def records(self, item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
        """The records of an item that is. Raises ValueError, with the reason, where it cannot be read."""


FORMS: tuple[ItemForm, ...] = (
    atif,
    rllm,
    art,
    mini_swe_agent,
    swe_agent,
    langsmith,
    braintrust,
    weave,
    phoenix,
    agent_lightning,
    nemo_gym,
    openai_evals,
    inspect_logs,
    verifiers,
    verifiers_traces,
    tau2,
)
"""No item is of two of them, whichever is asked first."""
