"""A library's span of a model call while it is followed: recorded, unless that very call is recorded already.

A call that a hook of ours begins inside the span, by OpenTelemetry's context, is the same unless the two say several
different things. One that begins in the same scope meanwhile (callbacks make spans that are never current) is the same
where nothing contradicts it, what was asked too, or only the id of one and the same text (LiteLLM makes ids of its
own), and it ended before the span did. One recorded call answers for one span, and the spans around that. It is decided
in the background, where it is known what the calls say. A call whose answer another span is to tell (stream_report.py)
waits for it, unless it is recorded already.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry.trace import SpanKind, get_current_span

from arttrace.capture.base.values import json_text, weight_of
from arttrace.capture.calls.genai_span import Said, decoded_value
from arttrace.capture.calls.same_call import Facts, facts_of
from arttrace.capture.calls.stream_report import Request, has_answer, wait
from arttrace.capture.context.flow import claim_execution
from arttrace.capture.context.position import Position
from arttrace.capture.export import summary
from arttrace.capture.export.open_span import OpenSpan
from arttrace.records import semconv
from arttrace.wire.content import MAX_CONTENT_BYTES, ContentMode, Hidden

FOLLOWED_CALL = "_arttrace_call"
"""On a library's span: the innermost call that is followed around what is done inside it."""
_OF_A_CALL = ("gen_ai.request.", "gen_ai.response.", "gen_ai.usage.", *semconv.STATED_COSTS)
_MAX_SEEN = 1000  # of one that never ends
_OTHER_WORDS = 1  # what a library may say otherwise of the very call: an alias of the model, tokens it has counted

_Failure = tuple[str, str] | None


class SeenCall:
    """A call that began while spans of calls were followed in its scope."""

    __slots__ = ("_waiting", "facts", "inside_of", "seen_by")

    def __init__(self, inside_of: FollowedCall | None) -> None:
        self.inside_of = inside_of
        """The innermost of the spans that it began inside of."""
        self.facts: Facts | None = None
        """None until it has ended and been recorded."""
        self.seen_by: list[FollowedCall] = []
        """The spans that are of this call."""
        self._waiting: list[Callable[[], None]] = []

    def wait(self, decide: Callable[[], None]) -> None:
        """Call `decide` when it is known what this call says."""
        self._waiting.append(decide)

    def ended(self, facts: Facts) -> None:
        """It has been recorded, in the background, and says so much."""
        self.facts = facts
        while self._waiting:
            self._waiting.pop(0)()


def see(scope: Position) -> SeenCall | None:
    """Tell the spans of calls that are followed in the caller's scope that a call of ours begins there."""
    around: Any = None
    if scope.following or FollowedCall.in_other_runs:
        around = getattr(get_current_span(), FOLLOWED_CALL, None)
        if around is not None and not around.is_in(scope):
            around = None
    following = list((scope.following or {}).values())
    if around is None and not following:
        return None
    seen = SeenCall(around)
    open_ones: set[Any] = {known() for known in following}
    for followed in open_ones | {around, *_above(around)}:
        if followed is not None and not followed.has_ended:
            followed.saw(seen)
    return seen


