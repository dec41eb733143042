"""Rows as Braintrust's own SDK (0.48.1) makes them, of an agent of two calls, one streamed, and a tool: recorded
with its in-memory logger around the real openai client."""

from __future__ import annotations

from pathlib import Path

from arttrace.formats.imported_files import read_file
from arttrace.formats.sdks.tolerant import normalised
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

ROWS = Path(__file__).parent / "data" / "braintrust.jsonl"


def test_every_row_is_read() -> None:
    found = read_file(ROWS.read_bytes(), "x")
    assert (found.kinds, found.refused, found.unread) == ({"braintrust spans": 4}, 0, {})
    spans = [normalised(one) for one in found.records if isinstance(one, SpanRow)]
    [run] = build_trajectories(spans, [one for one in found.records if isinstance(one, Reward)])
    assert ([agent.name for agent in run.agents], run.tags, run.metadata) == (["answer"], ("beta",), {"user": "u"})
    assert [(reward.name, reward.value) for reward in run.rewards] == [("good", 0.75)]
    first, streamed = (placed.call for placed in run.calls)
    assert [part.name for part in first.choices[0].message.parts[1:]] == ["look", "add"]
    assert [call.choices[0].finish_reason for call in (first, streamed)] == ["tool_calls", "stop"]
    assert [message.text for message in streamed.messages] == ["hello"]
    assert ("look", "found x", False) in {(tool.name, tool.result, tool.inferred) for tool in run.tool_calls}
    assert run.incomplete == ""
