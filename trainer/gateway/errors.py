"""Refusals of the gateway, in the error form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response


class Refusal(Exception):
    """A request that the gateway answers itself. `hint`, when there is one, says what to do about it, and `details`
    say it to the client's code."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        hint: str | None = None,
        retry_s: int | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.hint = hint
        self.retry_s = retry_s
        self.details = details

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code", "hint"?, "details"?}}` as JSON."""
        error: dict[str, object] = {"message": self.message, "type": self.kind, "param": None, "code": self.status}
        if self.hint:
            error["hint"] = self.hint
        if self.details:
            error["details"] = self.details
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        """The whole HTTP answer."""
        headers: Mapping[str, str] = {} if self.retry_s is None else {"retry-after": str(self.retry_s)}
        return Response(self.body(), self.status, headers, "application/json")


class EngineDown(Refusal):
    """503: the engine does not answer now, and the client should try again soon."""


def engine_down(detail: str) -> EngineDown:
    """The refusal with its reason."""
    return EngineDown(503, "engine_unavailable", f"the serving engine does not answer: {detail}", retry_s=2)
