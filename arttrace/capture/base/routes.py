"""A route: which model calls go to which server instead, and how ARTTRACE_ROUTE writes that."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Literal, cast

from arttrace.system.addresses import without_login
from arttrace.system.errors import ArttraceError

SamplingFields = Literal["request", "policy"]
ANY_MODEL = "*"
_ENTRY = re.compile(r"(?P<model>[^\[\]=]+)(?:\[(?P<agent>[^\]]+)\])?=(?P<to>.+?)@(?P<url>(?i:https?)://[^,]+)")


@dataclass(frozen=True, slots=True)
class Route:
    """Which calls go where. `model` "*" means every model, `agent` None every agent, `sampling` "policy" that fields
    that change the policy's own sampling are left out."""

    model: str
    to: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    agent: str | None = None
    sampling: SamplingFields = "request"

    @property
    def text(self) -> str:
        """Which calls it is for, as ARTTRACE_ROUTE has it."""
        return self.model if self.agent is None else f"{self.model}[{self.agent}]"

    def takes(self, model: str, agent: str | None) -> bool:
        """Whether a call of this model by this agent is meant."""
        return self.model in (ANY_MODEL, model) and self.agent in (None, agent)


def sampling_fields(word: str | None) -> SamplingFields:
    """What a route's `sampling` means; None is ARTTRACE_POLICY_SAMPLING. Raises ArttraceError for another word."""
    word = word or os.environ.get("ARTTRACE_POLICY_SAMPLING") or "request"
    if word not in ("request", "policy"):
        raise ArttraceError(f"{word!r} is not a way of sampling", 'Write "policy" or "request".')
    return cast("SamplingFields", word)


def parse_routes(text: str) -> list[Route]:
    """Routes as ARTTRACE_ROUTE has them: `model=policy@url`, `model[agent]=policy@url`, several with commas between.

    Raises ArttraceError for anything else.
    """
    key = os.environ.get("ARTTRACE_POLICY_API_KEY") or None
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            before, slashes, address = entry.partition("//")
            raise ArttraceError(
                f"{before + without_login(slashes + address)!r} is no route",
                "Write model=policy@url: gpt-4o=policy:latest@http://127.0.0.1:8000/v1",
            )
        url = match["url"].rstrip("/")
        found.append(Route(match["model"], match["to"], url, key, match["agent"], sampling_fields(None)))
    return found
