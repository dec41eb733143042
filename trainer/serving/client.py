"""The gateway as seen from another process: find it, publish to it, ask how it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.addresses import verified, without_login
from arttrace.system.errors import MayPass, ServingError
from arttrace.system.journal.lock import lives_and_holds
from arttrace.system.paths import DataDir
from trainer.gateway.status import GatewayStatus, PublishReport, ServingFile

_T = TypeVar("_T")
_TIMEOUT_S = 180.0
_START = "Start it with: arttrace serve --base-model DIR"


class GatewayGone(ServingError, MayPass):
    """The gateway, or the engine behind it, does not answer now."""


class NotDrained(GatewayGone):
    """The requests under way did not end in the time they were given."""


class GatewayClient:
    """Speaks to a running gateway. Every method raises ServingError when it cannot be reached or refuses.

    Args:
        url: Its base URL, with or without "/v1".
        api_key: Its key; ARTTRACE_API_KEY by default.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        key = api_key or os.environ.get("ARTTRACE_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.url = url.rstrip("/").removesuffix("/v1")
        self.shown = without_login(self.url)
        verify = verified(url)
        self._client = httpx.Client(
            base_url=self.url, headers=headers, timeout=_TIMEOUT_S, trust_env=False, verify=verify
        )

    def publish(self, step: int, path: Path) -> PublishReport:
        """Serve the adapter directory `path` as version `step`; returns once the aliases mean it and it was verified.

        Publishing what is already served is no error, so that an interrupted trainer may repeat itself.
        """
        return self._asked(PublishReport, "POST", "/arttrace/policies", {"version": step, "path": str(path.absolute())})

    def status(self) -> GatewayStatus:
        """The current version, the loaded ones with their requests under way, and the engine's state."""
        return self._asked(GatewayStatus, "GET", "/arttrace/status")

    def fall_asleep(self, *, timeout_s: float = 600.0) -> Callable[[], None]:
        """Let the requests under way end and the engines sleep, so that their card's memory is free.

        They wake when what this returns is called, or when this process dies. A gateway that dies meanwhile is no
        error then: its engines wake with it. Raises NotDrained when the requests do not end in `timeout_s`.
        """
        request = self._client.build_request(
            "POST", "/admin/sleep", json={"timeout_s": timeout_s}, timeout=httpx.Timeout(180.0, read=timeout_s + 600.0)
        )
        try:
            response = self._client.send(request, stream=True)
            if response.status_code != httpx.codes.OK:
                response.read()
        except httpx.TransportError as error:
            raise self._gone(error) from error
        if response.status_code != httpx.codes.OK:
            raise self._refused("/admin/sleep", response)

        def wake() -> None:
            # Should the order not get through, the end of the open connection says the same.
            with contextlib.suppress(ServingError):
                self._call("POST", "/admin/wake", {}, timeout_s=1800.0)
            response.close()

        return wake

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def _asked(self, kind: type[_T], method: str, path: str, body: Any = None) -> _T:
        try:
            return msgspec.json.decode(self._call(method, path, body), type=kind)
        except UNREADABLE as error:
            raise ServingError(f"what answers at {self.shown}{path} is no gateway of this version: {error}") from None

    def _call(self, method: str, path: str, body: Any = None, *, timeout_s: float = _TIMEOUT_S) -> bytes:
        try:
            response = self._client.request(method, path, json=body, timeout=timeout_s)
        except httpx.TransportError as error:
            raise self._gone(error) from error
        if response.status_code != httpx.codes.OK:
            raise self._refused(path, response)
        return response.content

    def _gone(self, error: httpx.TransportError) -> GatewayGone:
        return GatewayGone(f"the gateway at {self.shown} does not answer: {error}", _START)

    def _refused(self, path: str, response: httpx.Response) -> ServingError:
        kind = GatewayGone if response.status_code == httpx.codes.SERVICE_UNAVAILABLE else ServingError
        try:
            reason = msgspec.json.decode(response.content)["error"]
            message = str(reason["message"])
            return (NotDrained if reason.get("type") == "not_drained" else kind)(message, reason.get("hint"))
        except (*UNREADABLE, KeyError, TypeError):
            return ServingError(f"{self.shown}{path} answered {response.status_code}: is it a gateway?")


def find_serving(data: DataDir) -> ServingFile | None:
    """What the `serving.json` of the directory `data` says; None when there is none or its process is gone, even where
    another has its number now."""
    try:
        record = msgspec.json.decode(data.serving.read_bytes(), type=ServingFile)
    except (FileNotFoundError, *UNREADABLE):
        return None
    return record if lives_and_holds(record.pid, data.serving_lock) else None
