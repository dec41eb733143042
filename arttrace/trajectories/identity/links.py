"""What agents in traces of their own link to: the span that each stands under, and what of it did not arrive."""

from __future__ import annotations

from collections.abc import Mapping

from arttrace.records import semconv
from arttrace.trajectories.decoding.operation import is_of_a_run, operation
from arttrace.trajectories.identity.ancestors import inherited, tops, without_cycles
from arttrace.trajectories.identity.deduplicate import SpanKey, UniqueSpan

Parents = dict[SpanKey, SpanKey | None]


class Links:
    """What agents whose parent is not among the spans link to. A link ties to a run: one to a span of nobody's run (a
    message that was sent, say) ties to nothing, and one to a span that lost its own parent is as good as lost."""

    def __init__(self, spans: Mapping[SpanKey, UniqueSpan], parents: Parents) -> None:
        self._spans = spans
        self._linking = {
            key: [link for one in span.row.links if (link := (one.trace_id, one.span_id)) != key]
            for key, span in spans.items()
            if span.row.links and parents[key] not in spans and operation(span.row) == semconv.OPERATION_INVOKE_AGENT
        }
        if self._linking:
            self._parents, _ = without_cycles(parents)
            self._top = tops(self._parents)
            self._named = inherited(spans, self._parents, semconv.TRAJECTORY_ID)
            self._of_runs = {
                self._top[key] for key, span in spans.items() if self._named[key] is None and is_of_a_run(span.row)
            }

    def torn(self) -> list[SpanKey]:
        """Those that a link ties and that lost a parent as well; that of an entry is somebody else's span."""
        return [
            key
            for key in self.above()
            if self._spans[key].row.parent_span_id and semconv.ENTRY not in self._spans[key].row.attributes
        ]

    def above(self) -> Parents:
        """The span that each of them stands under."""
        found: Parents = {}
        for key, links in self._linking.items():
            if tied := [link for link in links if link in self._spans and self._ties(key, link)]:
                found[key] = tied[0]
        return found

    def broken(self) -> list[SpanKey]:
        """Those that name their trajectory, and of whose links none is there."""
        tied = self.above()
        return [key for key in self._linking if key not in tied and self._named[key] is not None and self.lost(key)]

    def lost(self, key: SpanKey) -> list[SpanKey]:
        """What it links to that is not there."""
        if semconv.ENTRY in self._spans[key].row.attributes:
            return []
        return [
            link
            for link in self._linking.get(key, ())
            if link not in self._spans or (self._parents[self._top[link]] is not None and not self._ties(key, link))
        ]

    def _ties(self, key: SpanKey, link: SpanKey) -> bool:
        return key[0] == link[0] or self._named[link] is not None or self._top[link] in self._of_runs
