"""What an agent of another SDK answered, where its own span says it: the result of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arttrace.formats.imported_files import read_file
from arttrace.records.span import Attributes, SpanEvent, SpanRow
from arttrace.rewards.transcript import transcript
from arttrace.store import Store
from arttrace.system.paths import DataDir

TEXT = {"type": "text", "content": "It rains."}


def result(tmp_path: Path, *records: Any) -> Any:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(list(records))
        [trajectory] = store.trajectories()
        assert transcript(trajectory).result == trajectory.result, "what a judge reads"
    return trajectory.result


def agent(attributes: Attributes, *events: SpanEvent, scope: str = "agent_framework") -> SpanRow:
    own: Attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "A"}
    return SpanRow(
        "1" * 32, "a" * 16, "invoke_agent A", 1, 9, attributes=own | attributes, events=[*events], scope_name=scope
    )


def said(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "parts": [*parts], **more}


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [said({"type": "tool_call", "name": "t", "id": "c"}), said({"type": "reasoning", "content": "Hm."}, TEXT)],
            "It rains.",
        ),
        ([said(TEXT, {"type": "text", "content": " A lot."})], "It rains. A lot."),
        ([{"role": "assistant", "content": "42"}], "42"),
        ([said(TEXT), said({"type": "tool_call", "name": "t", "id": "c"})], None),
        ([], None),
        (["It rains."], None),
        ({"role": "assistant"}, None),
    ],
)
def test_the_text_of_its_last_message_is_the_result(
    messages: Any, expected: Any, as_text: bool, tmp_path: Path
) -> None:
    given = json.dumps(messages) if as_text else messages
    assert result(tmp_path, agent({"gen_ai.output.messages": given})) == expected


def test_an_answer_that_is_said_as_such_counts(tmp_path: Path) -> None:
    both: Attributes = {"gen_ai.output.messages": json.dumps([said(TEXT)]), "final_result": '{"rain":true}'}
    assert result(tmp_path / "pydantic_ai", agent(both, scope="pydantic-ai")) == {"rain": True}
    assert result(tmp_path / "others", agent(both)) == "It rains."
    own: Attributes = {"traceloop.span.kind": "agent", "traceloop.entity.output": '"so"', **both}
    assert result(tmp_path / "openllmetry", agent(own)) == "so"


@pytest.mark.parametrize("name", ["strands_newest", "strands_older"])
def test_strands_says_it_in_events(name: str, tmp_path: Path) -> None:
    file = Path(__file__).parent / "data" / f"{name}.jsonl"
    assert result(tmp_path, *read_file(file.read_bytes(), name).records) == "It rains.\n"
