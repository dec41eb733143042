"""HTTP to the serving engine: a request is sent once, never again, and its answer is returned part by part."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypeVar

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.errors import ServingError
from arttrace.wire.content import secrets
from arttrace.wire.sampling_fields import NEUTRAL
from trainer.gateway.engines.connections import BrokenOff, Connections, EngineResponse
from trainer.gateway.engines.vllm.engine import EngineAddress
from trainer.gateway.engines.vllm.model import Probe
from trainer.gateway.errors import engine_down

_JSON = {"content-type": "application/json", "accept-encoding": "identity"}
_T = TypeVar("_T")


class EngineGone(ServingError):
    """The engine did not answer an order."""


class Upstream:
    """One engine. Requests that cannot be answered raise NotConnected or Refusal (503), administration ServingError."""

    def __init__(self, address: EngineAddress) -> None:
        self.address = address
        if address.key:
            secrets.remember(address.key)  # an engine may quote it in what it answers, which is recorded
        key = {"authorization": f"Bearer {address.key}"} if address.key else {}
        self._connections = Connections(address.url, _JSON | key)

    async def close(self) -> None:
        """Close every connection; requests under way end with an error."""
        await self._connections.close()

    async def forward(self, path: str, body: bytes) -> EngineResponse:
        """The answer to a POST of JSON, its body not yet read. Raises NotConnected when the engine has not read the
        request, and Refusal (503) when the engine hangs up without an answer: it may have done what was asked.

        A generation takes as long as it takes. Closing the answer before its end makes the engine stop generating.
        """
        try:
            return await self._connections.request("POST", path, body)
        except BrokenOff as error:
            raise engine_down(str(error)) from error

    async def healthy(self) -> bool:
        """Whether /health answers 200."""
        try:
            async with asyncio.timeout(5.0):
                with await self._connections.request("GET", "/health") as answer:
                    while await answer.part():
                        pass
                    return answer.status == 200
        except (ConnectionError, TimeoutError):
            return False

    async def models(self) -> dict[str, str]:
        """The models it serves, adapters among them: name to directory."""
        return {model.id: model.root or "" for model in (await self._asked(_Models, "GET", "/v1/models")).data}

    async def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter directory under a new name."""
        await self._ordered("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests that use it end on it."""
        await self._ordered("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def sleeps(self) -> bool | None:
        """Whether it sleeps; None when it is none that could."""
        try:
            return (await self._asked(_Sleeping, "GET", "/is_sleeping")).is_sleeping
        except EngineGone:
            raise
        except ServingError:
            return None

    async def sleep(self) -> None:
        """Let it give up the card's memory, its weights kept in the machine's. It must have nothing to do."""
        await self._ordered("POST", "/sleep?level=1", timeout_s=300.0)

    async def wake_up(self) -> None:
        """Let it take the memory again; returns when it can answer."""
        await self._ordered("POST", "/wake_up", timeout_s=300.0)

    async def probe(self, model: str, probe: Probe, *, timeout_s: float = 120.0) -> tuple[float, ...]:
        """Log-probabilities under `model` of the likeliest token after each of the probe's prompts; shape (prompts,).

        One token per prompt: vLLM's `prompt_logprobs` would say more in one, but 0.32 dies of it when requests with
        adapters are under way beside it.
        """
        return await self._first_tokens(model, probe, timeout_s, temperature=0)

    async def gives_processed_logprobs(self, model: str, probe: Probe) -> bool:
        """Whether its log-probabilities are of the distribution that it samples from: a forced token's are then 0."""
        forced = await self._first_tokens(model, probe, 120.0, allowed_token_ids=[probe.token])
        return all(logprob > -1e-6 for logprob in forced)

    async def _first_tokens(self, model: str, probe: Probe, timeout_s: float, **sampling: Any) -> tuple[float, ...]:
        request = {"model": model, "prompt": probe.prompts, "max_tokens": 1, "logprobs": 0, **NEUTRAL, **sampling}
        answer = await self._asked(_Completion, "POST", "/v1/completions", request, timeout_s=timeout_s)
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        if [choice.index for choice in choices] != list(range(len(probe.prompts))):
            raise ServingError(f"the serving engine gave {len(choices)} choices at /v1/completions, not one per prompt")
        return tuple(choice.logprobs.token_logprobs[0] for choice in choices)

    async def _asked(self, kind: type[_T], method: str, path: str, body: Any = None, *, timeout_s: float = 60.0) -> _T:
        """The JSON of an answer. Raises ServingError for any other: a proxy may stand where the engine was."""
        content = await self._ordered(method, path, body, timeout_s=timeout_s)
        try:
            return msgspec.json.decode(content, type=kind)
        except UNREADABLE as error:
            raise ServingError(f"what answered {path} is no serving engine: {error}") from None

    async def _ordered(self, method: str, path: str, body: Any = None, *, timeout_s: float = 60.0) -> bytes:
        """The content of an answer that is no refusal."""
        data = b"" if body is None else msgspec.json.encode(body)
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(timeout_s):
                with await self._connections.request(method, path, data) as answer:
                    while part := await answer.part():
                        parts.append(part)
        except (ConnectionError, TimeoutError) as error:
            reason = str(error) or f"no answer in {timeout_s:.0f} s"
            raise EngineGone(f"the serving engine did not answer {path}: {reason}") from error
        content = b"".join(parts)
        if answer.status != 200:
            raise ServingError(f"the serving engine refused {path} ({answer.status}): {_reason(content)}")
        return content


class _Model(msgspec.Struct):
    id: str
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


class _Logprobs(msgspec.Struct):
    token_logprobs: Annotated[list[float], msgspec.Meta(min_length=1)]


class _Choice(msgspec.Struct):
    index: int
    logprobs: _Logprobs


class _Completion(msgspec.Struct):
    choices: list[_Choice]


def _reason(content: bytes) -> str:
    try:
        return str(msgspec.json.decode(content)["error"]["message"])[:1000]
    except (*UNREADABLE, KeyError, TypeError):
        return content[:1000].decode("utf-8", "replace")
