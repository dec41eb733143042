"""Prices of models: the user's own, then the table that litellm brings, which is read as a file, not imported.

Prices are US dollars per token. A model whose price nobody knows has none: it never counts as free.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.addresses import is_loopback
from arttrace.system.errors import ArttraceError
from arttrace.system.files import written_text

VARIABLE = "ARTTRACE_PRICES"
TIERS = (32_000, 100_000, 128_000, 200_000, 256_000, 272_000, 512_000)
"""Prompts of more tokens may have prices of their own."""

_TABLE = "model_prices_and_context_window_backup.json"
_PREFIX_OF_HOST = {
    "openrouter.ai": "openrouter/",
    "api.groq.com": "groq/",
    "api.together.xyz": "together_ai/",
    "api.fireworks.ai": "fireworks_ai/",
    "api.mistral.ai": "mistral/",
    "api.deepseek.com": "deepseek/",
    "api.x.ai": "xai/",
    "api.perplexity.ai": "perplexity/",
    "api.cerebras.ai": "cerebras/",
    "generativelanguage.googleapis.com": "gemini/",
}
_PROVIDERS = {
    "gcp.gemini": "gemini",
    "gcp.gen_ai": "gemini",
    "google": "gemini",
    "gcp.vertex_ai": "vertex_ai",
    "aws.bedrock": "bedrock",
    "azure.ai.openai": "azure",
    "azure.ai.inference": "azure_ai",
    "mistral_ai": "mistral",
    "x_ai": "xai",
}
"""How litellm calls the providers of the GenAI conventions."""


_Dollars = Annotated[float, msgspec.Meta(ge=0)]


class Usage(msgspec.Struct, frozen=True):
    """Tokens of some calls of one model at one server. `input` counts the prompts whole: of it `cached` came out of the
    provider's cache, and `written` went into it. `beyond` is the tier of TIERS that each prompt is beyond, 0 for
    none."""

    model: str
    policy_version: str | None = None
    provider: str = ""
    host: str = ""
    beyond: int = 0
    calls: int = 1
    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0


class _Price(msgspec.Struct, frozen=True):
    input: float
    output: float
    cached: float
    written: float


class _Own(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens; without `cached_input` those cost as others do."""

    input: _Dollars
    output: _Dollars
    cached_input: _Dollars | None = None


class Prices:
    """What models cost. `own` are the user's prices by model, policy or version of it."""

    def __init__(self, own: Mapping[str, _Own], table: Mapping[str, Mapping[str, object]]) -> None:
        self._own = own
        self._table = table

    @property
    def has_table(self) -> bool:
        """Whether there are prices of models that are sold."""
        return bool(self._table)

    def cost(self, usage: Usage) -> float | None:
        """US dollars; None where no price is known."""
        price = self._price(usage)
        if price is None:
            return None
        plain = max(usage.input - usage.cached - usage.written, 0)
        asked = plain * price.input + usage.cached * price.cached + usage.written * price.written
        return asked + usage.output * price.output

    def _price(self, usage: Usage) -> _Price | None:
        policy = (usage.policy_version or "").rpartition("@")[0]
        for name in filter(None, (usage.policy_version, policy, usage.model)):
            if (own := self._own.get(name)) is not None:
                cached = own.input if own.cached_input is None else own.cached_input
                return _Price(own.input / 1e6, own.output / 1e6, cached / 1e6, own.input / 1e6)
        if usage.policy_version or _is_private(usage.host):
            return None  # served by oneself: the name may be any
        if usage.model.startswith("arn:"):  # of AWS, with the name at its end
            usage = replace(usage, model=usage.model.rpartition("/")[2])
        for name in _names(usage):
            entry = self._table.get(name)
            if entry is not None and (name != usage.model or _is_sold_by(entry, usage)):
                return _of_entry(entry, usage.beyond)
        return None


def _is_private(host: str) -> bool:
    try:
        return not ip_address(host.strip("[]")).is_global
    except ValueError:
        return bool(host) and (is_loopback(host) or "." not in host or host.endswith((".local", ".internal", ".lan")))


def _names(usage: Usage) -> Iterator[str]:
    """What the table may call the model, the most telling first."""
    host = usage.host.lower()
    if (prefix := _PREFIX_OF_HOST.get(host)) is not None:
        yield prefix + usage.model
        return
    if host.endswith(".openai.azure.com"):
        yield f"azure/{usage.model}"
        return
    if provider := _provider(usage):
        yield f"{provider}/{usage.model}"
    yield usage.model


def _provider(usage: Usage) -> str:
    name = usage.provider.lower()
    return _PROVIDERS.get(name, name)


def _is_sold_by(entry: Mapping[str, object], usage: Usage) -> bool:
    """Whether an entry found by the model's bare name is that of the call's provider."""
    provider = _provider(usage)
    return not provider or str(entry.get("litellm_provider", "")).startswith(provider)


def _of_entry(entry: Mapping[str, object], beyond: int) -> _Price | None:
    def number(name: str) -> float | None:
        for tier in sorted((tier for tier in TIERS if tier <= beyond), reverse=True):
            if isinstance(found := entry.get(f"{name}_above_{tier // 1000}k_tokens"), (int, float)):
                return float(found)
        found = entry.get(name)
        return float(found) if isinstance(found, (int, float)) else None

    asked, answered = number("input_cost_per_token"), number("output_cost_per_token")
    if asked is None or answered is None:
        return None
    cached, written = number("cache_read_input_token_cost"), number("cache_creation_input_token_cost")
    return _Price(asked, answered, asked if cached is None else cached, asked if written is None else written)


def load_prices() -> Prices:
    """The prices of this machine: those in the file that $ARTTRACE_PRICES names, and litellm's where it is installed.

    Raises:
        ArttraceError: The file cannot be read.
    """
    return Prices(_own(os.environ.get(VARIABLE, "")), _table())


def _own(path: str) -> Mapping[str, _Own]:
    if not path:
        return {}
    try:
        return msgspec.json.decode(written_text(Path(path)), type=dict[str, _Own])
    except (OSError, *UNREADABLE) as error:
        raise ArttraceError(
            f"the prices in {path} ({VARIABLE}) cannot be read: {error}",
            'Write US dollars per million tokens: {"my-model": {"input": 0.5, "output": 1.5, "cached_input": 0.05}}',
        ) from error


@functools.cache
def _table() -> Mapping[str, Mapping[str, object]]:
    found = find_spec("litellm")
    if found is None or found.origin is None:
        return {}
    try:
        return msgspec.json.decode(Path(found.origin).with_name(_TABLE).read_bytes(), type=dict[str, dict[str, object]])
    except (OSError, *UNREADABLE):
        return {}
