"""ATIF, Harbor's agent trajectory interchange format (RFC 0001, version 1.7): one document per run. Pure.

The root agent's last conversation is the document's own steps; every further one (of a sub-agent, or a branch that an
agent left) is embedded, and a tool result that a sub-agent gave refers to it. An answer of another branch, or one that
the caller wrote, is copied context. What the format has no field for stands in `extra`, under `arttrace`:
formats/systems/atif.py reads it back.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import msgspec

from arttrace.formats.datasets.forms import Row, Unsuitable
from arttrace.formats.imported_run import is_undated
from arttrace.records.call import Choice
from arttrace.records.message import Message, OtherPart, ReasoningPart, ToolCallPart, ToolResultPart
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Agent, AgentCall, Trajectory
from arttrace.records.values.lenient_json import json_object
from arttrace.trajectories.conversations import Branch, branches

VERSION = "ATIF-v1.7"
OWN = "arttrace"
"""The key in `extra` under which stands what the format has no field for."""

_SOURCES = {"system": "system", "developer": "system", "user": "user", "assistant": "agent"}


def document(run: Trajectory) -> Row:
    """One run, to be written with `plain` (records/values/tokens.py). Raises Unsuitable where it cannot be written
    whole."""
    calls = {placed.call.span_id: placed for placed in run.calls}
    agents = {agent.id: agent for agent in run.agents}
    all_branches = branches(run)
    if not all_branches:
        raise Unsuitable(NotTrained.NO_ANSWER)
    root = run.agents[0].id if run.agents else all_branches[0].agent_id
    main = next((branch for branch in reversed(all_branches) if branch.agent_id == root), None)
    if main is None:
        raise Unsuitable(NotTrained.ROOT_CALLED_NONE)
    spawned: dict[str, list[str]] = {}
    embedded = []
    for number, branch in enumerate(all_branches):
        if branch is main:
            continue
        id = f"{run.id}/{number}"
        agent = agents.get(branch.agent_id)
        if agent is not None and agent.spawned_by:
            spawned.setdefault(agent.spawned_by, []).append(id)
        embedded.append({**_trajectory(branch, agent, calls, {}), "trajectory_id": id})
    referred = {call: [{"trajectory_id": id} for id in ids] for call, ids in spawned.items()}
    own = _trajectory(main, agents.get(root), calls, referred)
    row: Row = {
        "schema_version": VERSION,
        "session_id": run.id,
        "trajectory_id": run.id,
        **{name: value for name, value in own.items() if name != "schema_version"},
        "extra": {**own["extra"], **_run_extra(run)},
    }
    if totals := _totals(run):
        row["final_metrics"] = totals
    if embedded:
        row["subagent_trajectories"] = embedded
    return row


def _trajectory(
    branch: Branch, agent: Agent | None, calls: dict[str, AgentCall], referred: dict[str, list[Row]]
) -> Row:
    steps = list(_steps(branch, calls, referred))
    models = {step["model_name"] for step in steps if step.get("model_name")}
    agent_row: Row = {"name": (agent.name if agent else "") or "agent", "version": "unknown"}
    if len(models) == 1:
        agent_row["model_name"] = models.pop()
    if branch.tools:
        agent_row["tool_definitions"] = list(branch.tools)
    who: Row = {"agent_id": branch.agent_id}
    if agent is not None and agent.parent_id:
        who["parent_agent_id"] = agent.parent_id
    if agent is not None and agent.spawned_by:
        who["spawned_by"] = agent.spawned_by
    return {"schema_version": VERSION, "agent": agent_row, "steps": steps, "extra": {OWN: who}}


def _steps(branch: Branch, calls: dict[str, AgentCall], referred: dict[str, list[Row]]) -> Iterator[Row]:
    if branch.fault is not None:
        raise Unsuitable(branch.fault)
    step: Row | None = None
    number = 0
    for node, is_target in zip(branch.nodes, branch.is_target, strict=True):
        message = node.message
        if any(isinstance(part, OtherPart) for part in message.parts):
            raise Unsuitable(NotTrained.NOT_TEXT)
        if message.role == "tool":
            if step is None:
                raise Unsuitable("tool results before any other message")
            asked = {call["tool_call_id"] for call in step.get("tool_calls", ())}
            results = step.setdefault("observation", {"results": []})["results"]
            results.extend(_result(part, message, asked, referred) for part in message.parts)
            continue
        if message.role not in _SOURCES:
            raise Unsuitable(f"messages of the role {message.role[:40]!r}")
        if step is not None:
            yield step
        number += 1
        step = {"step_id": number, **_step(message)}
        if message.role == "assistant":
            placed = calls.get(node.sampled_by[0][0]) if node.sampled_by else None
            if placed is not None:
                step.update(_sampled(placed, node.sampled_by[0][1], step))
            if not is_target:
                step["is_copied_context"] = True
    if step is not None:
        yield step


def _step(message: Message) -> Row:
    step: Row = {"source": _SOURCES[message.role], "message": message.text}
    own: Row = {}
    if message.role == "developer":
        own["role"] = message.role
    if message.name:
        own["name"] = message.name
    reasoning = "".join(part.content for part in message.parts if isinstance(part, ReasoningPart))
    if message.role == "assistant":
        if reasoning:
            step["reasoning_content"] = reasoning
        if message.tool_calls:
            step["tool_calls"] = [_call(call, at) for at, call in enumerate(message.tool_calls)]
    elif reasoning or message.tool_calls or any(isinstance(part, ToolResultPart) for part in message.parts):
        raise Unsuitable(f"a message of the role {message.role!r} that is more than text")
    if own:
        step["extra"] = {OWN: own}
    return step


def _call(call: ToolCallPart, at: int) -> Row:
    try:
        arguments = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        arguments = None
    step_row: Row = {
        "tool_call_id": call.id or f"call_{at}",
        "function_name": call.name,
        "arguments": json_object(arguments),
    }
    own: Row = {}
    if not isinstance(arguments, dict) or msgspec.json.encode(arguments).decode() != call.arguments:
        own["arguments"] = call.arguments
    if not call.id:
        own["has_no_id"] = True
    return {**step_row, "extra": {OWN: own}} if own else step_row


def _result(part: Any, message: Message, asked: set[str], referred: dict[str, list[Row]]) -> Row:
    if not isinstance(part, ToolResultPart):
        raise Unsuitable("tool results that are more than a result")
    found: Row = {}
    own: Row = {}
    if part.id is not None and part.id in asked:
        found["source_call_id"] = part.id
        if part.id in referred:
            found["subagent_trajectory_ref"] = referred[part.id]
    elif part.id is not None:
        own["tool_call_id"] = part.id
    if isinstance(part.response, str):
        found["content"] = part.response
    else:
        found["content"] = msgspec.json.encode(part.response).decode()
        own["is_json"] = True
    if message.name:
        own["name"] = message.name
    return {**found, "extra": {OWN: own}} if own else found


def _sampled(placed: AgentCall, index: int, step: Row) -> Row:
    call = placed.call
    choice = next((one for one in call.choices if one.index == index), None)
    own: Row = {"span_id": call.span_id, "start_ns": call.start_ns, "end_ns": call.end_ns}
    for name, value in (
        ("choice", index or None),
        ("finish_reason", choice.finish_reason if choice else None),
        ("interrupted", call.interrupted),
        ("policy_version", call.policy_version),
        ("temperature", call.temperature),
    ):
        if value is not None:
            own[name] = value
    found: Row = {
        **({} if is_undated(call.start_ns) else {"timestamp": _timestamp(call.start_ns)}),
        "extra": {OWN: {**step.get("extra", {}).get(OWN, {}), **own}},
        "llm_call_count": 1,
    }
    if call.response_model or call.request_model:
        found["model_name"] = call.response_model or call.request_model
    metrics: Row = {"prompt_tokens": call.input_tokens, "completion_tokens": call.output_tokens}
    if choice is not None:
        metrics.update(_tokens(placed, choice))
    metrics = {name: value for name, value in metrics.items() if value is not None}
    return {**found, "metrics": metrics} if metrics else found


def _tokens(placed: AgentCall, choice: Choice) -> Row:
    # Whatever they are, they are lists of numbers when written: calls share the memory of their prompts.
    found: Row = {"prompt_token_ids": choice.prompt_token_ids or placed.call.prompt_token_ids}
    if choice.token_ids is not None:
        found["completion_token_ids"] = list(choice.token_ids)
    if choice.logprobs is not None:
        if None in choice.logprobs:  # a list of numbers there
            found["extra"] = {OWN: {"logprobs": list(choice.logprobs)}}
        else:
            found["logprobs"] = list(choice.logprobs)
    return found


def _run_extra(run: Trajectory) -> Row:
    own = {
        "project": run.project,
        "entry": run.entry_name or run.entry,
        "scenario": run.scenario,
        "group": run.regrouped or run.group,
        "tags": list(run.tags),
        "metadata": run.metadata,
        "arguments": run.arguments,
        "result": run.result,
        "error": run.error,
        "start_ns": run.start_ns,
        "end_ns": run.end_ns,
        "rewards": [
            {
                name: value
                for name in ("id", "name", "value", "source", "agent_id", "explanation", "time_ns")
                if (value := getattr(reward, name)) not in (None, "")
            }
            for reward in run.rewards
        ],
    }
    who = run.agents[0] if run.agents else None
    known = {name: value for name, value in own.items() if value not in (None, "", [], {})}
    return {OWN: {"agent_id": who.id if who else "", **known}}


def _totals(run: Trajectory) -> Row:
    given = [placed.call.input_tokens for placed in run.calls]
    sampled = [placed.call.output_tokens for placed in run.calls]
    totals: Row = {}
    if given and None not in given:
        totals["total_prompt_tokens"] = sum(count or 0 for count in given)
    if sampled and None not in sampled:
        totals["total_completion_tokens"] = sum(count or 0 for count in sampled)
    return totals


def _timestamp(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.datetime.fromtimestamp(whole, datetime.UTC).replace(microsecond=rest // 1000)
    return moment.isoformat()
