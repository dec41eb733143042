"""ATIF documents (Harbor's agent trajectory interchange format, versions 1.0 to 1.8). Pure.

What `arttrace dataset --format atif` wrote under `extra.arttrace` is read back: such a run is what it was. Steps that
are copied context, or that no model made (`llm_call_count` 0), are context here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.datasets.atif import OWN
from arttrace.formats.imported_run import SECOND, ImportedRun
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.openai_messages import text_of
from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.values.costs import stated_cost
from arttrace.records.values.lenient_json import json_object, json_objects, read_json
from arttrace.records.values.times import time_ns
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.records.values.units import quantity
from arttrace.trajectories.decoding.attribute_values import finite

KIND = "atif trajectories"


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a document."""
    return str(item.get("schema_version")).startswith("ATIF-") and isinstance(item.get("steps"), list)


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """One run, its sub-agents included."""
    own = _own(item)
    id = item.get("trajectory_id") if own else None
    start = own.get("start_ns") or min(_times(item), default=None)
    agent = json_object(item.get("agent"))
    name = str(agent.get("name") or "agent")
    own_id = item.get("trajectory_id")
    key = own_id or _session(item) or origin.id_of(item)
    trace_id = origin.id_of_own(KIND, own_id) if own_id and isinstance(own_id, str) else None
    run = ImportedRun(
        origin.source,
        key,
        trace_id=trace_id,
        name=name,
        start_ns=start,
        trajectory_id=id if isinstance(id, str) else None,
    )
    documents = _Told(run)
    yield from documents.document(item, None)
    embedded = [one for one in item.get("subagent_trajectories") or [] if isinstance(one, dict)]
    spawned = {
        _referred(ref): result.get("source_call_id")
        for one in (item, *embedded)
        for step in json_objects(one.get("steps"))
        for result in json_objects(json_object(step.get("observation")).get("results"))
        for ref in json_objects(result.get("subagent_trajectory_ref"))
    }
    elsewhere = len(spawned.keys() - {one.get("trajectory_id") for one in embedded})
    goes_on = bool(item.get("continued_trajectory_ref"))
    yield from [LeftOutItem("sub-agents in other files")] * elsewhere
    yield from [LeftOutItem("continuations in other files")] * goes_on
    spans = {str(own.get("agent_id")): run.root_id}
    for one in embedded:
        who = _own(one)
        agent_id = str(who.get("agent_id") or one.get("trajectory_id"))
        if agent_id not in spans:
            name = str(json_object(one.get("agent")).get("name") or "sub-agent")
            times = _times(one)
            spans[agent_id], made = run.agent(
                agent_id,
                name,
                parent=spans.get(str(who.get("parent_agent_id"))),
                spawned_by=who.get("spawned_by") or spawned.get(str(one.get("trajectory_id"))),
                start_ns=min(times, default=None),
                end_ns=max(times) + SECOND if times else None,
            )
            yield from made
        yield from documents.document(one, spans[agent_id])
    model = agent.get("model_name")
    about = {name: item.get(name) for name in ("notes", "final_metrics", "continued_trajectory_ref", "extra")}
    of_agent = {"agent_version": agent.get("version"), "agent_extra": agent.get("extra")}
    beside = {} if own else {**of_agent, "model": model, **about}
    metadata = own.get("metadata") or {name: value for name, value in beside.items() if value}
    yield run.end(
        metadata=metadata if isinstance(metadata, dict) else None,
        result=own.get("result") if own else documents.last,
        error=own.get("error"),
        attributes={
            semconv.PROJECT: own.get("project") or origin.source,
            semconv.ENTRY_NAME: own.get("entry"),
            semconv.SCENARIO: own.get("scenario"),
            semconv.GROUP: own.get("group"),
            semconv.TAGS: own.get("tags"),
            semconv.ENTRY_ARGUMENTS: text_of(own.get("arguments")),
            semconv.INTERRUPTED: _missing(elsewhere, goes_on),
        },
    )
    for given in json_objects(own.get("rewards")):
        value = finite(given.get("value"))
        if value is not None:
            fields = {name: given[name] for name in ("source", "explanation", "time_ns") if name in given}
            whose = spans.get(str(given.get("agent_id"))) if given.get("agent_id") else None
            name, reward_id = str(given.get("name", "reward")), str(given.get("id") or f"{run.id}:{given.get('name')}")
            yield Reward(id=reward_id, trajectory_id=run.id, value=value, name=name, agent_id=whose, **fields)


def _session(item: dict[str, Any]) -> Any:
    """The id of the document's session. Where some agents of Harbor's know none it is a word (`unknown`, the agent's
    name), the same in all documents: one without a digit is no id."""
    id = item.get("session_id")
    return id if any(map(str.isdigit, str(id))) else None


