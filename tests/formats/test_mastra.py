"""Spans as Mastra's exporter for OpenTelemetry sends them, before (`chat` for a generation) and since it has spans of
inferences (July 2026): what a run lacks is told, and each request is one call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arttrace.records.span import Attributes, SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir

USER: dict[str, Any] = {"role": "user", "parts": [{"type": "text", "content": "Weather in Oslo?"}]}
SAYS: dict[str, Any] = {"role": "assistant", "parts": [{"type": "text", "content": "It rains."}]}
CALL: Attributes = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.response.finish_reasons": '["stop"]',
    "gen_ai.input.messages": json.dumps([USER]),
    "gen_ai.output.messages": json.dumps([SAYS]),
    "gen_ai.usage.input_tokens": 7,
    "gen_ai.usage.output_tokens": 3,
}


def span(id: str, above: str | None, kind: str, attributes: Attributes) -> SpanRow:
    told: Attributes = {"gen_ai.operation.name": kind, "mastra.span.type": kind, **attributes}
    start = int(id, 16)
    scope = "@mastra/otel-exporter"
    return SpanRow("1" * 32, id * 16, kind, start, 99, above and above * 16, attributes=told, scope_name=scope)


def read(directory: Path, *spans: SpanRow) -> Trajectory:
    agent = span("1", None, "agent_run", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a"})
    with Store.open(DataDir(directory), create=True) as store:
        store.append([agent, *spans])
        [run] = store.trajectories()
    return run


@pytest.mark.parametrize(
    ("steps", "lacks"), [(1, {}), (2, "@mastra/otel-exporter, chat: unreadable gen_ai.output.messages")]
)
def test_a_call_of_several_steps_lacks_the_turns_between(steps: int, lacks: Any, tmp_path: Path) -> None:
    below = [span(str(3 + step), "2", "model_step", {"mastra.model_step.input": "[]"}) for step in range(steps)]
    run = read(tmp_path, span("2", "1", "model_generation", CALL), *below)
    [one] = run.calls
    assert [choice.message.text for choice in one.call.choices] == ["It rains."]
    assert run.unread == ({lacks: 1} if lacks else {})


def test_spans_of_inferences_are_the_calls(tmp_path: Path) -> None:
    steps = [span(id, "2", "model_step", {"gen_ai.operation.name": "agent_step"}) for id in "35"]
    calls = [span(id, above, "model_inference", CALL) for id, above in (("4", "3"), ("6", "5"))]
    run = read(tmp_path, span("2", "1", "model_generation", {}), *steps, *calls)
    assert len(run.calls) == 2
    assert run.unread == {}
