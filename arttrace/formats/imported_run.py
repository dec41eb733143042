"""A run of another system in the making: agents, calls and rewards, as spans and rewards with ids from the content."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arttrace.formats.left_out import LeftOutItem
from arttrace.formats.sdks.anthropic_messages import FAILED
from arttrace.formats.sdks.openai_messages import GrowingInputs, answers, metadata_text, plain, text_of, tools
from arttrace.records import semconv
from arttrace.records.message import ToolCallPart, canonical_json
from arttrace.records.reward import Reward
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.costs import stated_cost
from arttrace.records.values.units import quantity
from arttrace.trajectories.decoding.attribute_values import finite
from arttrace.wire.messages import parse_message
from arttrace.wire.span_attributes import usage_attributes

NO_TIME = 946_684_800_000_000_000
"""Where runs without a time stand: the start of the year 2000."""
SECOND = 1_000_000_000
_A_DAY_NS = 86_400 * SECOND
_ERROR_TEXT = 4000
NO_NUMBERS = "rewards that are no numbers"
"""What is counted of rewards that are texts or lists, say."""
BEHIND = "messages behind the last answer"
"""What is counted of those that no call was given."""


def is_undated(time_ns: int) -> bool:
    """Whether a time stands for a missing one: then it, and what follows from it (seconds, age), is not known."""
    return NO_TIME <= time_ns < NO_TIME + _A_DAY_NS


def undated_in_sql(start_ns: str) -> str:
    """The same of a column, as a condition of SQL."""
    return f"({start_ns} >= {NO_TIME} AND {start_ns} < {NO_TIME + _A_DAY_NS})"


def hashed(digits: int, *parts: Any) -> str:
    """An id of so many hex digits from the content; equal parts give equal ids."""
    return hashlib.blake2b(canonical_json(parts), digest_size=digits // 2).hexdigest()


def said(attributes: Mapping[str, Any]) -> Attributes:
    """The attributes that say something."""
    return {name: value for name, value in attributes.items() if value is not None and value != ""}


def lacks(lines: int) -> dict[str, Any]:
    """What the span of an agent says that lacks so many lines of its session: it is not complete."""
    return {semconv.INTERRUPTED: f"{quantity(lines, 'line')} of the session missing"} if lines else {}


def counted_as_failed(system: str, of_what: str = "it", why: Any = None) -> str:
    """Why nothing is to be learned of a run that its own system leaves out of training, whatever reward it has."""
    return f"{system} counts {of_what} as failed ({why})" if why else f"{system} counts {of_what} as failed"


def answered(response: Mapping[str, Any], usage: Any, cost: Any = None) -> dict[str, Any]:
    """What an API said of an answer: its model, its id, and what it used; else what it `cost` by the prices of who
    asked, to whom it costs 0 where no price is known."""
    named = {semconv.RESPONSE_MODEL: response.get("model"), semconv.RESPONSE_ID: response.get("id")}
    return {
        semconv.USAGE_COST: stated_cost(cost) or None,
        **{name: value for name, value in named.items() if isinstance(value, str)},
        **(usage_attributes(usage) if isinstance(usage, dict) else {}),
    }


def failed_with_others(messages: Sequence[Mapping[str, Any]], answer: int) -> Iterator[tuple[int, ToolCallPart]]:
    """The places of the results behind an answer, each with the call that it is of, where one of them is an error; all
    are returned, since they are in order then. Messages are in OpenAI's form."""
    places = [at for at in range(answer + 1, len(messages)) if messages[at].get("role") == "tool"]
    if any(messages[at].get(FAILED) for at in places):
        waiting = list(calls_of(messages[answer]))
        for at in places:
            id = messages[at].get("tool_call_id")
            if id and (call := next((one for one in waiting if one.id == id), None)) is not None:
                waiting.remove(call)
                yield at, call


def calls_of(message: Mapping[str, Any]) -> tuple[ToolCallPart, ...]:
    """The tool calls of a message in OpenAI's form."""
    return parse_message(plain(dict(message))).tool_calls


