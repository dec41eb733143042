"""Requests to a Langfuse server, each asked again while that can help, and every refusal in words a person can use."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec

from arttrace.capture.base.langfuse_project import Connection
from arttrace.capture.export.shipping.otlp_client import read_answer, seconds_to_wait
from arttrace.records.values.lenient_json import json_object, read_json
from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.addresses import verified, without_login
from arttrace.system.errors import ArttraceError, MayPass
from arttrace.wire.content import secrets

_TRACES = "/api/public/otel/v1/traces"
_SCORES = "/api/public/scores"
_METRICS = "/api/public/v2/metrics"
_PROJECTS = "/api/public/projects"
OBSERVATIONS = "/api/public/v2/observations"
SCORES = "/api/public/v3/scores"

_TIMEOUT_S = 60.0
_TRIES = 8
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 60.0
_MAX_ANSWER_BYTES = 256 << 20
_REASON = 300


class LangfuseError(ArttraceError):
    """Langfuse refused, or gave what cannot be read."""


class LangfuseAway(LangfuseError, MayPass):
    """Langfuse cannot be reached, or does not answer for now; nothing of what was not acknowledged is lost."""


class WrongKeys(LangfuseError):
    """Langfuse does not know the keys, or lets them do nothing here (401 or 403)."""


class Refused(LangfuseError):
    """Langfuse refused what was sent (400 or 413): another request may pass."""


class LangfuseClient:
    """One project of one server. Not for several threads at once."""

    def __init__(
        self,
        connection: Connection,
        *,
        requests_per_minute: float | None = None,
        say: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`say` is called with a line about each wait; at most `requests_per_minute` are made."""
        self._at = connection.shown
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"authorization": connection.authorization, "user-agent": "arttrace"},
            timeout=_TIMEOUT_S,
            verify=verified(connection.url),
        )
        self._say, self._sleep = say, sleep
        self._apart_s = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._next = 0.0
        self._lists: bool | None = None  # whether it takes lists of scores: its answers show it

    def __enter__(self) -> LangfuseClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def project(self) -> str | None:
        """The id of the keys' project, None where the server does not say it. Raises WrongKeys."""
        try:
            said = _json(self._ask("GET", _PROJECTS))
        except WrongKeys:
            raise
        except LangfuseError:
            return None
        projects = json_object(said).get("data")
        id = json_object(projects[0]).get("id") if isinstance(projects, list) and projects else None
        return id if isinstance(id, str) and id.replace("-", "").replace("_", "").isalnum() else None

    def send_spans(self, request: bytes) -> tuple[int, str]:
        """Send one ExportTraceServiceRequest in protobuf. Returns how many spans of it Langfuse says that it refused,
        and why. Raises Refused when it refuses the request as a whole, and LangfuseError for anything else, a page of
        a proxy's too."""
        packed = zlib.compressobj(6, wbits=16 + zlib.MAX_WBITS)
        body = packed.compress(request) + packed.flush()
        headers = {
            "content-type": "application/x-protobuf",
            "content-encoding": "gzip",
            "x-langfuse-ingestion-version": "4",
        }
        answer = self._ask("POST", _TRACES, content=body, headers=headers)
        is_protobuf = not answer.content.strip() or "protobuf" in answer.headers.get("content-type", "")
        if not is_protobuf:
            _json(answer)
        kind = "application/x-protobuf" if is_protobuf else "application/json"
        taken = read_answer(answer.status_code, {"content-type": kind}, answer.content)
        return taken.rejected, taken.reason[:_REASON]

    def send_scores(self, scores: Sequence[Mapping[str, Any]]) -> tuple[int, list[str]]:
        """Send scores (bodies of formats.langfuse.api.score). Returns how many Langfuse did not take, and why.

        Newer servers take a list, and of it what they can (207): it is not sent again, since they say how many scores
        they refused, and not which. A list that is refused as a whole goes by halves: a score in it was the cause, or
        the server is an older one, which takes one score at a time.
        """
        if len(scores) == 1:
            return self._send_score(scores[0])
        if self._lists is not False:
            with contextlib.suppress(Refused):
                return self._send_list(scores)
        halves = (scores[: len(scores) // 2], scores[len(scores) // 2 :])
        (few, some), (more, others) = map(self.send_scores, halves)
        return few + more, some + others

    def _send_list(self, scores: Sequence[Mapping[str, Any]]) -> tuple[int, list[str]]:
        said = _json(self._ask("POST", _SCORES, content=msgspec.json.encode(scores), headers=_JSON))
        self._lists = True
        return _not_taken(said, len(scores))

    def _send_score(self, score: Mapping[str, Any]) -> tuple[int, list[str]]:
        reason = ""
        if self._lists is not False:
            try:
                refused, reasons = self._send_list([score])
                return refused, [f"{score['name']}: {reason}" for reason in reasons]
            except Refused as error:
                reason = error.message
        if self._lists is not True:
            try:
                _json(self._ask("POST", _SCORES, content=msgspec.json.encode(score), headers=_JSON))
                self._lists = False
                return 0, []
            except Refused as error:
                reason = error.message
        return 1, [f"{score['name']}: {reason}"]

    def page(self, path: str, query: Mapping[str, str]) -> tuple[list[dict[str, Any]], str | None]:
        """One page of a list, and the cursor of the next; None for the last one."""
        answer = self._ask("GET", path, params=query)
        said = _json(answer)
        data, meta = (json_object(said).get(name) for name in ("data", "meta"))
        if not isinstance(data, list) or not isinstance(meta, dict) or not all(isinstance(one, dict) for one in data):
            raise LangfuseError(f"{self._at}{path} answered no list", "Is LANGFUSE_BASE_URL that of a Langfuse server?")
        cursor = meta.get("cursor")
        return data, cursor if isinstance(cursor, str) and cursor else None

    def count(self, since: str, until: str) -> int | None:
        """How many observations began in this time (ISO 8601), None where the server does not say it: asked once."""
        query = {
            "view": "observations",
            "metrics": [{"measure": "count", "aggregation": "count"}],
            "filters": [],
            "fromTimestamp": since,
            "toTimestamp": until,
        }
        self._pace()
        try:
            answer = self._request("GET", _METRICS, params={"query": msgspec.json.encode(query).decode()})
            [row] = _json(answer)["data"] if answer.is_success else [{}]
            return int(row["count_count"])
        except (httpx.HTTPError, LangfuseError, LookupError, TypeError, ValueError):
            return None

    def _ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        """The answer, with a status of 2xx. Asked again on 429, 5xx and where nobody answers."""
        failures = 0
        while True:
            self._pace()
            try:
                answer = self._request(method, path, **given)
            except (httpx.TransportError, httpx.DecodingError) as error:
                why = f"{self._at} does not answer: {str(error) or type(error).__name__}"
                retry_after = 0.0
            else:
                if answer.is_success:
                    return answer
                if answer.status_code not in (408, 425, 429) and answer.status_code < 500:
                    raise self._refusal(path, answer)
                why = f"{self._at}{path} answered {answer.status_code}{_reason(answer)}"
                retry_after = seconds_to_wait(answer.headers.get("retry-after", ""))
            failures += 1
            if failures >= _TRIES:
                raise LangfuseAway(
                    secrets.without_known(why),
                    "Run the command again later: it goes on where it stopped, and sends nothing twice.",
                )
            wait = max(retry_after, min(_FIRST_WAIT_S * 2.0 ** (failures - 1), _LONGEST_WAIT_S))
            self._say(f"{secrets.without_known(why)}; asking again in {f'{wait:.1f}'.removesuffix('.0')} s")
            self._sleep(wait)

    def _request(self, method: str, path: str, **given: Any) -> httpx.Response:
        with self._http.stream(method, path, **given) as answer:
            body = bytearray()
            for piece in answer.iter_bytes():
                body += piece
                if len(body) > _MAX_ANSWER_BYTES:
                    raise LangfuseError(f"{self._at}{path} answered more than {_MAX_ANSWER_BYTES >> 20} MiB")
        headers = {
            name: value
            for name, value in answer.headers.items()
            if name not in ("content-encoding", "content-length", "transfer-encoding")
        }
        return httpx.Response(answer.status_code, headers=headers, content=bytes(body), request=answer.request)

    def _pace(self) -> None:
        now = time.monotonic()
        if now < self._next:
            self._sleep(self._next - now)
        self._next = max(now, self._next) + self._apart_s

    def _refusal(self, path: str, answer: httpx.Response) -> LangfuseError:
        status, reason = answer.status_code, secrets.without_known(_reason(answer))
        if status in (401, 403):
            return WrongKeys(
                f"{self._at} refused the keys ({status}{reason})",
                "Check LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY, and that LANGFUSE_BASE_URL is their server.",
            )
        if status in (404, 405) or 300 <= status < 400:
            return LangfuseError(
                f"{self._at}{path} is not there ({status}{reason})",
                "Langfuse 4 or newer is needed (its cloud, or a server of your own), and LANGFUSE_BASE_URL must be its"
                " address.",
            )
        return Refused(f"{self._at}{path} refused ({status}{reason})")


_JSON = {"content-type": "application/json"}


def _json(answer: httpx.Response) -> Any:
    try:
        return read_json(answer.content)
    except UNREADABLE:
        is_page = "html" in answer.headers.get("content-type", "") or answer.content.lstrip()[:1] == b"<"
        what = "a web page" if is_page else "no JSON"
        raise LangfuseError(
            f"{without_login(str(answer.request.url.copy_with(query=None)))} answered {what}",
            "Is LANGFUSE_BASE_URL that of a Langfuse server, and is no proxy in between?",
        ) from None


def _reason(answer: httpx.Response) -> str:
    """What a refusal says of itself, in a few words."""
    if "html" in answer.headers.get("content-type", ""):
        return ", a web page"
    try:
        said = msgspec.json.decode(answer.content)
        text = said.get("message") or said.get("error") if isinstance(said, dict) else None
    except (msgspec.DecodeError, RecursionError):
        text = answer.content[:_REASON].decode(errors="replace")
    text = " ".join(str(text or "").split())[:_REASON]
    return f": {text}" if text else ""


def _not_taken(said: Any, of: int) -> tuple[int, list[str]]:
    """How many scores of a list were not taken, and why. What an answer does not acknowledge was not taken."""
    if not isinstance(said, dict) or "rejected" not in said:
        return 0, []
    accepted, errors = said.get("accepted"), said.get("errors")
    reasons = [
        str(error.get("message") if isinstance(error, dict) else error)[:_REASON]
        for error in (errors if isinstance(errors, list) else [])
    ]
    refused = of - accepted if isinstance(accepted, int) and 0 <= accepted <= of else of
    return refused, reasons or ["it does not say why"] * (refused > 0)