def _referred(ref: dict[str, Any]) -> str:
    """What a reference to a sub-agent names: the id of one that is embedded, or, before version 1.7, its file."""
    return str(ref.get("trajectory_id") or ref.get("trajectory_path") or ref.get("session_id"))


def _missing(sub_agents: int, goes_on: bool) -> str | None:
    """What of a run stands in other files, so that it is not complete."""
    parts = [quantity(sub_agents, "sub-agent")] if sub_agents else []
    parts += ["its continuation"] if goes_on else []
    return f"{' and '.join(parts)} in other files" if parts else None


class _Told:
    """The calls of documents, each answer once: those that another document holds are its context."""

    def __init__(self, run: ImportedRun) -> None:
        self._run = run
        self.last: Any = None

    def document(self, item: dict[str, Any], agent: str | None) -> Iterator[Read]:
        who = json_object(item.get("agent"))
        offered = who.get("tool_definitions")
        messages: list[dict[str, Any]] = []
        for at, step in enumerate(item["steps"]):
            if not isinstance(step, dict):
                raise ValueError(f"step {at + 1} is no object")
            message = _message(step)
            if step.get("source") == "agent" and not step.get("is_copied_context") and step.get("llm_call_count") != 0:
                own = _own(step)
                start = own.get("start_ns") or time_ns(step.get("timestamp"))
                yield self._run.call(
                    own.get("span_id") or [item.get("trajectory_id"), step.get("step_id", at)],
                    messages,
                    [{**message, "finish_reason": own.get("finish_reason")}],
                    agent=agent,
                    start_ns=start,
                    end_ns=own.get("end_ns"),
                    model=step.get("model_name") or who.get("model_name"),
                    offered=offered if isinstance(offered, list) else None,
                    attributes=_measured(step, own),
                )
                if agent is None:
                    self.last = message.get("content")
            messages.append(message)
            messages += _results(step)


def _message(step: dict[str, Any]) -> dict[str, Any]:
    own = _own(step)
    role = {"agent": "assistant", "system": own.get("role", "system")}.get(str(step.get("source")), "user")
    message: dict[str, Any] = {"role": role, "content": _content(step.get("message"))}
    if "name" in own:
        message["name"] = own["name"]
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    calls = []
    for call in json_objects(step.get("tool_calls")):
        kept = _own(call)
        arguments = kept.get("arguments")
        name = str(call.get("function_name") or "")
        function = {"name": name, "arguments": text_of(call.get("arguments")) if arguments is None else arguments}
        id = None if kept.get("has_no_id") else call.get("tool_call_id")
        calls.append({"id": id, "type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls
    return message


def _results(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for result in json_objects(json_object(step.get("observation")).get("results")):
        own = _own(result)
        content = _content(result.get("content"))
        id = result.get("source_call_id") or own.get("tool_call_id")
        if id is None and not own and not step.get("tool_calls"):  # the environment's word, not a tool's
            yield {"role": "user", "content": content}
            continue
        if own.get("is_json") and isinstance(content, str):
            content = read_json(content)
        message = {"role": "tool", "tool_call_id": id, "content": content}
        yield {**message, "name": own["name"]} if "name" in own else message


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content if content is not None else ""
    if all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in content):
        return "".join(one["text"] for one in content)
    return content


def _measured(step: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    metrics = json_object(step.get("metrics"))
    found = {
        semconv.USAGE_INPUT_TOKENS: metrics.get("prompt_tokens"),
        semconv.USAGE_OUTPUT_TOKENS: metrics.get("completion_tokens"),
        semconv.USAGE_CACHE_READ_INPUT_TOKENS: metrics.get("cached_tokens"),
        semconv.USAGE_COST: stated_cost(metrics.get("cost_usd")),
        semconv.INTERRUPTED: own.get("interrupted"),
        semconv.POLICY_VERSION: own.get("policy_version"),
        semconv.REQUEST_TEMPERATURE: own.get("temperature"),
    }
    for name, ids in ((semconv.PROMPT_TOKEN_IDS, "prompt_token_ids"), (semconv.TOKEN_IDS, "completion_token_ids")):
        if isinstance(metrics.get(ids), list):
            found[name] = encode_token_ids(metrics[ids])
    logprobs = _own(metrics).get("logprobs") or metrics.get("logprobs")
    if isinstance(logprobs, list) and semconv.TOKEN_IDS in found:
        found[semconv.LOGPROBS] = encode_logprobs(logprobs)
    return found


def _times(item: dict[str, Any]) -> list[int]:
    times = [time_ns(step.get("timestamp")) for step in json_objects(item.get("steps"))]
    return [at for at in times if at is not None]


def _own(holder: dict[str, Any]) -> dict[str, Any]:
    return json_object(json_object(holder.get("extra")).get(OWN))
