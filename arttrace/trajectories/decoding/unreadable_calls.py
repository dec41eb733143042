"""Calls that yield no message, or not all of theirs, are counted and named: what a sender wrote in a form that nobody
here reads, cut short, or left out.

They are named by the instrumentation scope and the names of the attributes, from which whoever fixes it sees what came.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from arttrace.records import semconv
from arttrace.records.call import Call
from arttrace.records.span import SpanRow
from arttrace.trajectories.decoding.attribute_values import text, whole_number
from arttrace.trajectories.decoding.call import decode_call
from arttrace.trajectories.decoding.messages import MessageReader
from arttrace.trajectories.decoding.operation import is_call, operation

_MARKS = frozenset(
    {
        semconv.REQUEST_MODEL,
        semconv.RESPONSE_MODEL,
        semconv.INPUT_MESSAGES,
        semconv.OUTPUT_MESSAGES,
        semconv.USAGE_OUTPUT_TOKENS,
        "gen_ai.usage.completion_tokens",
        "llm.model_name",
        "llm.request.type",
        "llm.token_count.completion",
    }
)
"""What only model calls say; a span that says one of these and no operation looks like one."""
_SUMS = "orchestrate_tools"
"""What .NET's Microsoft.Extensions.AI calls a loop of calls and tools: a span without an operation, that has the sum of
their tokens."""
_ENDS = frozenset({semconv.RESPONSE_ID, semconv.RESPONSE_FINISH_REASONS})
"""What an answer alone has; a span that says one of these and an operation that nobody here knows looks like a call."""
_KNOWN = frozenset(
    {
        semconv.OPERATION_EMBEDDINGS,
        semconv.OPERATION_INVOKE_AGENT,
        semconv.OPERATION_EXECUTE_TOOL,
        semconv.OPERATION_INSIDE_A_CALL,
        semconv.OPERATION_CREATE_AGENT,
        "invoke_workflow",
    }
)
_NAMES, _NAME, _KINDS = 24, 64, 8
_Key = tuple[str, str]
_numbers = re.compile(r"\.[0-9]+(?=\.|$)")


_OF_AN_ENGINE = "gen_ai.latency."
"""How names of attributes begin in the span that a serving engine makes of a request (vLLM's and SGLang's
`llm_request`): the client that sent it recorded the call, where it recorded any."""


def unread_of_run(spans: Mapping[_Key, SpanRow], calls: Mapping[_Key, Call]) -> dict[str, int]:
    """Those among the spans of a run, of which `calls` were read, counted by name."""
    return counted(_unread(spans, calls))


def _unread(spans: Mapping[_Key, SpanRow], calls: Mapping[_Key, Call]) -> Iterator[str | None]:
    """The names of those. Spans of the engines that served a run are no calls of their own, unless they are of more
    requests than its calls sent."""
    served = {key: span for key, span in spans.items() if key not in calls and _is_of_an_engine(span)}
    requests = {text(span.attributes.get("gen_ai.request.id")) or key for key, span in served.items()}
    sent = sum(whole_number(spans[key].attributes.get(semconv.ATTEMPTS)) or 1 for key in calls) if requests else 0
    passed = served if len(requests) <= sent else {}
    return (unread(span, calls.get(key)) for key, span in spans.items() if key not in passed)


def _is_of_an_engine(span: SpanRow) -> bool:
    return not operation(span) and any(name.startswith(_OF_AN_ENGINE) for name in span.attributes)


def unread(span: SpanRow, call: Call | None) -> str | None:
    """What to name a span by that looks like a model call and yields no message, or not all of them, `call` being what
    was read of it; None for any other. One that is in progress, or failed before it was answered, may still say what
    was asked; one that failed before it was sent asked nothing."""
    if call is None:
        named = operation(span)
        says_otherwise = span.name == _SUMS or _is_said_to_be_another(span)
        looks = not says_otherwise and not (_ENDS if named else _MARKS).isdisjoint(span.attributes)
        return _named(span) if looks and named not in _KNOWN else None
    if call.end_ns == 0:
        return None
    if not call.messages and not any(choice.message.parts for choice in call.choices):
        return None if call.error and span.attributes.get(semconv.ATTEMPTS) == 0 else _named(span)
    if call.unreadable:
        return f"{_kind(span)}: unreadable {', '.join(call.unreadable)}"
    return f"{_kind(span)}: no answer" if _lacks_its_answer(span, call) else None


def _is_said_to_be_another(span: SpanRow) -> bool:
    """Whether OpenInference says that it is a chain, a retriever, an embedding: such a span may name the model, and sum
    the tokens, of what is below it (openinference-vercel). One that has messages may be a call all the same."""
    kind = text(span.attributes.get("openinference.span.kind"))
    has_messages = any(name.startswith(("llm.output_messages", semconv.OUTPUT_MESSAGES)) for name in span.attributes)
    return bool(kind) and not has_messages


def _lacks_its_answer(span: SpanRow, call: Call) -> bool:
    """Whether its sender recorded what was asked alone. What is captured here has none where the server gave none."""
    return not (call.choices or call.error or call.interrupted or semconv.TRAJECTORY_ID in span.attributes)


def unanswered(calls: Iterable[Call]) -> list[str]:
    """The reason why a run lacks answers that were asked for in the background: other requests, which are not recorded,
    brought them, and the histories go on without."""
    count = sum(call.interrupted == semconv.BACKGROUND for call in calls)
    return [f"answers asked for in the background: {count}"] if count else []


def unread_calls(spans: Iterable[SpanRow]) -> dict[str, int]:
    """Those among spans under the names of the conventions, counted by name."""
    reader = MessageReader()
    traces: dict[str, dict[_Key, SpanRow]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, {})[span.trace_id, span.span_id] = span
    return counted(
        name
        for trace in traces.values()
        for name in _unread(trace, {key: decode_call(span, reader) for key, span in trace.items() if is_call(span)})
    )


def counted(names: Iterable[str | None]) -> dict[str, int]:
    """The most frequent names, the rest under one."""
    named = [name for name in names if name is not None]
    found = Counter(named).most_common() if named else []
    kept = dict(sorted(found[:_KINDS], key=lambda item: (-item[1], item[0])))
    rest = sum(count for _, count in found[_KINDS:])
    return {**kept, "others": rest} if rest else kept


def _named(span: SpanRow) -> str:
    names = sorted({_numbers.sub(".N", name)[:_NAME] for name in span.attributes})
    shown = ", ".join(names[:_NAMES]) + (", ..." if len(names) > _NAMES else "")
    return f"{_kind(span)}: {shown or 'nothing'}"


def _kind(span: SpanRow) -> str:
    return f"{span.scope_name[:_NAME] or 'no scope'}, {operation(span)[:_NAME] or 'no operation'}"
