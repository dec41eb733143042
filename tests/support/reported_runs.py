"""All that runs of a file say, as plain values to compare: times in seconds after 2026-03-01T10:00:00Z."""

from __future__ import annotations

from typing import Any

from arttrace.formats.imported_files import Imported, read_file
from arttrace.formats.sdks.tolerant import normalised
from arttrace.records import semconv
from arttrace.records.message import Message, OtherPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories

BEGAN = 1_772_359_200
_COUNTS = {
    "read": semconv.USAGE_CACHE_READ_INPUT_TOKENS,
    "written": semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
    "reasoning": semconv.USAGE_REASONING_OUTPUT_TOKENS,
}


def shown(data: bytes) -> tuple[Imported, list[dict[str, Any]]]:
    """What a file is read as, and each run in it; what is not said is not there."""
    found = read_file(data, "file")
    spans = [normalised(one) for one in found.records if isinstance(one, SpanRow)]
    runs = build_trajectories(spans, [one for one in found.records if isinstance(one, Reward)])
    return found, [_run(run, {span.span_id: span for span in spans}) for run in runs]


def _seconds(*times: int) -> tuple[float, ...]:
    return tuple(at / 1e9 - BEGAN for at in times)


def _said(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", (), [], {})}


def _run(run: Trajectory, spans: dict[str, SpanRow]) -> dict[str, Any]:
    names = {agent.id: agent.name for agent in run.agents}
    return _said(
        {
            "project": run.project, "scenario": run.scenario, "group": run.group, "tags": run.tags,
            "metadata": run.metadata, "arguments": run.arguments, "result": run.result, "error": run.error,
            "incomplete": run.incomplete, "time": _seconds(run.start_ns, run.end_ns),
            "agents": [(agent.name, names.get(agent.parent_id or "")) for agent in run.agents],
            "calls": [
                _call(placed.call, names[placed.agent_id], spans[placed.call.span_id].attributes)
                for placed in run.calls
            ],
            "tools": [
                (tool.id, names[tool.agent_id], tool.name, tool.arguments, tool.result, tool.error,
                 None if tool.inferred else _seconds(tool.start_ns, tool.end_ns))
                for tool in run.tool_calls
            ],
            "rewards": [
                (one.name, one.value, one.source, names.get(one.agent_id or ""), one.explanation,
                 *_seconds(one.time_ns))
                for one in run.rewards
            ],
        }
    )  # fmt: skip


def _call(call: Any, agent: str, attributes: dict[str, Any]) -> dict[str, Any]:
    models = (call.request_model, call.response_model)
    tokens = {"input": call.input_tokens, "output": call.output_tokens}
    return _said(
        {
            "agent": agent, "time": _seconds(call.start_ns, call.end_ns), "error": call.error,
            "models": tuple(dict.fromkeys(filter(None, models))), "id": call.response_id,
            "temperature": call.temperature, "provider": attributes.get(semconv.PROVIDER_NAME),
            "most": attributes.get(semconv.REQUEST_MAX_TOKENS),
            "tokens": _said({**tokens, **{word: attributes.get(name) for word, name in _COUNTS.items()}}),
            "asked": [_message(message) for message in call.messages],
            "answers": [(choice.finish_reason, _message(choice.message)) for choice in call.choices],
            "offered": [tool["function"]["name"] for tool in call.tools],
        }
    )  # fmt: skip


def _message(message: Message) -> str:
    return " ".join([f"{message.role}:", *map(_part, message.parts)])


def _part(part: Any) -> str:
    match part:
        case TextPart(content):
            return str(content)
        case ReasoningPart(content):
            return f"(thinks {content})"
        case ToolCallPart(name, arguments, id):
            return f"[{id} {name} {arguments}]"
        case ToolResultPart(response, id):
            return f"[{id} {response}]"
        case OtherPart(value):
            return f"<{value['type']}>"
    return repr(part)
