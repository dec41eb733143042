"""Calls exported from W&B Weave: by its trace server (`/calls/stream_query`), its client (`get_calls`) or its pages, as
JSON. Pure.

An op's kind says what it is, where it has one. One without is the run where nothing is above it, a tool where no call
is below it, else a step of its run. Each example of an evaluation is a run, with its scores as rewards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import hashed, said
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks import langsmith
from arttrace.formats.sdks.langfuse.reading import hex_id
from arttrace.formats.sdks.openai_messages import metadata_text, text_of
from arttrace.formats.sdks.openinference import flat
from arttrace.formats.systems.tracers.weave import feedback, model_calls
from arttrace.formats.systems.tracers.weave.values import is_ref, name_of, restored
from arttrace.records import semconv
from arttrace.records.span import Attributes, SpanEvent, SpanRow
from arttrace.records.values.costs import stated_cost
from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.times import ended_ns, time_ns
from arttrace.trajectories.decoding.attribute_values import finite, from_json

KIND = "weave calls"
_LANGCHAIN = "langchain."
_LANGCHAIN_KINDS = {"Llm": "llm", "Chat_model": "llm", "Tool": "tool"}
_METHOD = re.compile(r"(chat\.completions|chat\.complete|messages|responses|completions)\.(create|parse|stream)", re.I)
_NO_CALLS = ("embedding", "moderation", "image")
_EVALUATION = "_weave_eval_meta"
_EXAMPLE, _WHOLE = "Evaluation.predict_and_score", ("Evaluation.evaluate", "Evaluation.summarize")
_AMOUNTS = ("prompt_tokens_total_cost", "completion_tokens_total_cost")
_UNITS = ("prompt_token_cost_unit", "completion_token_cost_unit")
_OF_WEAVE = frozenset({"weave", "integration", "lc_id", "lc_name", "parent_run_id", "otel_span", _EVALUATION})
"""Attributes of a call that its program did not set."""
_OF_THE_PROJECT = ("wb_run_id", "wb_run_step", "wb_user_id")
_OF_A_LOGGED_SCORE = {"self", "output", "inputs"}
"""What a score of `EvaluationLogger` is given, which need not say that it is of an evaluation."""
_JUDGES = ("scorer", "guardrail")
_ERROR_TEXT = 4000


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a call."""
    return all(isinstance(item.get(name), str) for name in ("op_name", "trace_id")) and "started_at" in item


