"""Sessions that go on: a file of one is imported again when it has grown, and its run's own span then says another end,
another count and another result; so do a sub-agent's span, and a call whose answer was cut in the middle, with more of
it. Two such readings are no contradiction, and the later holds, whichever came first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import json_objects
from arttrace.trajectories.decoding.attribute_values import from_json, text, whole_number
from arttrace.trajectories.decoding.operation import is_call
from arttrace.trajectories.decoding.shared_prefixes import MessageList, SharedTexts

CLAUDE_CODE: Final = "claude-code"
CODEX: Final = "codex"
GEMINI_CLI: Final = "gemini-cli"
SOURCES: Final = (CLAUDE_CODE, CODEX, GEMINI_CLI)
"""The projects of runs that were read of such files."""
BEING_WRITTEN: Final = "its last answer was being written, or waited for tools, when it was read"
"""Why a session is not complete that has grown, or will."""
_COUNTED = ("gen_ai.usage.", "gen_ai.response.")
_OF_AN_ANSWER = (semconv.OUTPUT_MESSAGES, semconv.INPUT_MESSAGES, *_COUNTED)
"""How the attributes of a call begin that are its answer's, or are compared otherwise."""
_GROWS = {semconv.TRAJECTORY_SPAN_COUNT, semconv.ENTRY_RESULT, semconv.INTERRUPTED}


def read_until(span: SpanRow) -> int:
    """The end of what was read of a session, where this is its run's own span, in nanoseconds since 1970; else 0. What
    is captured live has an entry. `LAST_READING` (store/rows/columns.py) has the rule too."""
    said = span.attributes
    is_reading = (
        span.parent_span_id is None
        and text(said.get(semconv.PROJECT)) in SOURCES
        and text(said.get(semconv.OPERATION_NAME)) == semconv.OPERATION_INVOKE_AGENT
        and not (text(said.get(semconv.ENTRY_NAME)) or text(said.get(semconv.ENTRY)))
    )
    return max(0, span.end_ns) if is_reading else 0


def lasted_until(span: SpanRow) -> int:
    """`read_until`, or the end of a sub-agent in a trace that is a run of its own, whose span a later reading says to
    have gone on; else 0. `LAST_READING` has the rule too."""
    said = span.attributes
    is_sub_agent = (
        span.parent_span_id is not None
        and text(said.get(semconv.OPERATION_NAME)) == semconv.OPERATION_INVOKE_AGENT
        and (text(said.get(semconv.TRAJECTORY_ID)) or span.trace_id) == span.trace_id
    )
    return max(0, span.end_ns) if is_sub_agent else read_until(span)


def spans_read(span: SpanRow) -> int:
    """How many spans the reading has beside this one; 0 where it does not say."""
    return whole_number(span.attributes.get(semconv.TRAJECTORY_SPAN_COUNT)) or 0


def goes_on(later: SpanRow, earlier: SpanRow) -> bool:
    """Whether one reading's span says what the other's says of the session, only of more of it; or the same of an
    answer."""
    if not read_until(later):
        return _answer_goes_on(later, earlier) or _sub_agent_goes_on(later, earlier)
    return (
        read_until(later) > read_until(earlier) > 0
        and spans_read(later) >= spans_read(earlier)
        and _stays(later) == _stays(earlier)
    )


def _stays(span: SpanRow) -> tuple[str, int, str, Mapping[str, Any]]:
    said = {name: value for name, value in span.attributes.items() if name not in _GROWS}
    return span.name, span.start_ns, span.scope_name, said


def _sub_agent_goes_on(later: SpanRow, earlier: SpanRow) -> bool:
    """Whether both are one sub-agent of a file here, which did more until the later end."""
    return (
        lasted_until(later) > lasted_until(earlier) > 0
        and not (later.scope_name or earlier.scope_name)
        and _is_made_here(later)
        and later.parent_span_id == earlier.parent_span_id
        and _stays(later) == _stays(earlier)
    )


def _answer_goes_on(later: SpanRow, earlier: SpanRow) -> bool:
    """Whether both are one call that was made of a file here, and the one has all of the other's answer and more."""
    same = all(is_call(one) and one.end_ns and not one.scope_name and _is_made_here(one) for one in (later, earlier))
    return (
        same
        and (later.name, later.start_ns, later.parent_span_id)
        == (earlier.name, earlier.start_ns, earlier.parent_span_id)
        and later.end_ns >= earlier.end_ns
        and _says_more(_answer(later), _answer(earlier))
        and _asked(later) == _asked(earlier)
    )


def _is_made_here(call: SpanRow) -> bool:
    return call.attributes.get(semconv.TRAJECTORY_ID) == call.trace_id


def _asked(call: SpanRow) -> tuple[bytes, Mapping[str, Any]]:
    given = call.attributes.get(semconv.INPUT_MESSAGES)
    messages = given if isinstance(given, MessageList) else SharedTexts().messages(given)
    rest = {name: value for name, value in call.attributes.items() if not name.startswith(_OF_AN_ANSWER)}
    return b"" if messages is None else messages.digest, rest


def _answer(call: SpanRow) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    """The parts of the answer, where it is one, and what else is said of it."""
    answers = json_objects(from_json(call.attributes.get(semconv.OUTPUT_MESSAGES)))
    if len(answers) != 1:
        return None
    of_span = {name: value for name, value in call.attributes.items() if name.startswith(_COUNTED)}
    of_message = {name: value for name, value in answers[0].items() if name != "parts" and value is not None}
    return json_objects(answers[0].get("parts")), {**of_message, **of_span}


def _says_more(
    answer: tuple[list[dict[str, Any]], dict[str, Any]] | None,
    other: tuple[list[dict[str, Any]], dict[str, Any]] | None,
) -> bool:
    """Whether all parts of the other are among these, in their order, each whole or a text that goes on here; or where
    they are the same, whether more is said of them."""
    if answer is None or other is None:
        return False
    (parts, said), (others, said_before) = answer, other
    if parts == others:
        return said_before.items() < said.items()
    left = iter(parts)
    return all(any(_begins_with(part, one) for part in left) for one in others)


def _begins_with(part: dict[str, Any], begun: dict[str, Any]) -> bool:
    content, before = part.get("content"), begun.get("content")
    if isinstance(content, str) and isinstance(before, str) and content.startswith(before):
        return {**part, "content": before} == begun
    return part == begun
