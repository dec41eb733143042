"""ServerConnection: the HTTP client of a server that trains on request; trainer/serving/training.py is the other
side."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import httpx
import msgspec

from arttrace.loop.model import api_key as key_of_environment
from arttrace.loop.processes.trainer_process import LoggedNumbers, OrderedBatch, TrainedStep
from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.users_text import first_line
from arttrace.system.addresses import is_http, verified, why_never_asked, without_login
from arttrace.system.errors import ServingError, TrainingError

T = TypeVar("T")

_TIMEOUT_S = 120.0
_PATIENCE_S = 120.0
"""For how long a server that answered before is asked again when it does not answer: a tunnel may be rebuilt, the
server may be starting, and an order continues meanwhile."""
_PART_BYTES = 16 << 20
_OF_A_PROXY = (502, 503, 504)
"""What a proxy answers where the server behind it does not."""


class ServerStatus(msgspec.Struct, frozen=True):
    """What a server reports about itself."""

    policy: str
    current: str
    step: int
    base_model: str


class _OrderStatus(msgspec.Struct, frozen=True):
    state: str
    said: list[str] = []
    lines: int = 0
    steps: list[TrainedStep] = []
    error: str = ""
    hint: str | None = None


class ServerConnection:
    """Sends requests to a server. Every method raises ServingError if the server does not answer or refuses.

    Args:
        url: Its address, with or without "/v1".
        api_key: Its key; by default $ARTTRACE_API_KEY.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        if not is_http(url):
            raise ServingError(
                f"the address {without_login(url)!r} begins with neither http:// nor https://",
                'Such as "http://gpu-box:8000".',
            )
        self.url = url.rstrip("/").removesuffix("/v1").rstrip("/")
        self.shown = without_login(self.url)
        self.api_key = api_key or key_of_environment()
        if why := why_never_asked(self.url, self.api_key):
            raise ServingError(
                f"the server cannot be asked: {why}", "Correct the address, or the key: ARTTRACE_API_KEY."
            )
        self._answered = False

    async def status(self) -> ServerStatus:
        """Which policy and version it serves."""
        return self._read(await self._ask("GET", "/arttrace/status"), ServerStatus)

    async def upload(self, lines: Sequence[bytes]) -> None:
        """Upload records of runs, each as JSON.

        Args:
            lines: Spans and rewards, encoded.
        """
        part: list[bytes] = []
        size = 0
        for line in lines:
            if part and size + len(line) > _PART_BYTES:
                await self._send(part)
                part, size = [], 0
            part.append(line)
            size += len(line) + 1
        if part:
            await self._send(part)

    async def _send(self, lines: Sequence[bytes]) -> None:
        await self._ask("POST", "/arttrace/records", content=b"\n".join(lines), kind="application/x-ndjson")

    async def train(self, groups: Sequence[Mapping[str, Any]] | None, settings: Mapping[str, Any]) -> list[TrainedStep]:
        """Have the server train, and wait until the version is served. Its messages meanwhile are printed to stderr.

        Args:
            groups: Groups of runs that it recorded or that were uploaded; None means all that wait.
            settings: The options of `arttrace train` by their names.

        Returns:
            A TrainedStep per version.

        Raises:
            TrainingError: The step failed.
        """
        return await self._carried_out({"groups": groups, "settings": dict(settings)})

    async def imitate(self, batches: Sequence[OrderedBatch], settings: Mapping[str, Any]) -> list[TrainedStep]:
        """Have the server make a version by SFT, in an optimizer step for each of these batches, as `train`.

        Args:
            batches: Runs that were uploaded.
            settings: The options of `arttrace train --method sft` by their names.

        Returns:
            The TrainedStep.

        Raises:
            TrainingError: The step failed.
        """
        wanted = [msgspec.to_builtins(one) for one in batches]
        return await self._carried_out({"batches": wanted, "settings": dict(settings)})

    async def log(self, numbers: LoggedNumbers, settings: Mapping[str, Any]) -> None:
        """Have the server send numbers of a step to its trackers, and wait until it has.

        Args:
            numbers: The step, and the numbers by name.
            settings: The trackers, as `report_to`.

        Raises:
            TrainingError: There is no such tracker.
        """
        log = {"step": numbers.step, "numbers": numbers.numbers}
        await self._carried_out({"log": log, "settings": dict(settings)})

    async def _carried_out(self, wanted: Mapping[str, Any]) -> list[TrainedStep]:
        order = secrets.token_hex(16)
        try:
            body = json.dumps({"order": order, **wanted}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TrainingError(
                f"the submitted data is not JSON: {error}", "Use finite numbers, text, lists and dicts in metadata."
            ) from error
        status = await self._order("/arttrace/train", body)
        while status.state == "running":
            status = await self._order("/arttrace/train/wait", json.dumps({"order": order, "lines": status.lines}))
            for line in status.said:
                print(f"{self.shown}: {line}", file=sys.stderr, flush=True)
        if status.error:
            raise TrainingError(status.error, status.hint)
        return status.steps

    async def _order(self, path: str, body: str) -> _OrderStatus:
        return self._read(await self._ask("POST", path, content=body.encode()), _OrderStatus)

    def _read(self, answer: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer, type=kind)
        except UNREADABLE as error:
            raise ServingError(
                f"what {self.shown} answers cannot be read ({error}): is it arttrace's server?"
            ) from error

    async def _ask(self, method: str, path: str, *, content: bytes = b"", kind: str = "application/json") -> bytes:
        """The server's answer. Every request may be sent again, so a broken connection is not a failure yet."""
        until: float | None = None
        headers = {"authorization": f"Bearer {self.api_key}", "content-type": kind}
        verify = verified(self.url)
        while True:
            try:
                async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, verify=verify) as client:
                    answer = await client.request(method, f"{self.url}{path}", headers=headers, content=content)
                if answer.status_code in _OF_A_PROXY and self._answered and _refusal(answer) is None:
                    raise httpx.ProxyError(f"a proxy before it answers {answer.status_code}")
                self._answered = True
                break
            except httpx.TransportError as error:
                until = until or time.monotonic() + _PATIENCE_S  # from the first failure on
                unmet = isinstance(error, httpx.ConnectError) and not self._answered
                if unmet or time.monotonic() > until:
                    raise ServingError(
                        f"the server at {self.shown} does not answer: {first_line(error)}",
                        "Start it there: python -m arttrace.server --model MODEL",
                    ) from error
                await asyncio.sleep(1.0)
        if answer.status_code == httpx.codes.OK:
            return answer.content
        raise _refused(self.shown, path, answer)


def _refusal(answer: httpx.Response) -> tuple[str, str | None] | None:
    """What the server says of its refusal, and what can be done about it; None where it is not this server's."""
    try:
        reason = msgspec.json.decode(answer.content)["error"]
        return str(reason["message"]), reason.get("hint")
    except (*UNREADABLE, KeyError, TypeError):
        return None


def _refused(url: str, path: str, answer: httpx.Response) -> ServingError | TrainingError:
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return ServingError(f"the server at {url} asks for a key", "Set ARTTRACE_API_KEY to the key that it printed.")
    said = _refusal(answer)
    if said is None:
        return ServingError(f"{url}{path} answered {answer.status_code}: is it arttrace's server?")
    message, hint = said
    if path.startswith(("/arttrace/train", "/arttrace/records")):
        if answer.status_code == httpx.codes.NOT_FOUND and "not served here" in message:
            return TrainingError(
                f"the server at {url} does not train", "Start it by `python -m arttrace.server`, or `serve --train`."
            )
        return TrainingError(message, hint)
    return ServingError(message, hint)
