"""Push: stored runs to Langfuse, the oldest first, without those that it has; sending twice changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from arttrace.capture.base.langfuse_project import Connection
from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.formats.sdks.conventions import normalise
from arttrace.formats.sdks.langfuse.api import NotNumeric, Scored, advantage, score
from arttrace.formats.sdks.langfuse.writing import Experiment, ShownRun, observation
from arttrace.formats.sdks.whole_traces.messages_elsewhere import with_messages
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.store import AnyStore, TrajectorySummary
from arttrace.store.access.run_spans import is_whole_trace, root_of, spans_of_runs
from arttrace.trajectories.decoding.attribute_values import text
from arttrace.views.langfuse.client import LangfuseClient, Refused
from arttrace.views.langfuse.state import Sent, SentRuns
from arttrace.views.run_filter import RunFilter
from arttrace.views.run_index import Place, RunIndex

_SPANS_AT_ONCE = 2_000  # each with its whole input
_SPANS_OF_REQUEST, _BYTES_OF_REQUEST = 500, 4 << 20
_SCORES_OF_REQUEST = 100
_KEPT_REASONS = 5


class Pushed(msgspec.Struct):
    """What a push did: runs and spans sent, scores sent, runs that Langfuse had, spans and scores that it refused;
    `unreadable` lines of what was known to be sent, whose runs were sent again; `run` is the only one that was asked
    for; `url` is where a person sees them."""

    runs: int = 0
    spans: int = 0
    scores: int = 0
    known: int = 0
    refused_spans: int = 0
    refused_scores: int = 0
    reasons: list[str] = []
    unreadable: int = 0
    run: str = ""
    url: str = ""

    def refuse(self, reason: str) -> None:
        """Keeps the first reasons."""
        if reason and reason not in self.reasons and len(self.reasons) < _KEPT_REASONS:
            self.reasons.append(reason)


def push(
    store: AnyStore,
    client: LangfuseClient,
    connection: Connection,
    known: SentRuns,
    wanted: RunFilter | None = None,
    *,
    with_scores: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Pushed:
    """Send the runs that are `wanted` (None: all), and with them their rewards as scores. `progress` is called with how
    many of how many runs are done. Raises LangfuseError when Langfuse refuses everything or is away for long; what was
    sent by then is known, and not sent again by the next push."""
    pushed = Pushed(unreadable=known.unreadable)
    with RunIndex(store, wanted or RunFilter()) as runs:
        runs.number_groups()
        done = 0
        progress(done, runs.count)
        for ids in runs.pages(_SPANS_AT_ONCE):
            places = runs.places(ids)
            found = sorted(store.summaries(ids=ids), key=lambda run: (run.start_ns, run.id))
            waiting = [
                run
                for run in found
                if _is_new(known.get(run.id), run, places.get(run.id), connection, with_scores=with_scores)
            ]
            pushed.known += len(found) - len(waiting)
            if waiting:
                _push(store, client, connection, waiting, known, pushed, places, with_scores=with_scores)
            done += len(ids)
            pushed.run = ids[0] if runs.count == 1 else ""
            progress(done, runs.count)
    return pushed


def _is_new(
    sent: Sent | None, run: TrajectorySummary, place: Place | None, connection: Connection, *, with_scores: bool
) -> bool:
    if sent is None or sent.spans != _shown_hash(run, place, connection):
        return True
    return with_scores and sent.scores != _scores_hash(run, place)


def _push(
    store: AnyStore,
    client: LangfuseClient,
    connection: Connection,
    runs: Sequence[TrajectorySummary],
    known: SentRuns,
    pushed: Pushed,
    places: Mapping[str, Place],
    *,
    with_scores: bool,
) -> None:
    spans = spans_of_runs(store, [run.id for run in runs])
    sent: list[Sent] = []
    to_send: list[SpanRow] = []
    scores: list[dict[str, Any]] = []
    for run in runs:
        members = with_messages(spans.get(run.id, []))
        if not members:
            continue
        place = places.get(run.id)
        root = root_of(members)
        shown = _shown(run, root, members, place, connection)
        before, spans_hash = known.get(run.id), _shown_hash(run, place, connection)
        if before is None or before.spans != spans_hash:
            to_send += [observation(span, shown, read=normalise(span)) for span in members]
            pushed.runs += 1
        if with_scores:
            scores += _scores(run, root, members, place, connection, pushed)
        kept = "" if before is None else before.scores
        page = root.trace_id if is_whole_trace(run.id, root) else f"{root.trace_id}?observation={root.span_id}"
        sent.append(Sent(run.id, spans_hash, _scores_hash(run, place) if with_scores else kept, page))
    for request in _requests(to_send):
        _send(client, request, pushed)
    for start in range(0, len(scores), _SCORES_OF_REQUEST):
        part = scores[start : start + _SCORES_OF_REQUEST]
        refused, reasons = client.send_scores(part)
        pushed.scores += len(part) - refused
        pushed.refused_scores += refused
        for reason in reasons:
            pushed.refuse(reason)
    known.add(sent)


def _send(client: LangfuseClient, spans: Sequence[SpanRow], pushed: Pushed) -> None:
    """Sends spans; where Langfuse refuses them as a whole, the halves, until the one that it refuses is alone."""
    try:
        rejected, reason = client.send_spans(encode_protobuf(spans))
    except Refused as error:
        if len(spans) == 1:
            pushed.refused_spans += 1
            pushed.refuse(f"span {spans[0].name!r} of trace {spans[0].trace_id}: {error.message}")
            return
        for half in (spans[: len(spans) // 2], spans[len(spans) // 2 :]):
            _send(client, half, pushed)
        return
    rejected = min(rejected, len(spans))
    pushed.spans += len(spans) - rejected
    pushed.refused_spans += rejected
    pushed.refuse(reason)


def _requests(spans: Iterable[SpanRow]) -> Iterator[list[SpanRow]]:
    """Spans in requests of a size that servers and proxies take."""
    request: list[SpanRow] = []
    size = 0
    for span in spans:
        length = span.characters
        if request and (len(request) >= _SPANS_OF_REQUEST or size + length > _BYTES_OF_REQUEST):
            yield request
            request, size = [], 0
        request.append(span)
        size += length
    if request:
        yield request


def _shown(
    run: TrajectorySummary, root: SpanRow, spans: Sequence[SpanRow], place: Place | None, connection: Connection
) -> ShownRun:
    metadata: dict[str, Any] = {"arttrace.trajectory": run.id, "arttrace.entry": run.entry, **run.metadata}
    if place is not None:
        metadata["arttrace.group"] = run.group
    if run.policy_versions:
        metadata["arttrace.policy_versions"] = list(run.policy_versions)
    if run.incomplete:
        metadata["arttrace.incomplete"] = run.incomplete
    return ShownRun(
        name=run.entry.rpartition(":")[2] or run.entry,
        root=(root.trace_id, root.span_id),
        tags=run.tags,
        session=_named(run.metadata, semconv.SESSION_KEYS) or _said(spans, semconv.SESSION_ID, semconv.CONVERSATION_ID),
        user=_named(run.metadata, semconv.USER_KEYS) or _said(spans, semconv.USER_ID),
        environment=connection.environment,
        release=connection.release,
        metadata=metadata,
        experiment=None if place is None else _experiment(run, place),
    )


def _experiment(run: TrajectorySummary, place: Place) -> Experiment:
    """One experiment per member of a group: Langfuse shows one run of each item in it."""
    name = f"{run.entry} #{place.number + 1}"
    return Experiment(id=_hash("experiment", name), name=name, item=run.group)


def _named(metadata: Mapping[str, Any], names: Sequence[str]) -> str | None:
    values = (metadata.get(name) for name in names)
    return next((str(value) for value in values if isinstance(value, (str, int)) and value != ""), None)


def _said(spans: Sequence[SpanRow], *names: str) -> str | None:
    return next((value for name in names for span in spans if (value := text(span.attributes.get(name)))), None)


def _scores(
    run: TrajectorySummary,
    root: SpanRow,
    spans: Sequence[SpanRow],
    place: Place | None,
    connection: Connection,
    pushed: Pushed,
) -> list[dict[str, Any]]:
    traces = {span.span_id: span.trace_id for span in spans}
    environment, at = connection.environment, run.end_ns or run.start_ns
    whole = Scored(root.trace_id, None if is_whole_trace(run.id, root) else root.span_id)
    found = []
    for reward in run.rewards:
        agent = reward.agent_id
        of = Scored(traces[agent], agent) if agent in traces else whole
        try:
            found.append(score(reward, of, environment=environment, time_ns=at))
        except NotNumeric as error:
            pushed.refused_scores += 1
            pushed.refuse(str(error))
    if place is not None and place.advantage is not None:
        found.append(advantage(place.advantage, run.id, whole, of_runs=place.of, environment=environment, time_ns=at))
    return found


def _shown_hash(run: TrajectorySummary, place: Place | None, connection: Connection) -> str:
    """What was sent of its spans: another one is sent again."""
    number = None if place is None else place.number
    return _hash(run.revision, run.group, number, run.tags, run.metadata, connection.environment, connection.release)


def _scores_hash(run: TrajectorySummary, place: Place | None) -> str:
    return _hash(run.rewards, None if place is None else (place.advantage, place.of))


def _hash(*values: Any) -> str:
    return hashlib.blake2b(msgspec.json.encode(values, order="sorted"), digest_size=8).hexdigest()
