"""Logs of Inspect AI: samples of an evaluation, each with the events of its model calls and its scores. Pure.

A log in JSON holds all samples; an unpacked `.eval` has one to a file, without the evaluation's name. Each sample is a
run. Events name what is long by a hash (`attachment://`, `tc://` before), and since 2025 messages by their places in a
pool. Calls within a scorer's span are the scorer's, not the run's. Samples of one id, input and target are a group,
in whichever logs. Source: inspect_ai, log/_log.py, log/_condense.py, event/_model.py and scorer/_metric.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import ImportedRun, answered, counted_as_failed, hashed
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.anthropic_messages import FAILED, unread_parts
from arttrace.formats.sdks.openai_messages import settings
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import time_ns
from arttrace.records.values.units import quantity
from arttrace.trajectories.decoding.attribute_values import finite

KIND = "inspect samples"
_SAMPLE = ("id", "epoch", "input", "target", "messages")
_READ = frozenset(
    {
        "input", "messages", "output", "events", "transcript", "attachments", "events_data", "message_pool",
        "call_pool", "timelines", "store",
        "error_retries", "error", "model_usage", "role_usage", "uuid", "score", "scores",
    }
)  # fmt: skip
_REFERENCES = ("attachment://", "tc://")
_VALUES = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""What a scorer says in letters or words, as Inspect's own `value_to_float` reads it."""

