"""Checks of `arttrace doctor` where spans go: each receiver is asked whether it would take some, and is sent none;
Langfuse is asked whose project the keys are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import httpx

from arttrace.capture.base.langfuse_project import Connection
from arttrace.capture.base.receiver import Receiver
from arttrace.capture.base.settings import Settings, langfuse_is_wanted
from arttrace.capture.export.shipping.otlp_client import OtlpClient
from arttrace.commands.doctor.check import Check
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.views.labels import one_line

TIMEOUT_S = 5.0
_MAX_LINE = 600
_KEYS = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
_BAD_CONTENT = (400, 413, 415, 422)  # of a request without spans: whoever says so has let it in
REMEDIES = {
    401: "Check its key: ARTTRACE_API_KEY for the collector, the headers of other receivers.",
    403: "Check its key: ARTTRACE_API_KEY for the collector, the headers of other receivers.",
    404: "Check its address: nothing takes spans at this path.",
    405: "Check its address: nothing takes spans at this path.",
    429: "It has too much to do now: spans wait on the disk, and are sent again.",
    503: "It takes nothing now: spans wait on the disk, and are sent again.",
}
"""What to do, by what a receiver answers."""
NOT_THERE = "Start it, or check its address. Spans wait on the disk until it answers."
OTHERWISE = "Check its address: it is to be a receiver of OTLP over HTTP."


def line(text: str) -> str:
    """A text of another program's, as one line of bounded length."""
    return one_line(text, _MAX_LINE)


def receivers(data: DataDir) -> Iterator[Check]:
    """The collector and every other receiver that the environment names, but for Langfuse: address and key."""
    settings = Settings.resolve(dir=data.root)
    if settings.collector is not None:
        yield _asked("collector", settings.collector)
    for receiver in settings.all_receivers:
        if receiver.spans != "langfuse":
            yield _asked("receiver", receiver)


def _asked(name: str, receiver: Receiver) -> Check:
    try:
        client = OtlpClient(replace(receiver, timeout_s=min(receiver.timeout_s, TIMEOUT_S)))
    except ArttraceError as error:
        return Check(name, "error", line(error.message), error.hint or "")
    try:
        answer = client.post(b"")
    except OSError as error:
        return Check(name, "error", line(f"{client.name} does not answer: {error}"), NOT_THERE)
    finally:
        client.close()
    if answer.taken or answer.status in _BAD_CONTENT:
        return Check(name, "ok", f"{client.name} takes spans")
    state: Literal["error", "warning"] = "warning" if answer.status in (429, 503) else "error"
    found = line(f"{client.name} answers {answer.said}")
    return Check(name, state, found, REMEDIES.get(answer.status, OTHERWISE))


def langfuse(_data: DataDir) -> Iterator[Check]:
    """Whether the settings for Langfuse are whole, whose project they name, and whether runs are sent there."""
    wanted = langfuse_is_wanted()
    if not wanted and not any(map(os.environ.get, _KEYS)):
        return
    bad: Literal["error", "warning"] = "error" if wanted else "warning"
    try:
        connection = Connection.resolve()
    except ArttraceError as error:
        yield Check("langfuse", bad, line(error.message), error.hint or "")
        return
    at = line(connection.shown)
    try:
        answer = httpx.get(
            f"{connection.url}/api/public/projects",
            headers={"authorization": connection.authorization},
            timeout=TIMEOUT_S,
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        hint = "Start it, or check LANGFUSE_BASE_URL. Runs wait on the disk until it answers."
        yield Check("langfuse", bad, f"{at} does not answer ({type(error).__name__})", hint)
        return
    if answer.status_code in (401, 403):
        hint = f"Check {' and '.join(_KEYS)}, and that LANGFUSE_BASE_URL is the server of their project."
        yield Check("langfuse", bad, f"{at} refuses the keys ({answer.status_code})", hint)
        return
    name = _project(answer)
    if name is None:
        hint = "Check LANGFUSE_BASE_URL: another server, a proxy or a login may answer at this address."
        yield Check("langfuse", bad, f"{at} answers {answer.status_code}, and names no project", hint)
        return
    live = "runs are sent there as they end"
    by_hand = "`arttrace langfuse push` sends runs there; with ARTTRACE_LANGFUSE=1 they are sent as they end"
    yield Check("langfuse", "ok", f"project {line(name)} at {at}: {live if wanted else by_hand}")


def _project(answer: httpx.Response) -> str | None:
    """The name of the keys' project, where the answer says one."""
    if answer.status_code != httpx.codes.OK:
        return None
    try:
        first = answer.json()["data"][0]
        return str(first.get("name") or first["id"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