def ids_of(item: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The ids of a call's trace, of itself and of its parent, as they stand there."""
    return item["trace_id"], item.get("id"), item.get("parent_id")


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """The span of a call, and its feedback. Raises ValueError where it has no id or no time."""
    if item.get("deleted_at"):
        yield LeftOutItem("deleted calls")
        return
    call = _Call(item, origin.source)
    yield from call.left_out
    is_part = call.is_of_an_evaluation and call.trajectory_id is None
    rewards = feedback.given(call.summary, call.run_id, call.agent_id, call.start_ns, is_scored=is_part)
    if call.name in _WHOLE:
        yield from (LeftOutItem("feedback on whole evaluations") for _ in rewards)
        yield call.span([])
    elif is_part:
        found = list(feedback.as_events(rewards))
        yield from (one for one in found if isinstance(one, LeftOutItem))
        yield call.span([one for one in found if isinstance(one, SpanEvent)])
    else:
        yield call.span([])
        yield from call.instead()
        yield from rewards
        if call.name == _EXAMPLE:
            yield from feedback.scores(json_object(call.output).get("scores"), call.run_id, call.start_ns)


class _Call:
    """What one call says."""

    def __init__(self, item: dict[str, Any], source: str) -> None:
        own, start = item.get("id"), time_ns(item.get("started_at"))
        if not isinstance(own, str) or not own or start is None:
            raise ValueError("a call has no id or no started_at")
        self._item, self._source = item, source
        self.start_ns = start
        self.trace_id, self._span_id = hex_id(item["trace_id"], 32), hex_id(own, 16)
        parent = item.get("parent_id")
        self._parent = self._above = parent if isinstance(parent, str) and parent else None
        self.name = name_of(item["op_name"])
        self._about = json_object(item.get("attributes"))
        self.summary = json_object(item.get("summary"))
        self._given = json_object(restored(item.get("inputs")))
        self.output = restored(item.get("output"))
        self._error = _error_of(item.get("exception"))
        self.is_of_an_evaluation = (
            _EVALUATION in self._about or self.name in (_EXAMPLE, *_WHOLE) or self._given.keys() == _OF_A_LOGGED_SCORE
        )
        self.agent_id = None if self._parent is None else self._span_id
        self.trajectory_id: str | None = None
        self.left_out: list[LeftOutItem] = []
        self._attributes = self._read(own)

    @property
    def run_id(self) -> str:
        """That of its run, as far as it says it."""
        return self.trajectory_id or self.trace_id

    def span(self, events: list[SpanEvent]) -> SpanRow:
        """Its span."""
        item, found = self._item, self._attributes
        display, status = item.get("display_name"), json_object(self.summary.get("weave")).get("status")
        end, failed = time_ns(item.get("ended_at")), self._error is not None or status == "error"
        kind, message = self._error or ("", "")
        return SpanRow(
            trace_id=self.trace_id,
            span_id=self._span_id,
            parent_span_id=hex_id(self._parent, 16) if self._parent else None,
            name=display if isinstance(display, str) and display else self.name,
            start_ns=self.start_ns,
            end_ns=ended_ns(
                self.start_ns, end and max(end, self.start_ns), has_answer=failed or self.output is not None
            ),
            kind=3 if found.get(semconv.OPERATION_NAME) in semconv.CALL_OPERATIONS else 1,
            status_code=2 if failed else 0,
            status_message=message[:_ERROR_TEXT],
            attributes=said({**found, semconv.ERROR_TYPE: kind}),
            events=events,
            scope_name="weave-export",
        )

    def instead(self) -> Iterator[SpanRow]:
        """A step in the run that it scores, where it is a run of its own: with all below, that run's count has it."""
        count = self._count()
        if self._above is None or self._parent is not None or self.name == _EXAMPLE or count is None:
            return
        own = self.span([])
        yield msgspec.structs.replace(
            own,
            span_id=hex_id(f"{own.span_id}/step", 16),
            parent_span_id=hex_id(self._above, 16),
            kind=1,
            attributes={semconv.OPERATION_NAME: langsmith.CHAIN, semconv.TREE_COUNT: 1 - count},
        )

    def _read(self, own: str) -> Attributes:
        sent = json_object(self._about.get("otel_span")).get("attributes")
        if isinstance(sent, dict):  # it came over OTLP
            return flat(sent)
        if self.name in _WHOLE:  # the examples below are runs of their own
            count = self._count()
            return said({semconv.TREE_COUNT: count if count is None or self.name != _WHOLE[0] else 1 - count})
        kind = self._kind()
        if self.name == _EXAMPLE or kind == "judge":
            self.trajectory_id, self.agent_id, self._parent = hex_id(own, 32), None, None
            found = self._example() if self.name == _EXAMPLE else self._agent()
            return {**found, semconv.TRAJECTORY_ID: self.trajectory_id}
        match kind:
            case "call":
                found, self.left_out = self._call()
            case "tool":
                found = self._tool()
            case "agent":
                found = self._agent()
            case _:
                return {semconv.OPERATION_NAME: langsmith.CHAIN}
        return {**found, semconv.CONVERSATION_ID: _text(self._item.get("thread_id"))}

    def _kind(self) -> str:
        """What it is: a "call", a "tool", an "agent" with a run of its own or not, the "judge" of an example of an
        evaluation, or a "step"."""
        kind, others = json_object(self._about.get("weave")).get("kind"), self._calls_below()
        if self._is_of_langchain():  # whose callbacks give the kind of another run
            kind = _LANGCHAIN_KINDS.get(self.name.split(".")[1])
        if kind in _JUDGES or (kind is None and self.is_of_an_evaluation and self._scores()):
            return "step" if not others else "judge" if self.is_of_an_evaluation else "agent"
        if any(word in self.name.lower() for word in _NO_CALLS) and kind == "llm":
            return "step"
        if kind == "llm" or (kind is None and self._answers_as_a_model()):
            return "step" if others or self._is_inside_a_call() else "call"
        if kind == "tool":
            return "tool"
        if kind == "agent" or self._parent is None:
            return "agent"
        return "tool" if kind is None and self._is_a_leaf() and not self._is_of_langchain() else "step"

    def _is_of_langchain(self) -> bool:
        return self.name.startswith(_LANGCHAIN)

    def _is_inside_a_call(self) -> bool:
        """Whether this is what a model of LangChain's does of its own: the answer is that model's."""
        return "lc_id" in self._about and isinstance(self.output, str) and self.output.startswith("<APIResponse")

    def _answers_as_a_model(self) -> bool:
        asked = not self._given.keys().isdisjoint(("messages", "input", "contents"))
        return asked and (_METHOD.search(self.name) is not None or model_calls.is_answer(self.output))

    def _scores(self) -> bool:
        return not self._given.keys().isdisjoint(("output", "model_output"))

    def _calls_below(self) -> float:
        """How many calls of models Weave counted below this one."""
        if self._count() == 1:
            return 0
        counts = [finite(json_object(one).get("requests")) for one in json_object(self.summary.get("usage")).values()]
        own = model_calls.counts_tokens(self.output) and not self._is_of_langchain()
        return max(sum(count for count in counts if count is not None) - own, 0)

    def _count(self) -> int | None:
        """How many calls have ended in its tree, itself among them; None where Weave did not count."""
        counts = [finite(one) for one in json_object(self.summary.get("status_counts")).values()]
        return int(sum(count for count in counts if count is not None and count >= 0)) if counts else None

    def _is_a_leaf(self) -> bool:
        is_open = self._item.get("ended_at") is None
        return not is_open and (self._count() or 0) <= 1 and not self.summary.get("usage")

    def _call(self) -> tuple[Attributes, list[LeftOutItem]]:
        about = self._of_the_run() if self._parent is None else {}
        if self._is_of_langchain():
            run = json_object(self.output)
            extra = json_object(run.get("extra"))
            answer = json_object(run.get("outputs"))
            read = langsmith.call(self._given, answer, extra, json_object(extra.get("metadata")))
            return {**read, semconv.USAGE_COST: read.get(semconv.USAGE_COST) or self._cost(), **about}, []
        found, left_out = model_calls.attributes(self.name, self._given, self.output, self.summary.get("usage"))
        return {semconv.USAGE_COST: self._cost(), **found, **about}, left_out

    def _cost(self) -> float | None:
        """By Weave's prices, of this call alone; it says 0 where it knows none."""
        costs = map(json_object, json_object(json_object(self.summary.get("weave")).get("costs")).values())
        in_usd = [one for one in costs if all(one.get(unit, "USD") == "USD" for unit in _UNITS)]
        return stated_cost(*(one.get(name) for one in in_usd for name in _AMOUNTS)) or None

    def _tool(self) -> Attributes:
        if self._is_of_langchain():
            run = json_object(self.output)
            return langsmith.tool(self.name.split(".", 2)[-1], self._given, json_object(run.get("outputs")), {})
        return {
            semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
            semconv.TOOL_NAME: self.name,
            semconv.TOOL_CALL_ARGUMENTS: text_of(self._arguments()),
            semconv.TOOL_CALL_RESULT: text_of(self.output),
        }

    def _agent(self) -> Attributes:
        output = json_object(self.output).get("outputs") if self._is_of_langchain() else self.output
        found = {
            semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
            semconv.AGENT_NAME: self.name.split(".", 2)[-1] if self._is_of_langchain() else self.name,
            semconv.ENTRY_ARGUMENTS: text_of(self._arguments()),
            semconv.ENTRY_RESULT: text_of(output),
        }
        if self._parent is not None:
            return found
        return {**found, **self._of_the_run(), semconv.TREE_COUNT: self._count()}

    def _example(self) -> Attributes:
        """A run of a model on one example. Those of one example are a group, whatever the evaluation."""
        example = self._given.get("example")
        task = example if is_ref(example) else hashed(16, example)
        scores = json_object(self.output).get("scores")
        return {
            **self._of_the_run({"scores": scores} if scores else {}),
            semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
            semconv.AGENT_NAME: name_of(self._given.get("model")) or "model",
            semconv.ENTRY_ARGUMENTS: text_of({"example": example}),
            semconv.ENTRY_RESULT: text_of(json_object(self.output).get("output")),
            semconv.SCENARIO: f"{self._project()}/{task}",
            semconv.TREE_COUNT: self._count(),
        }

    def _of_the_run(self, more: dict[str, Any] | None = None) -> Attributes:
        own = {**{name: value for name, value in self._about.items() if name not in _OF_WEAVE}, **(more or {})}
        own |= {name: self._item[name] for name in _OF_THE_PROJECT if self._item.get(name) is not None}
        return {semconv.PROJECT: self._project(), semconv.METADATA: metadata_text(own) if own else None}

    def _project(self) -> str:
        return _text(self._item.get("project_id")) or self._source

    def _arguments(self) -> dict[str, Any]:
        return {name: value for name, value in self._given.items() if name != "self"}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _error_of(exception: Any) -> tuple[str, str] | None:
    """The class and the message of what was raised; a program that wrote a text has no class."""
    if not exception:
        return None
    said_of_it = json_object(from_json(exception) if isinstance(exception, str) else exception)
    if isinstance(said_of_it.get("type"), str):
        return said_of_it["type"], str(said_of_it.get("message") or "")
    return "", str(exception).strip().rpartition("\n")[2]
