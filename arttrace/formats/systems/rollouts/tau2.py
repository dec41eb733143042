"""Results of tau2-bench: `simulations` of tasks, or one simulation. Pure.

A simulation holds what agent, user and environment said. The agent is told nothing of the user's own tool calls and
their results, and its first word, before it is asked, is the program's. A result's `id` is that of its call. The
system prompt and the tools, which each agent makes of the policy by itself, are not in the file. Rollouts of one task
are a group. One that tau2 leaves out of its metrics, since its machinery failed, is incomplete; a 0 that stands for an
evaluation that raised is no reward. Source: tau2 1.0, data_model/simulation.py, data_model/message.py,
agent/base_agent.py, metrics/agent_metrics.py and evaluator/evaluator.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from arttrace.formats.content_ids import ItemOrigin
from arttrace.formats.imported_run import BEHIND, ImportedRun, answered, counted_as_failed
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.anthropic_messages import FAILED
from arttrace.records import semconv
from arttrace.records.message import stated_reasoning
from arttrace.records.values.finish_reasons import stated_reason
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import time_ns

KIND = "tau2 results"
_READ = frozenset({"id", "task_id", "messages", "ticks", "reward_info", "timestamp", "start_time", "end_time"})
_FAILED = "_error"
"""How the reasons end for which a simulation ended that are none of the agent's doing, or its failure."""

_NOT_RUN = "infrastructure_error"

Message = dict[str, Any]


def recognises(item: dict[str, Any]) -> bool:
    """Whether these are results, or a simulation."""
    several = item.get("simulations")
    return _is_simulation(item) or ("tasks" in item and isinstance(several, list) and any(map(_is_simulation, several)))


def _is_simulation(item: Any) -> bool:
    return isinstance(item, dict) and all(name in item for name in ("id", "task_id", "termination_reason", "messages"))


def records(item: dict[str, Any], origin: ItemOrigin) -> Iterator[Read]:
    """One run for each simulation. Raises ValueError where one is none."""
    info = json_object(item.get("info"))
    environment = json_object(info.get("environment_info"))
    shared = {"domain": environment.get("domain_name"), "policy": environment.get("policy")}
    model = json_object(info.get("agent_info")).get("llm")
    for one in [item] if _is_simulation(item) else item["simulations"]:
        if not _is_simulation(one):
            raise ValueError("one of its simulations has no id, task, messages or reason why it ended")
        if one["messages"] is None:
            yield LeftOutItem("simulations of speech")
        else:
            run = ImportedRun(
                origin.source, trace_id=origin.id_of_own(KIND, one["id"]), start_ns=time_ns(one.get("start_time"))
            )
            yield from _run(run, one, shared, model if isinstance(model, str) else None)


def _run(run: ImportedRun, item: Mapping[str, Any], shared: Mapping[str, Any], model: str | None) -> Iterator[Read]:
    history: list[Message] = []
    answer: int | None = None
    before: int | None = None
    for at, one in enumerate(item["messages"]):
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise ValueError(f"message {at + 1} of a simulation has no role")
        if not _is_told(one):
            continue
        message = _message(one)
        if one["role"] == "assistant" and (_is_sampled(one) or any(_is_asked(said) for said in history)):
            if answer is not None:
                yield from run.results(history, answer, end_ns=before)
            response = json_object(one.get("raw_data"))
            choice: Message = next(iter(json_objects(response.get("choices"))), response)
            reasoning = stated_reasoning(json_object(choice.get("message")))
            yield run.call(
                at,
                history,
                [{**message, "reasoning_content": reasoning, "finish_reason": stated_reason(choice)}],
                start_ns=before,
                end_ns=time_ns(one.get("timestamp")),
                model=model,
                attributes=answered(response, one.get("usage"), one.get("cost")),
            )
            answer = len(history)
        history.append(message)
        before = time_ns(one.get("timestamp"))
    if answer is None:
        raise ValueError("a simulation without an answer")
    yield from run.results(history, answer)
    yield from (LeftOutItem(BEHIND) for _ in history[answer + 1 :])
    scored = json_object(item.get("reward_info"))
    beside = {name: value for name, value in item.items() if name not in _READ and value is not None}
    checks = {name: value for name, value in scored.items() if name != "reward" and value is not None}
    said = {name: value for name, value in {**shared, "reward_info": checks}.items() if value}
    reason = str(item["termination_reason"])
    yield run.end(
        task=item["task_id"],
        metadata={**beside, **said},
        result=history[answer].get("content"),
        error=reason if reason.endswith(_FAILED) else None,
        attributes={semconv.INTERRUPTED: counted_as_failed("tau2", why=reason) if reason == _NOT_RUN else None},
    )
    if json_object(scored.get("info")).get("error"):
        yield LeftOutItem("rewards of 0 for evaluations that raised")
    else:
        yield from run.rewards({"reward": scored.get("reward")})


def _is_told(message: Message) -> bool:
    """Whether the agent said it, or was told it."""
    if message["role"] == "user":
        return not message.get("tool_calls")
    return message["role"] != "tool" or message.get("requestor") != "user"


def _is_sampled(message: Message) -> bool:
    return any(message.get(name) for name in ("usage", "raw_data", "tool_calls"))


def _is_asked(message: Message) -> bool:
    return bool(message["role"] in ("user", "tool"))


def _message(given: Message) -> Message:
    """In OpenAI's form."""
    message: Message = {"role": given["role"], "content": given.get("content")}
    if given.get("tool_calls"):
        message["tool_calls"] = given["tool_calls"]
    if given["role"] == "tool":
        message["tool_call_id"] = given.get("id")
        if given.get("error") is True:
            message[FAILED] = True
    return message