Message = dict[str, Any]


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a log, or a sample of one."""
    return _is_sample(item) or ("task" in json_object(item.get("eval")) and "plan" in item)


def _is_sample(item: Any) -> bool:
    return isinstance(item, dict) and all(name in item for name in _SAMPLE)


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """One run for each sample. Raises ValueError for a log without samples, and where one is none."""
    if _is_sample(item):
        yield from _Sample(item, {}, origin).records()
        return
    samples = item.get("samples")
    if not isinstance(samples, list) or not samples:
        raise ValueError("a log without its samples, as `--no-log-samples` writes it")
    for one in samples:
        if not _is_sample(one):
            raise ValueError("one of its samples has no id, epoch, input, target or messages")
        yield from _Sample(one, item["eval"], origin).records()


class _Sample:
    """One run."""

    def __init__(self, item: dict[str, Any], evaluation: dict[str, Any], origin: ItemOrigin) -> None:
        self._item, self._evaluation = item, evaluation
        before = json_object(item.get("transcript"))
        self._events = json_objects(item.get("events") or before.get("events"))
        self._texts = json_object(item.get("attachments") or before.get("content"))
        self._missing = 0
        pool = json_object(item.get("events_data")).get("messages") or item.get("message_pool")  # the latter in 2025
        self._pool = [self._message(one) for one in json_objects(pool)]
        uuid, ran = item.get("uuid"), evaluation.get("run_id")
        own = uuid if isinstance(uuid, str) else [ran, evaluation.get("task_id"), item["id"], item["epoch"]]
        task = evaluation.get("task")
        self._run = ImportedRun(
            origin.source,
            origin.id_of([origin.place, item]),
            trace_id=origin.id_of_own(KIND, own) if isinstance(uuid, str) or ran else None,
            name=task if isinstance(task, str) else "sample",
            start_ns=next((time for one in self._events if (time := time_ns(one.get("timestamp")))), None),
        )

    def records(self) -> Iterator[Read]:
        """Its spans, its rewards, and what is left out."""
        calls = 0
        spans = {one["id"]: one for one in self._events if one.get("event") == "span_begin" and one.get("id")}
        agents = dict[str, str]()
        for number, one, is_scorers in self._model_events(spans):
            if is_scorers:
                yield LeftOutItem("model calls of scorers")
                continue
            agent, made = self._agent(one.get("span_id"), spans, agents)
            yield from made
            asked = self._asked(one)
            yield from self._run.last_results(asked, agent=agent)
            yield self._call(number, one, asked, agent)
            calls += 1
        why = None if calls else "the log has no events of its model calls"
        said = [self._message(one) for one in json_objects(self._item["messages"])]
        if not calls:
            yield from self._calls_of(said)
        yield from unread_parts(said)
        yield from (LeftOutItem("attempts that failed and were made again") for _ in self._listed("error_retries"))
        yield self._end(why)
        yield from self._run.rewards(self._scores())

    def _listed(self, name: str) -> list[Any]:
        found = self._item.get(name)
        return found if isinstance(found, list) else []

    def _model_events(self, spans: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any], bool]]:
        """The place of each call, and whether a scorer made it."""
        scoring = 0  # steps of 2024, which have no ids
        for number, one in enumerate(self._events):
            if one.get("event") == "step" and one.get("type") == "scorer":
                scoring += 1 if one.get("action") == "begin" else -1
            elif one.get("event") == "model":
                within = scoring > 0 or any(
                    span.get("type") in ("scorer", "scorers") or span.get("name") == "scorers"
                    for span in _above(one.get("span_id"), spans)
                )
                yield number, one, within

    def _agent(self, span_id: Any, spans: Mapping[str, Any], known: dict[str, str]) -> tuple[str | None, list[SpanRow]]:
        """The sub-agent that a call is of, None for the run's own, and the spans of those that come with it."""
        above = [one for one in _above(span_id, spans) if one.get("type") in ("agent", "tool")]
        outer, made = None, list[SpanRow]()
        for at, one in reversed(list(enumerate(above))):
            if one["type"] != "agent" or at == len(above) - 1:
                continue  # the uppermost is the run
            if one["id"] not in known:
                ends = (end for end in self._events if end.get("event") == "span_end" and end.get("id") == one["id"])
                known[one["id"]], new = self._run.agent(
                    one["id"],
                    str(one.get("name") or "agent"),
                    parent=outer,
                    start_ns=time_ns(one.get("timestamp")),
                    end_ns=time_ns(next(ends, {}).get("timestamp")),
                )
                made += new
            outer = known[one["id"]]
        return outer, made

    def _asked(self, event: dict[str, Any]) -> list[Message]:
        """What a call was given."""
        references = event.get("input_refs")
        if not isinstance(references, list):
            return [self._message(one) for one in json_objects(event.get("input"))]
        found = list[Message]()
        for one in references:
            begin, end = one if isinstance(one, list) and len(one) == 2 else (0, 0)
            if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end <= len(self._pool)):
                self._missing += 1
                continue
            found += self._pool[begin:end]
        return found

    def _call(self, number: int, event: dict[str, Any], asked: list[Message], agent: str | None) -> SpanRow:
        output = json_object(event.get("output"))
        choices = json_objects(output.get("choices"))
        failed = event.get("error") or output.get("error")
        model = event.get("model")
        span = self._run.call(
            number,
            asked,
            [self._answer(one) for one in choices] if not event.get("error") else [],
            agent=agent,
            start_ns=time_ns(event.get("timestamp")),
            end_ns=time_ns(event.get("completed")),
            model=model if isinstance(model, str) else None,
            offered=[self._resolved(one) for one in json_objects(event.get("tools"))],
            attributes={
                **settings(event.get("config")),
                **answered(
                    {"model": output.get("model"), "id": json_object(_response(event)).get("id")},
                    _usage(json_object(output.get("usage"))),
                    json_object(output.get("usage")).get("total_cost"),
                ),
                semconv.INTERRUPTED: None if choices or failed else "no answer",
            },
        )
        return replace(span, status_code=2, status_message=str(failed)[:4000]) if failed else span

    def _answer(self, choice: dict[str, Any]) -> Message:
        reason = choice.get("stop_reason")
        said = self._message(json_object(choice.get("message")))
        return {**said, "finish_reason": None if reason == "unknown" else reason}

    def _calls_of(self, said: list[Message]) -> Iterator[SpanRow]:
        """Of a log without events."""
        model = self._evaluation.get("model")
        for at, one in enumerate(json_objects(self._item["messages"])):
            if one.get("role") == "assistant" and one.get("source") != "input":
                yield self._run.call(at, said[:at], [said[at]], model=model if isinstance(model, str) else None)

    def _message(self, given: dict[str, Any]) -> Message:
        """In OpenAI's form. The result of a tool that failed is what Inspect tells the model: the error."""
        given = self._resolved(given)
        content = given.get("content")
        parts = content if isinstance(content, list) else None
        message: Message = {"role": given.get("role"), "content": content if parts is None else _parts(parts)}
        if calls := json_objects(given.get("tool_calls")):
            message["tool_calls"] = [_tool_call(one) for one in calls]
        if given.get("role") == "tool":
            message["tool_call_id"] = given.get("tool_call_id")
            if error := json_object(given.get("error")):
                message |= {"content": f"Error: {error.get('message')}", FAILED: True}
        return message

    def _resolved(self, value: Any) -> Any:
        """A value with its attachments in their places; those that are not there are counted."""
        if isinstance(value, dict):
            return {name: self._resolved(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._resolved(one) for one in value]
        if isinstance(value, str) and value.startswith(_REFERENCES):
            text = self._texts.get(value.partition("://")[2])
            if isinstance(text, str):
                return text
            self._missing += 1
        return value

    def _end(self, why: str | None) -> SpanRow:
        item = self._item
        error = item.get("error")
        message = json_object(error).get("message") or "an error" if error else None
        if message:
            why = counted_as_failed("Inspect AI", why=message)
        elif item.get("invalidation"):
            why = "invalidated in Inspect AI"
        elif self._missing:
            why = f"{quantity(self._missing, 'text')} of the log missing"
        beside = {name: value for name, value in item.items() if name not in _READ and value not in (None, {}, [])}
        named = {name: self._evaluation.get(name) for name in ("task", "task_args", "model", "solver", "tags")}
        scores = {name: _beside_value(one) for name, one in self._given_scores().items()}
        output = json_object(item.get("output"))
        choices = json_objects(output.get("choices"))
        return self._run.end(
            metadata={
                **beside,
                **{name: value for name, value in named.items() if value},
                **({"scores": said} if (said := {name: one for name, one in scores.items() if one}) else {}),
            },
            result=self._message(json_object(choices[0].get("message"))).get("content") if choices else None,
            error=str(message) if message else None,
            attributes={
                semconv.INTERRUPTED: why,
                semconv.SCENARIO: f"{item['id']} {hashed(8, item['input'], item['target'])}",
            },
        )

    def _given_scores(self) -> dict[str, Any]:
        alone = self._item.get("score")
        return json_object(self._item.get("scores")) or ({} if alone is None else {"score": alone})

    def _scores(self) -> dict[str, Any]:
        """By the scorer's name, and that of the value where a scorer gave several."""
        found = dict[str, Any]()
        for name, score in self._given_scores().items():
            value = json_object(score).get("value")
            if isinstance(value, dict):
                found |= {f"{name}/{part}": _number(one) for part, one in value.items()}
            else:
                found[name] = _number(value)
        return found


def _above(span_id: Any, spans: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The spans that a thing is in, the innermost first."""
    seen = set[str]()
    while isinstance(span_id, str) and span_id in spans and span_id not in seen:
        seen.add(span_id)
        yield spans[span_id]
        span_id = spans[span_id].get("parent_id")


def _response(event: dict[str, Any]) -> Any:
    return json_object(event.get("call")).get("response")


def _usage(given: dict[str, Any]) -> dict[str, Any] | None:
    """In OpenAI's form: Inspect counts what came from the cache, or went there, apart."""
    if not given:
        return None
    read, written = given.get("input_tokens_cache_read"), given.get("input_tokens_cache_write")
    return {
        "input_tokens": int(sum(finite(one) or 0 for one in (given.get("input_tokens"), read, written))),
        "output_tokens": given.get("output_tokens"),
        "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "output_tokens_details": {"reasoning_tokens": given.get("reasoning_tokens")},
    }


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return value
    try:
        return _VALUES[value.lower()] if value.lower() in _VALUES else float(value)
    except ValueError:
        return value


def _beside_value(score: Any) -> dict[str, Any]:
    return {name: one for name, one in json_object(score).items() if name != "value" and one not in (None, "", {}, [])}


def _parts(parts: list[Any]) -> list[Any]:
    """The parts of a content; thoughts that the provider hid have their summary, or nothing."""
    found = list[Any]()
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image":
            found.append({"type": "image_url", "image_url": {"url": part.get("image")}})
        elif kind == "reasoning":
            thought = part.get("summary") if part.get("redacted") else part.get("reasoning") or part.get("summary")
            found += [{"type": "reasoning", "reasoning": thought}] if thought else []
        elif kind == "text":
            found.append({"type": "text", "text": part.get("text")})
        else:
            found.append(part)
    return found


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call.get("id"), "type": "function", "function": {"name": call.get("function"), "arguments": text}}
