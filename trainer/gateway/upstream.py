"""HTTP to the serving engine: one request in, its answer streamed out; none is ever sent twice.

On aiohttp, whose parser is compiled: every call of every agent passes here, and httpx took several times the CPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from arttrace.errors import ServingError
from trainer.gateway.errors import engine_down
from trainer.serving.engine import EngineAddress
from trainer.serving.model import Probe

_JSON = {"content-type": "application/json", "accept-encoding": "identity"}

UpstreamError = (aiohttp.ClientError, asyncio.TimeoutError)
"""What reading an answer raises when the engine breaks off."""


class NotReached(Exception):
    """No connection was made: the engine has seen nothing of the request."""


class EngineGone(ServingError):
    """The engine did not answer an order."""


class Upstream:
    """One engine. Requests that cannot be answered raise NotReached or Refusal (503), administration ServingError."""

    def __init__(self, address: EngineAddress) -> None:
        self.address = address
        self._session = aiohttp.ClientSession(
            headers=_JSON | ({"authorization": f"Bearer {address.key}"} if address.key else {}),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),  # a generation takes as long as it takes
            # vLLM closes idle connections after 5 s; closing them first avoids most meetings with a dead one.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0),
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close every connection; requests under way end with an error."""
        await self._session.close()

    @property
    def _open(self) -> aiohttp.ClientSession:
        # A request may have got here before the engine died and its connections were closed.
        if self._session.closed:
            raise _Stopped("it was stopped")
        return self._session

    @asynccontextmanager
    async def forward(self, path: str, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a POST of JSON, its body not yet read. Raises NotReached when no connection was made, and
        Refusal (503) when the engine hangs up without an answer: it may have done what was asked.

        Leaving the block before the body is read closes the connection, which makes the engine stop generating.
        """
        response = await self._send(path, body)
        try:
            yield response
        finally:
            response.close() if not response.content.is_eof() else response.release()

    async def _send(self, path: str, body: bytes) -> aiohttp.ClientResponse:
        try:
            return await self._open.post(self.address.url + path, data=body)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, _Stopped) as error:
            raise NotReached(repr(error)) from error
        except UpstreamError as error:
            raise engine_down(repr(error)) from error

    async def healthy(self) -> bool:
        """Whether /health answers 200."""
        try:
            async with self._open.get(f"{self.address.url}/health", timeout=aiohttp.ClientTimeout(5.0)) as response:
                return response.status == 200
        except UpstreamError:
            return False

    async def models(self) -> dict[str, str]:
        """The models it serves, adapters among them: name to directory."""
        answer = await self._json("GET", "/v1/models")
        return {model["id"]: model.get("root") or "" for model in answer["data"]}

    async def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter directory under a new name."""
        await self._json("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests that use it end on it."""
        await self._json("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def probe(self, model: str, probe: Probe, *, timeout_s: float = 120.0) -> tuple[float, ...]:
        """Log-probabilities under `model` of the probe's token after each of its prompts; shape (prompts,).

        The token is forced, one per prompt: vLLM's `prompt_logprobs` would say the same in one, but 0.32 dies of it
        when requests with adapters are under way beside it.
        """
        request = {
            "model": model,
            "prompt": probe.prompts,
            "max_tokens": 1,
            "allowed_token_ids": [probe.token],
            "logprobs": 0,
        }
        answer = await self._json("POST", "/v1/completions", request, timeout_s=timeout_s)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return tuple(float(choice["logprobs"]["token_logprobs"][0]) for choice in choices)

    async def _json(self, method: str, path: str, body: Any = None, *, timeout_s: float = 60.0) -> Any:
        """The answer as parsed JSON, or None when it is plain text."""
        data = None if body is None else msgspec.json.encode(body)
        timeout = aiohttp.ClientTimeout(timeout_s)
        try:
            async with self._open.request(method, self.address.url + path, data=data, timeout=timeout) as response:
                content = await response.read()
        except UpstreamError as error:
            raise EngineGone(f"the serving engine did not answer {path}: {error!r}") from error
        if response.status != 200:
            raise ServingError(f"the serving engine refused {path} ({response.status}): {_reason(content)}")
        return msgspec.json.decode(content) if content[:1] in (b"{", b"[") else None


class _Stopped(aiohttp.ClientConnectionError):
    """Its connections were closed before the request was sent."""


def _reason(content: bytes) -> str:
    try:
        return str(msgspec.json.decode(content)["error"]["message"])[:1000]
    except (msgspec.DecodeError, KeyError, TypeError):
        return content[:1000].decode("utf-8", "replace")