class FollowedCall:
    """What is known of one such span; `outer` is the one that it is inside of, if any, and `request` what tells the
    span that says its answer in its place."""

    in_other_runs = False
    """Whether there was one right below a span of another process."""

    def __init__(
        self, scope: Position, name: str, outer: FollowedCall | None = None, request: Request | None = None
    ) -> None:
        self.scope = scope
        self.request = request
        self.ended_ns = 0
        self._report: tuple[dict[str, Any], int, _Failure] | None = None
        self._held: tuple[dict[str, Any], int, _Failure, Mapping[str, int]] | None = None
        self.outer = outer if outer is not None and outer.is_in(scope) else None
        self.unsaid: Mapping[str, Any] = {}
        self.span = OpenSpan(name, SpanKind.CLIENT, scope.context, time.time_ns())
        self._pid = os.getpid()
        self._execution = claim_execution(scope.root.execution)
        self._passed = scope.passed
        self._has_inside = self.has_ended = False
        self._seen: deque[SeenCall] = deque(maxlen=_MAX_SEEN)
        self._as_seen = SeenCall(self.outer)
        following = scope.following = {} if scope.following is None else scope.following
        key = id(self)
        following[key] = weakref.ref(self, lambda _: following.pop(key, None))
        if scope.is_remote:
            FollowedCall.in_other_runs = True

    def is_in(self, scope: Position) -> bool:
        """Whether it is right inside this position; of one of another process, each who comes there has its own."""
        return self.scope is scope or (scope.is_remote and self.scope.context.span_id == scope.context.span_id)

    def is_around(self, other: FollowedCall | None) -> bool:
        """Whether that is this one, or inside it."""
        return other is self or self in _above(other)

    def is_of_one_path(self, other: FollowedCall) -> bool:
        """Whether one of the two is around the other: both may be of one call."""
        return self.is_around(other) or other.is_around(self)

    def saw(self, seen: SeenCall) -> None:
        """A call has begun meanwhile."""
        self._seen.append(seen)
        self._has_inside = self._has_inside or self.is_around(seen.inside_of)

    @property
    def capture_content(self) -> ContentMode:
        """What of its content is kept."""
        return self.scope.capture_content

    @property
    def is_awaited(self) -> bool:
        """Until a call was recorded inside it: nobody needs to write its messages down once more."""
        return not self._has_inside and not any(outer.has_ended for outer in _above(self))

    @property
    def hidden(self) -> Hidden:
        """What was taken out of its run."""
        return self.scope.run.hidden

    @property
    def run(self) -> object:
        """The run that it is a part of."""
        return self.scope.run

    def so_far(self) -> dict[str, Any]:
        """What is known of it before its answer."""
        return {} if self._held is None else self._held[0]

    def end(self, said: Said) -> None:
        """Record the call, unless it is recorded already or was none."""
        scope, attributes = self.scope, {**said.attributes, **self.unsaid}
        if scope.following is not None:
            scope.following.pop(id(self), None)
        if semconv.REQUEST_MODEL not in attributes or self._pid != os.getpid():  # a forked child's is the parent's
            return
        self.has_ended = True
        for outer in _above(self):
            outer._has_inside = True
        end_ns, passed = time.time_ns(), scope.passed
        if self.request is not None and (said.failure is not None or has_answer(attributes)):
            self.request = None
        elif self.request is not None:
            self.ended_ns = end_ns
            wait(self)
        kept = _kept(attributes)
        kept[semconv.OPERATION_NAME] = attributes.get(semconv.OPERATION_NAME, semconv.OPERATION_CHAT)
        kept[semconv.PROVIDER_NAME] = attributes.get(semconv.PROVIDER_NAME) or attributes.get("gen_ai.system") or ""
        kept |= scope.run.attributes | self._execution.attributes
        if scope.is_remote or scope.run.has_ended:  # no scope of this process counts it
            kept[semconv.TRAJECTORY_SPAN_COUNT] = 0
        scope.recorder.submit(lambda: self._ended(kept, end_ns, said.error(), passed), weight_of(kept))

    def reported(self, said: Said) -> None:
        """Another span says what was answered, and whether that failed."""
        if self._pid == os.getpid():
            told = (_kept(said.attributes), time.time_ns(), said.error())
            self.scope.recorder.submit(lambda: self._completed(*told), weight_of(told[0]))

    def _completed(self, attributes: dict[str, Any], end_ns: int, failure: _Failure) -> None:
        self._report = attributes, end_ns, failure
        if self._held is not None:
            self._ended(*self._held)

    def _ended(self, attributes: dict[str, Any], end_ns: int, failure: _Failure, passed: Mapping[str, int]) -> None:
        if self._report is not None:
            told, end_ns, failure = self._report
            attributes = {**attributes, **told}
        facts = facts_of(attributes)
        same = self._same(facts)
        lasting = None if same is not None else next(self._may_be_of(), None)
        if lasting is not None:  # a stream, say, that is read after the end of its span
            lasting.wait(lambda: self._ended(attributes, end_ns, failure, passed))
            return
        if same is None and self.request is not None and self._report is None:
            self._held = attributes, end_ns, failure, passed
            self.scope.recorder.started(self)
            return
        self._seen.clear()
        if same is not None:
            same.seen_by.append(self)
            return
        if self.scope.run.is_counted:
            attributes[semconv.TRAJECTORY_SPAN_COUNT] = 0
        self._as_seen.facts = facts
        for outer in _above(self):
            outer._seen.append(self._as_seen)
        self.scope.run.covered_calls += semconv.TRAJECTORY_SPAN_COUNT not in attributes
        for what, count in passed.items():
            known = max(self._passed.get(what, 0), self.scope.covered.get(what, 0))
            if (by_this_call := count - known) > 0:
                self.scope.covered = {**self.scope.covered, what: known + by_this_call}
                summary.recorded_after_all(what, by_this_call)
        self._record(attributes, end_ns, failure)

    def _same(self, facts: Facts) -> SeenCall | None:
        """The recorded call that this is a span of: the one that is most like it of those that it may be."""
        above = {outer._as_seen for outer in _above(self) if outer._as_seen.facts is not None}
        found, likeness = None, -1
        for seen in (*self._seen, *above):
            is_inside = seen in above or self.is_around(seen.inside_of)
            known = Facts() if seen.facts is None else seen.facts
            differ = facts.contradictions(known)
            alike = seen.facts is not None and (not differ or facts.is_renamed(known))
            is_one = differ <= _OTHER_WORDS if is_inside else alike
            is_one = is_one and (is_inside or (self._is_beside(seen) and facts.is_asked_alike(known)))
            like = facts.agreements(known) + 8 * is_inside
            if is_one and like > likeness and all(teller.is_of_one_path(self) for teller in seen.seen_by):
                found, likeness = seen, like
        return found

    def _may_be_of(self) -> Iterator[SeenCall]:
        """The calls beside it that have not ended: nobody knows whether it is a span of one of them."""
        return (seen for seen in self._seen if seen.facts is None and self._is_beside(seen))

    def _is_beside(self, seen: SeenCall) -> bool:
        return seen.inside_of is None or seen.inside_of.is_around(self)

    def _record(self, attributes: dict[str, Any], end_ns: int, failure: _Failure) -> None:
        cut = []
        for name in semconv.CONTENT_OF_A_CALL:
            if name in attributes:
                text, was_cut = json_text(decoded_value(attributes[name]), MAX_CONTENT_BYTES)
                attributes[name] = text
                cut += [name] * was_cut
        if cut:
            attributes[semconv.TRUNCATED] = cut
        self.scope.recorder.ended(self, attributes, end_ns, failure)


def _kept(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What is recorded of what a span says of a call."""
    kept = {name: value for name, value in attributes.items() if name.startswith(_OF_A_CALL)}
    return kept | {name: attributes[name] for name in semconv.CONTENT_OF_A_CALL if attributes.get(name)}


def _above(followed: FollowedCall | None) -> Iterator[FollowedCall]:
    outer = None if followed is None else followed.outer
    while outer is not None:
        yield outer
        outer = outer.outer
