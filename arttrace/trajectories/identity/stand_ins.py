"""What stands in the place of a span that was refused, so that the run which lacks it is not taken for complete.

It is a small span under the ids of the refused one: no part of any run, and nothing once the span itself came, ended.
Where the refused one had no readable id, nothing that comes later is known to be it, and its run stays incomplete. So
it is with a log record, which has none: what stands in for it is below the span that the record is about. Their ids
are made of what was refused, so that it is there once, however often and in whatever batches it is sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from arttrace.records import semconv
from arttrace.records.message import canonical_json
from arttrace.records.span import SpanLink, SpanRow
from arttrace.records.values.integers import INT64
from arttrace.records.values.nesting import UNREADABLE
from arttrace.trajectories.decoding.operation import operation
from arttrace.trajectories.identity.deduplicate import SpanKey

SAID: Final = (semconv.TRAJECTORY_ID, semconv.OPERATION_NAME, semconv.LOG_RECORD)
"""The attributes of which a stand-in is made."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NAME, _ID, _WHY = 100, 200, 200
_LINKS = 64
_NO_TIME = 1
_trace_id, _span_id = re.compile(r"(?!0+$)[0-9a-f]{32}", re.ASCII), re.compile(r"(?!0+$)[0-9a-f]{16}", re.ASCII)


def stand_in(
    why: str,
    *,
    trace_id: Any,
    span_id: Any = None,
    parent_span_id: Any = None,
    name: Any = None,
    start_ns: Any = None,
    attributes: Mapping[str, Any] = _NOTHING,
    links: Iterable[tuple[Any, Any]] = (),
    content: Any = None,
) -> SpanRow | None:
    """What stands in for a span, or for a log record about the span `parent_span_id`, from whatever was read of it: ids
    in hex, the start in nanoseconds since 1970, of its attributes those of `SAID`, and (trace id, span id) of its
    links. `content` is all of it as it came, bytes or of JSON. None where its trace is not known."""
    trace = _id(trace_id, _trace_id)
    if trace is None:
        return None
    why = why[:_WHY].encode(errors="replace").decode()
    name = name[:_NAME].encode(errors="replace").decode() if isinstance(name, str) else ""
    begin = start_ns if type(start_ns) is int and 0 < start_ns < INT64.stop else _NO_TIME  # true is no time
    parent = _id(parent_span_id, _span_id)
    kept: dict[str, Any] = {semconv.OPERATION_NAME: semconv.OPERATION_REFUSED}
    if attributes.get(semconv.LOG_RECORD):
        kept[semconv.LOG_RECORD] = True
    trajectory_id = attributes.get(semconv.TRAJECTORY_ID)
    if isinstance(trajectory_id, str) and 0 < len(trajectory_id) <= _ID and trajectory_id.isprintable():
        kept[semconv.TRAJECTORY_ID] = trajectory_id
    own = _id(span_id, _span_id) or _made_up(content, trace, parent, name, begin)
    return SpanRow(
        trace_id=trace,
        span_id=own,
        parent_span_id=parent,
        name=name,
        start_ns=begin,
        end_ns=0,
        status_code=2,
        status_message=why,
        attributes=kept,
        links=_ties(attributes.get(semconv.OPERATION_NAME), links, (trace, own)),
    )


def _ties(said: Any, links: Iterable[tuple[Any, Any]], own: SpanKey) -> list[SpanLink]:
    """The links of what may be an agent: those of anything else tie it to no run."""
    if isinstance(said, str) and said != semconv.OPERATION_INVOKE_AGENT:
        return []
    keys = ((_id(trace, _trace_id), _id(span, _span_id)) for trace, span in links)
    whole = dict.fromkeys((trace, span) for trace, span in keys if trace and span and (trace, span) != own)
    return [SpanLink(trace, span) for trace, span in islice(whole, _LINKS)]


def _made_up(content: Any, *read: Any) -> str:
    """The id of what has none: the same for the same content."""
    written = content if isinstance(content, bytes) else b""
    with contextlib.suppress(*UNREADABLE, TypeError):
        written = written or canonical_json(content)
    return hashlib.blake2b(repr(read).encode() + written, digest_size=8).hexdigest()


def _id(given: Any, form: re.Pattern[str]) -> str | None:
    return found if isinstance(given, str) and form.fullmatch(found := given.lower()) else None


def is_stand_in(span: SpanRow) -> bool:
    """Whether a span only stands in for one that was refused."""
    return operation(span) == semconv.OPERATION_REFUSED


def apart(spans: Iterable[SpanRow]) -> tuple[list[SpanRow], list[SpanRow]]:
    """Spans, and what stands in for others."""
    there: list[SpanRow] = []
    stand_ins: list[SpanRow] = []
    for span in spans:
        (stand_ins if is_stand_in(span) else there).append(span)
    return there, stand_ins
