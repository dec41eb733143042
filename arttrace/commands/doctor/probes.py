"""Checks of `arttrace doctor` by one small request each: to a judge, to the receivers of spans, to a model server.

The span that is sent belongs to no run: it says nothing that a trajectory is made from, so that no list of runs has it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import httpx
import msgspec

from arttrace.capture.base.receiver import Receiver
from arttrace.capture.base.settings import Settings
from arttrace.capture.export.shipping.otlp import encode_request
from arttrace.capture.export.shipping.otlp_client import OtlpClient
from arttrace.commands.doctor.check import Check
from arttrace.commands.doctor.destinations import NOT_THERE, OTHERWISE, REMEDIES, line
from arttrace.commands.shared.extras import is_missing
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.units import quantity
from arttrace.system.addresses import verified, without_login
from arttrace.system.errors import ArttraceError, StoreError
from arttrace.system.paths import DataDir
from arttrace.wire import Exchange, decode
from arttrace.wire.exchange import KEPT_RESPONSE_HEADERS, picked
from arttrace.wire.messages import parse_message

PROBE_SPAN = "arttrace.doctor"
"""The name of the span that is sent."""

_JUDGE_TIMEOUT_S = 60.0
_ENGINE_TIMEOUT_S = 60.0
_ARRIVAL_S = 10.0
_PAUSE_S = 0.1
_TASK = {"role": "user", "content": "What is 3 + 3?"}


def ask_judge(model: str, params: Mapping[str, object]) -> Check:
    """Have a judge score two answers to one question, as `arttrace score` would: checks whether it can be reached, and
    whether its answer can be used."""
    from arttrace.rewards.judge_calls import Bill, Judge, load_litellm, score_transcripts
    from arttrace.rewards.judge_prompt import DEFAULT_RUBRIC
    from arttrace.rewards.transcript import transcript_of_messages

    answers = [[_TASK, {"role": "assistant", "content": said}] for said in ("6", "7")]
    transcripts = [transcript_of_messages(tuple(map(parse_message, messages)), ()) for messages in answers]
    judge, bill = Judge(model, {"timeout": _JUDGE_TIMEOUT_S, **params}, attempts=2), Bill()
    load_litellm()
    begun = time.monotonic()
    try:
        right, wrong = asyncio.run(score_transcripts(judge, transcripts, DEFAULT_RUBRIC, PROBE_SPAN, bill))
    except ArttraceError as error:
        return Check("judge", "error", line(error.message), error.hint or "")
    cost = "" if bill.cost is None else f", ${bill.cost:.4f}"
    tokens = bill.input_tokens + bill.output_tokens
    found = f"{model} answers in {time.monotonic() - begun:.1f} s ({quantity(tokens, 'token')}{cost})"
    if right.score > wrong.score:
        return Check("judge", "ok", found)
    hint = "Measure it on runs whose rewards are known: arttrace judge-check. A stronger one may be needed."
    words = f"{found}, and does not prefer the right answer to 3 + 3 ({right.score:g} against {wrong.score:g})"
    return Check("judge", "warning", words, hint)


def send_span(data: DataDir) -> Iterator[Check]:
    """Sends one span to the collector and to every receiver that the environment names, and looks whether the collector
    has stored it."""
    settings = Settings.resolve(dir=data.root)
    if settings.collector is None and not settings.all_receivers:
        yield Check("spans", "ok", "are sent nowhere: they stay in the data directory")
    if settings.collector is not None:
        check, span = _sent("spans to the collector", settings.collector)
        yield check
        if check.state == "ok":
            yield _arrived(data, str(settings.endpoint), span)
    for receiver in settings.all_receivers:
        yield _sent(f"spans to {receiver.called}", receiver)[0]


def _sent(name: str, receiver: Receiver) -> tuple[Check, SpanRow]:
    now = time.time_ns()
    span = SpanRow(
        trace_id=secrets.token_hex(16),
        span_id=secrets.token_hex(8),
        name=PROBE_SPAN,
        start_ns=now,
        end_ns=now + 1,
        resource={"service.name": PROBE_SPAN},
        scope_name=PROBE_SPAN,
    )
    try:
        client = OtlpClient(receiver)
    except ArttraceError as error:
        return Check(name, "error", line(error.message), error.hint or ""), span
    try:
        answer = client.post(encode_request(client.formed([span])))
    except OSError as error:
        return Check(name, "error", line(f"{client.name} does not answer: {error}"), NOT_THERE), span
    finally:
        client.close()
    if answer.taken and not answer.rejected:
        return Check(name, "ok", f"{client.name} accepts them"), span
    hint = REMEDIES.get(answer.status, OTHERWISE)
    said = "refused a span and answers" if answer.taken else "answers"
    return Check(name, "error", line(f"{client.name} {said} {answer.said}"), hint), span


def _arrived(data: DataDir, endpoint: str, span: SpanRow) -> Check:
    name = "spans in its store"
    if is_missing("store"):
        return Check(name, "ok", "not looked for: that needs arttrace[store] here")
    from arttrace.store.access.open_store import open_store
    from arttrace.store.access.owner_file import read_owner

    query = f"SELECT count(*) FROM spans WHERE trace_id = '{span.trace_id}'"  # noqa: S608 - hexadecimal
    end = time.monotonic() + _ARRIVAL_S
    try:
        # One without a key tells only those who can read its directory.
        elsewhere = data if read_owner(data) is not None else replace(data, url=endpoint.rstrip("/"))
        with open_store(elsewhere) as store:
            while store.sql(query)[1] == [(0,)]:
                if time.monotonic() > end:
                    hint = "Look at its log, and at /ready and /metrics: it takes spans and loads none."
                    return Check(name, "error", f"the span is not there after {_ARRIVAL_S:g} s", hint)
                time.sleep(_PAUSE_S)
                store.ingest_spool()
    except StoreError as error:
        return Check(name, "warning", line(f"it cannot be asked: {error.message}"), error.hint or "")
    return Check(name, "ok", "the span is there")


def ask_for_tokens(base_url: str, key: str | None) -> Check:
    """Asks a model server for one token, as a routed call does, and whether its ids come with it."""
    name, base, shown = "token ids of an answer", base_url.rstrip("/"), line(without_login(base_url.rstrip("/")))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(headers=headers, timeout=_ENGINE_TIMEOUT_S, verify=verified(base)) as client:
            model = msgspec.json.decode(client.get(f"{base}/models").content, type=_ServedModels).data[0].id
            request = {"model": model, "messages": [_TASK], "max_tokens": 1, "logprobs": True, "return_token_ids": True}
            answer = client.post(f"{base}/chat/completions", json=request)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        hint = "Start it, or check its address, which mostly ends in /v1."
        return Check(name, "error", f"{shown} does not answer ({type(error).__name__})", hint)
    except (msgspec.MsgspecError, ValueError, IndexError):
        hint = "Check its address, which mostly ends in /v1, and its key."
        return Check(name, "error", f"{shown}/models lists no models", hint)
    kept = picked(answer.headers, KEPT_RESPONSE_HEADERS)
    kept.pop("content-encoding", None)
    decoded = decode(Exchange(msgspec.json.encode(request), answer.status_code, kept, answer.content))
    if answer.status_code != httpx.codes.OK:
        hint = "Check its key, and its log. Engines that know no `return_token_ids` and refuse it give no token ids."
        return Check(name, "error", f"{line(model)} at {shown} answers {answer.status_code}", hint)
    if decoded.failure is not None:
        hint = "Check its address, which mostly ends in /v1: a proxy or a login may answer in its stead."
        return Check(name, "error", f"what {shown} answers is not a chat completion", hint)
    missing = [words for attribute, words in _NEEDED.items() if not decoded.attributes.get(attribute)]
    if missing:
        hint = (
            "Serve the model with `arttrace serve` or vLLM: other engines' answers can be judged, and not trained on."
        )
        return Check(name, "warning", f"{line(model)} at {shown} answers without {', '.join(missing)}", hint)
    return Check(name, "ok", f"{line(model)} at {shown}")


_NEEDED = {
    semconv.PROMPT_TOKEN_IDS: "the prompt's token ids",
    semconv.TOKEN_IDS: "the sampled token's id",
    semconv.LOGPROBS: "its log-probability",
}


class _ServedModel(msgspec.Struct):
    id: str


class _ServedModels(msgspec.Struct):
    data: list[_ServedModel]