def tool_span(
    call: ToolCallPart,
    result: Mapping[str, Any],
    trace_id: str,
    span_id: str,
    start_ns: int,
    *,
    parent_span_id: str | None = None,
    trajectory_id: str | None = None,
) -> SpanRow:
    """A tool's run of a nanosecond, by the call that asked for it and the message that answered."""
    content = result.get("content")
    failed = bool(result.get(FAILED))
    return SpanRow(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent_span_id,
        name=f"{semconv.OPERATION_EXECUTE_TOOL} {call.name}",
        start_ns=start_ns,
        end_ns=start_ns + 1,
        status_code=2 if failed else 0,
        status_message=content[:_ERROR_TEXT] if failed and isinstance(content, str) else "",
        attributes=said(
            {
                semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
                semconv.TRAJECTORY_ID: trajectory_id or trace_id,
                semconv.TOOL_NAME: call.name,
                semconv.TOOL_CALL_ID: call.id,
                semconv.TOOL_CALL_ARGUMENTS: call.arguments,
                semconv.TOOL_CALL_RESULT: text_of(content),
            }
        ),
    )


class ImportedRun:
    """One run. `key` is what distinguishes it from the others of `source`; a run that its system gave an id has a
    `trace_id` of `ContentIds.of_own` instead.

    Calls without a time stand a second apart, in the order in which they are added, after `start_ns`.
    """

    def __init__(
        self,
        source: str,
        key: Any = None,
        *,
        trace_id: str | None = None,
        name: str = "",
        start_ns: int | None = None,
        trajectory_id: str | None = None,
    ) -> None:
        self.source = source
        self.trace_id = trace_id or hashed(32, source, key)
        self.id = trajectory_id or self.trace_id
        self.root_id = self._span_id("root")
        self._name = name or source
        self._next = self._start = NO_TIME if start_ns is None else start_ns
        self._end = self._start
        self._spans = 0
        self._histories = GrowingInputs()
        self._results = Counter[str | None]()
        self._given: set[tuple[str, ...]] = set()

    def _span_id(self, *key: Any) -> str:
        return hashed(16, self.trace_id, *key)

    def agent(
        self,
        key: str,
        name: str,
        *,
        parent: str | None = None,
        spawned_by: str | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> tuple[str, list[SpanRow]]:
        """A sub-agent's span id, and its spans: below the tool call that it answers, where that is known."""
        start = self._next if start_ns is None else start_ns
        end = max(end_ns or start + SECOND, start)
        above, found = parent or self.root_id, []
        if spawned_by:
            tool = self._span(
                ("tool", key),
                f"execute_tool {name}",
                above,
                start,
                end,
                {
                    semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
                    semconv.TOOL_NAME: name,
                    semconv.TOOL_CALL_ID: spawned_by,
                },
            )
            above = tool.span_id
            found.append(tool)
        own = {
            semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
            semconv.AGENT_NAME: name,
            **(attributes or {}),
        }
        found.append(self._span(("agent", key), f"invoke_agent {name}", above, start, end, own))
        return found[-1].span_id, found

    def agent_id(self, key: str) -> str:
        """The span id that `agent` gives."""
        return self._span_id("agent", key)

    def call(
        self,
        key: Any,
        history: Sequence[Any],
        replies: Sequence[Any],
        *,
        agent: str | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        model: str | None = None,
        offered: Sequence[Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> SpanRow:
        """A model call with its messages in OpenAI's form; `offered` are the tools."""
        start = self._next if start_ns is None else start_ns
        return self._span(
            ("call", key),
            f"chat {model}" if model else "chat",
            agent or self.root_id,
            start,
            max(end_ns or start + SECOND, start),
            {
                semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
                semconv.REQUEST_MODEL: model,
                semconv.INPUT_MESSAGES: self._histories.text(history),
                semconv.OUTPUT_MESSAGES: answers(replies),
                semconv.TOOL_DEFINITIONS: tools(offered) if offered else None,
                **(attributes or {}),
            },
            kind=3,
        )

    def exchange(
        self, key: Any, attributes: Mapping[str, Any], *, start_ns: int | None, end_ns: int | None, error: str = ""
    ) -> SpanRow:
        """A model call by what is captured of its request and its answer, and why it failed if it did."""
        start = self._next if start_ns is None else start_ns
        name = f"chat {attributes.get(semconv.REQUEST_MODEL, '')}".strip()
        end = max(end_ns or start + SECOND, start)
        return self._span(("call", key), name, self.root_id, start, end, attributes, kind=3, error=error)

    def results(
        self, messages: Sequence[Mapping[str, Any]], answer: int, *, agent: str | None = None, end_ns: int | None = None
    ) -> Iterator[SpanRow]:
        """The results behind an answer where one of them is an error, before the call that is given them."""
        end = self._next if end_ns is None else end_ns
        for at, call in failed_with_others(messages, answer):
            self._spans += 1
            before = self._results[call.id]
            self._results[call.id] += 1
            yield tool_span(
                call,
                messages[at],
                self.trace_id,
                self._span_id("result", call.id, *([before] if before else [])),
                end - (len(messages) - at),
                parent_span_id=agent or self.root_id,
                trajectory_id=self.id,
            )

    def last_results(
        self, messages: Sequence[Mapping[str, Any]], *, agent: str | None = None, end_ns: int | None = None
    ) -> Iterator[SpanRow]:
        """`results` of the last answer among what a call was given, the first time that just these follow one."""
        answer = next((at for at in reversed(range(len(messages))) if messages[at]["role"] == "assistant"), None)
        if answer is None:
            return
        given = tuple(str(one.get("tool_call_id")) for one in messages[answer + 1 :])
        if given not in self._given:
            self._given.add(given)
            yield from self.results(messages, answer, agent=agent, end_ns=end_ns)

    def _span(
        self,
        key: Any,
        name: str,
        parent: str,
        start: int,
        end: int,
        attributes: Mapping[str, Any],
        *,
        kind: int = 1,
        error: str = "",
    ) -> SpanRow:
        self._spans += 1
        self._next, self._end = max(self._next, end), max(self._end, end)
        return SpanRow(
            trace_id=self.trace_id,
            span_id=self._span_id(*key),
            parent_span_id=parent,
            name=name,
            start_ns=start,
            end_ns=end,
            kind=kind,
            status_code=2 if error else 0,
            status_message=error,
            attributes=said({**attributes, semconv.TRAJECTORY_ID: self.id}),
        )

    def end(
        self,
        *,
        task: Any = None,
        metadata: Mapping[str, Any] | None = None,
        result: Any = None,
        error: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> SpanRow:
        """The run's own span. Runs of one source with the same task are a group."""
        name = self._name
        return SpanRow(
            trace_id=self.trace_id,
            span_id=self.root_id,
            name=f"invoke_agent {name}",
            start_ns=self._start,
            end_ns=max(self._end, self._start + SECOND),
            status_code=2 if error else 0,
            status_message=error or "",
            attributes=said(
                {
                    semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
                    semconv.TRAJECTORY_ID: self.id,
                    semconv.TRAJECTORY_SPAN_COUNT: self._spans,
                    semconv.AGENT_NAME: name,
                    semconv.PROJECT: self.source,
                    semconv.SCENARIO: None if task is None else f"{self.source}/{task}",
                    semconv.METADATA: metadata_text(dict(metadata)) if metadata else None,
                    semconv.ENTRY_RESULT: text_of(result),
                    **(attributes or {}),
                }
            ),
        )

    def rewards(self, values: Mapping[str, Any]) -> Iterator[Reward | LeftOutItem]:
        """One for each that is a number."""
        for name, given in values.items():
            value = finite(given)
            if value is not None:
                yield Reward(id=f"{self.id}:{name}", trajectory_id=self.id, value=value, name=name, time_ns=self._start)
            elif given is not None:
                yield LeftOutItem(NO_NUMBERS)
