"""Failures: what an exception from a judge's provider means, whether it may pass, and how it is shown.

litellm gives one exception class for several causes (a refused connection and a missing key both arrive as a server
error with status 500), so the chain of causes is read as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from arttrace.capture.export.shipping.otlp_client import seconds_to_wait
from arttrace.system.addresses import why_never_asked, without_login
from arttrace.system.errors import JudgeError, MayPass

_MAX_RETRY_AFTER_S = 60.0
_MAX_TOLD = 300
_TOKENS_READ = re.compile(r"maximum context length is (\d{1,9}) tokens")
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


class JudgeUnavailable(JudgeError):
    """The judge cannot be asked at all: unreachable, key missing or refused, unknown model. Other groups fail alike."""


class JudgeUnreachable(JudgeUnavailable, MayPass):
    """Nothing answers where the judge should be."""


class JudgeDown(JudgeError, MayPass):
    """The judge's provider failed, or had too much to do, at every attempt."""


def may_pass(error: BaseException) -> bool:
    """Whether asking again may help: too many requests, a server's failure, no connection."""
    status = getattr(error, "status_code", None)
    return not _key_missing(error) and (status is None or status in (408, 409, 425, 429) or status >= 500)


def retry_after_s(error: BaseException) -> float:
    """Seconds the provider asked to wait, at most a minute; 0 when it did not."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    return min(seconds_to_wait(headers.get("retry-after", "")), _MAX_RETRY_AFTER_S)


def tokens_read(error: BaseException) -> int | None:
    """How many tokens a model reads, where it says so as it refuses a prompt that is longer."""
    said = _TOKENS_READ.search(str(error))
    return int(said[1]) if said is not None else None


def judge_error(error: BaseException, model: str, params: Mapping[str, Any]) -> JudgeError:
    """`error` as cause and hint; JudgeUnavailable when any other group would fail alike."""
    base = params.get("api_base")
    judge = f"the judge {model}{f' at {without_login(base)}' if base else ''}"
    if base and (unreadable := why_never_asked(base, None)):  # of which the provider's client quotes a part
        return JudgeUnavailable(f"{judge} cannot be asked: {unreadable}", "Correct --judge-base-url.")
    why = short_cause(error, params)
    if _key_missing(error):
        return JudgeUnavailable(
            f"{judge} needs a key, or refuses the one it got: {why}",
            "Set the key of its provider in the environment (OPENAI_API_KEY, ANTHROPIC_API_KEY, ...).",
        )
    if _unreachable(error):
        return JudgeUnreachable(
            f"{judge} cannot be reached: {why}",
            "Start it, or name another with --judge (and --judge-base-url for a server of your own).",
        )
    if "<html" in (said := str(error).lower()) or "<!doctype" in said:
        return JudgeUnavailable(
            f"{judge} answers with a web page, as a proxy or a login does: {why}",
            "Check --judge-base-url: it is the base of an OpenAI-compatible API, which mostly ends in /v1.",
        )
    if base and "LLM Provider NOT provided" in str(error):
        return JudgeUnavailable(
            f"{judge} names no provider, as litellm's models do",
            f"For a server with OpenAI's API it is openai/{model}.",
        )
    if getattr(error, "status_code", None) == 404 or "LLM Provider NOT provided" in str(error):
        hint = "Name a model as litellm does, provider/model: openai/o3, anthropic/..., or openai/NAME with a base URL."
        if base:
            hint = "Check the model's name, and --judge-base-url: the base of most servers ends in /v1."
        return JudgeUnavailable(f"{judge} is not known: {why}", hint)
    if getattr(error, "status_code", None) == 408:
        return JudgeDown(
            f"{judge} did not answer in time: {why}", "Try again later, or name a faster judge with --judge."
        )
    kind = JudgeDown if may_pass(error) else JudgeError
    return kind(f"{judge} failed: {why}", "Try again later, or use another judge.")


def short_cause(error: BaseException, params: Mapping[str, Any]) -> str:
    """What the provider said, in one bounded line without keys, or the login of the judge's address."""
    text = " ".join(str(error).split())
    if base := params.get("api_base"):
        text = text.replace(base, without_login(base))
    given = [str(value) for name, value in params.items() if "key" in name or "token" in name]
    environment = [value for name, value in os.environ.items() if name.endswith(_SECRET_NAMES)]
    for secret in (*given, *environment):
        if len(secret) >= 6:
            text = text.replace(secret, "***")
    text = re.sub(r"\b(sk|pk|key)-[\w*-]{4,}", "***", text)
    return text if len(text) <= _MAX_TOLD else text[:_MAX_TOLD] + "..."


def _chain(error: BaseException) -> Iterator[BaseException]:
    step: BaseException | None = error
    while step is not None:
        yield step
        step = step.__cause__ or step.__context__


def _unreachable(error: BaseException) -> bool:
    connecting = any(isinstance(step, ConnectionError) or "Connect" in type(step).__name__ for step in _chain(error))
    return connecting and getattr(error, "status_code", 500) == 500


def _key_missing(error: BaseException) -> bool:
    """As the openai client says it, and as its 2.20 does, the least that litellm asks for."""
    said = str(error)
    none = "Missing credentials" in said or "api_key client option must be set" in said
    return none or getattr(error, "status_code", None) in (401, 403)
