"""Tool calls that one agent asked for, and that ran or were answered under another one that went on with its messages.

A run that waits for a person's yes to a tool ends, and going on is another run of the agent, with a span of its own:
the model's message with the tool call is the first one's, the tool and its result are the second one's. By themselves
they are two tool calls, of which the first was never answered. They are one where the id, the name and the arguments
agree, the second agent's prompts hold the call, if it has any, and nobody in the second agent asked for it. Ids that a
server gives again and again are told apart by the messages before, and by time: what is run was asked for last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from arttrace.records.trajectory import ToolCall
from arttrace.trajectories.agents.tool_calls import Tooling, holds
from arttrace.trajectories.messages.tool_results import Carried, result_text
from arttrace.trajectories.messages.trie import MessageTrie

_READ = 64
"""Tool calls under one id and name that are looked at for each."""


class ToolsOfSpan(NamedTuple):
    """The tool calls of one agent span, and the history of its calls."""

    tools: Tooling
    history: MessageTrie


class _Waiting(NamedTuple):
    """A tool call without an answer; `span` is the place of its agent span, `only` whether no other message of the run
    asked for a tool under its id."""

    span: int
    call: ToolCall
    node: int
    only: bool


def resumed(spans: Sequence[ToolsOfSpan]) -> Iterator[ToolCall]:
    """The tool calls of a run's agent spans, each once: an inferred one that another agent ran is left out, one that
    another agent's prompts answer has that result."""
    changed: dict[int, ToolCall | None] = {}  # by identity: several may have one id
    if len(spans) > 1 and any(span.tools.unanswered for span in spans):
        changed = _Resumed(spans).changes()
    for span in spans:
        for call in span.tools.calls:
            settled = changed.get(id(call), call)
            if settled is not None:
                yield settled


class _Resumed:
    """Looks in all other agent spans for what became of the tool calls without an answer."""

    def __init__(self, spans: Sequence[ToolsOfSpan]) -> None:
        self._spans = spans
        self._before: dict[tuple[int, int], int] = {}
        asked = Counter(exchange.part.id for span in spans for exchange in span.history.exchanges)
        self._waiting: dict[tuple[str, str], list[_Waiting]] = {}
        for number, span in enumerate(spans):
            for call, node in span.tools.unanswered:
                one = _Waiting(number, call, node, asked[call.id] == 1)
                self._waiting.setdefault((call.id, call.name), []).append(one)
        self._carried: dict[tuple[str, str], dict[int, list[Carried]]] = {}
        for number, span in enumerate(spans):
            for carried in span.history.carried:
                key = (carried.part.id or "", carried.part.name)
                if key in self._waiting:
                    self._carried.setdefault(key, {}).setdefault(number, []).append(carried)

    def changes(self) -> dict[int, ToolCall | None]:
        """What stands in the place of a tool call, by its identity; None where it is left out."""
        changed: dict[int, ToolCall | None] = {}
        later = {key: sorted(of, key=lambda one: -one.call.start_ns) for key, of in self._waiting.items()}
        begun: dict[tuple[str, str], list[_Waiting]] = {key: [] for key in later}
        ran: set[tuple[str, str]] = set()
        runs = [(number, call) for number, span in enumerate(self._spans) for call in span.tools.unasked]
        for number, call in sorted(runs, key=lambda run: (run[1].start_ns, run[1].span_id)):
            key = (call.id, call.name)
            if key not in later:
                continue
            ran.add(key)
            while later[key] and later[key][-1].call.start_ns <= call.start_ns:
                begun[key].append(later[key].pop())
            if (asked := self._asked_by(number, call, begun[key])) is not None:
                begun[key].remove(asked)
                changed[id(asked.call)] = None
                if not call.arguments:  # many frameworks keep content out of their spans
                    changed[id(call)] = msgspec.structs.replace(call, arguments=asked.call.arguments)
        for key, waiting in self._waiting.items():
            for one in waiting:
                if id(one.call) in changed or (key in ran and not one.call.inferred):
                    continue  # it ran twice, and the second one is answered
                if (answered := self._answered(key, one)) is not None:
                    changed[id(one.call)] = answered
        return changed

    def _asked_by(self, span: int, run: ToolCall, waiting: Sequence[_Waiting]) -> _Waiting | None:
        """Which of the tool calls that wait, the last one begun last, a recorded one is that nobody in its agent span
        asked for."""
        carried = self._carried.get((run.id, run.name), {}).get(span, [])[:_READ]
        if self._spans[span].history.calls and not carried:
            return None
        last: _Waiting | None = None
        for one in islice(reversed(waiting), _READ):
            if one.span == span or not one.call.inferred:
                continue
            if any(self._goes_on(one, span, other) for other in carried):
                return one
            # Whoever says yes may change the arguments.
            as_asked = not run.arguments or holds(run.arguments, one.call.arguments)
            if last is None and (as_asked or (one.only and carried)):
                last = one
        return last

    def _answered(self, key: tuple[str, str], one: _Waiting) -> ToolCall | None:
        """A waiting call with the result that stands in the prompts of another agent span, if there is one."""
        elsewhere = ((n, other) for n, those in self._carried.get(key, {}).items() if n != one.span for other in those)
        found = [
            (other.seen_ns, number, other.result)
            for number, other in islice(elsewhere, _READ)
            if other.result is not None
            and other.seen_ns >= one.call.start_ns
            and holds(other.part.arguments, one.call.arguments)
            and (one.only or self._goes_on(one, number, other))
        ]
        if not found:
            return None
        seen_ns, _, result = min(found, key=lambda item: item[:2])
        end_ns = seen_ns if one.call.inferred else one.call.end_ns
        return msgspec.structs.replace(one.call, result=result_text(result), end_ns=end_ns)

    def _goes_on(self, one: _Waiting, span: int, carried: Carried) -> bool:
        """Whether the messages before the tool call are the same, word for word."""
        return self._messages_before(one.span, one.node) == self._messages_before(span, carried.node)

    def _messages_before(self, span: int, node: int) -> int:
        found = self._before.get((span, node))
        if found is None:
            history = self._spans[span].history
            found = hash(tuple([history.keys[at] for at in history.path(history.parent[node])]))
            self._before[span, node] = found
        return found
