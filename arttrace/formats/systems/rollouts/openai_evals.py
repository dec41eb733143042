"""Output items of OpenAI's Evals: what a model was given and answered for an item of the data, and the graders' scores.
Pure.

Items of one row of the data are a group, in whichever run of the evaluation. Each result of a grader is a reward with
the grader's name. Source: OpenAI's published API, `GET /evals/{eval_id}/runs/{run_id}/output_items`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import ImportedRun, answered
from arttrace.formats.left_out import Read
from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import time_ns
from arttrace.trajectories.decoding.attribute_values import finite

KIND = "openai eval items"
_OBJECT = "eval.run.output_item"
_READ = frozenset({"object", "id", "created_at", "sample", "results", "datasource_item_id"})
_SETTINGS = {"temperature": semconv.REQUEST_TEMPERATURE, "top_p": semconv.REQUEST_TOP_P}


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is an output item."""
    return item.get("object") == _OBJECT


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """The run. Raises ValueError for one without its sample."""
    sample = item.get("sample")
    if not isinstance(sample, dict):
        raise ValueError("an output item of an evaluation without its sample")
    id, began = item.get("id"), time_ns(item.get("created_at"))
    trace_id = origin.id_of_own(KIND, id) if isinstance(id, str) else None
    run = ImportedRun(origin.source, origin.id_of([origin.place, item]), trace_id=trace_id, start_ns=began)
    said = [*json_objects(sample.get("input")), *json_objects(sample.get("output"))]
    first = len(json_objects(sample.get("input")))
    answers = [at for at in range(first, len(said)) if said[at].get("role") == "assistant"]
    for at in answers:
        before_others = "tool_calls" if said[at].get("tool_calls") else None
        ended = sample.get("finish_reason") if at == answers[-1] else before_others
        usage = sample.get("usage") if len(answers) == 1 else None
        yield run.call(
            at,
            said[:at],
            [{**said[at], "finish_reason": ended}],
            model=sample.get("model") if isinstance(sample.get("model"), str) else None,
            attributes={
                **answered(sample, usage),
                **{name: sample[key] for key, name in _SETTINGS.items() if finite(sample.get(key)) is not None},
            },
        )
    error = json_object(sample.get("error"))
    row = item.get("datasource_item_id")
    yield run.end(
        metadata={name: value for name, value in item.items() if name not in _READ},
        result=said[answers[-1]].get("content") if answers else None,
        error=str(error.get("message") or error.get("code")) if error else None,
        attributes={} if row is None else {semconv.SCENARIO: f"{item.get('eval_id')}/{row}"},
    )
    yield from run.rewards({_named(one): _score(one) for one in json_objects(item.get("results"))})


def _named(result: dict[str, Any]) -> str:
    return str(result.get("name") or "score")


def _score(result: dict[str, Any]) -> Any:
    passed = result.get("passed")
    return float(passed) if result.get("score") is None and isinstance(passed, bool) else result.get("score")
