"""That the token limit cut an answer comes in from every format that says so, in whichever field and words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated_agent import Run, message
from stored_runs import write_dataset
from system_files import lines, read

from arttrace.records.reward import Reward
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories.conversations import conversations, unsupported

ASKED = [{"role": "user", "content": "Where to?"}]
SAID = {"role": "assistant", "content": "Lisbon, which"}
BLOCKS = {"role": "assistant", "content": [{"type": "text", "text": "Lisbon, which"}]}
TIME = "2026-01-01T00:00:00.000000+00:00"


def langsmith(outputs: Any) -> dict[str, Any]:
    return {
        "id": "a" * 8 + "-0000-4000-8000-" + "0" * 12, "trace_id": "b" * 8 + "-0000-4000-8000-" + "0" * 12,
        "parent_run_id": None, "run_type": "llm", "name": "ChatModel", "start_time": TIME, "end_time": TIME,
        "inputs": {"messages": ASKED}, "outputs": outputs,
    }  # fmt: skip


def of_langchain(**about: Any) -> dict[str, Any]:
    said = {"content": "Lisbon, which", "type": "ai", "response_metadata": about}
    message = {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"], "kwargs": said}
    return langsmith({"generations": [[{"text": "", "message": message}]]})


def phoenix(**attributes: Any) -> dict[str, Any]:
    asked, said = "llm.input_messages.0.message", "llm.output_messages.0.message"
    return {
        "name": "llm", "context": {"trace_id": "ab" * 16, "span_id": "02" * 8}, "span_kind": "LLM", "parent_id": None,
        "start_time": TIME, "end_time": TIME, "status_code": "OK", "status_message": "", "events": [],
        "attributes": {
            f"{asked}.role": "user", f"{asked}.content": "Where to?", f"{said}.role": "assistant",
            f"{said}.content": "Lisbon, which", **attributes,
        },
    }  # fmt: skip


def braintrust(output: Any) -> dict[str, Any]:
    return {
        "id": "1", "span_id": "1", "root_span_id": "1", "span_parents": None, "input": ASKED, "output": output,
        "span_attributes": {"type": "llm", "name": "llm"}, "metrics": {"start": 1.0, "end": 2.0}, "created": TIME,
    }  # fmt: skip


def weave(output: Any) -> dict[str, Any]:
    return {
        "id": "1", "trace_id": "1", "parent_id": None, "op_name": "ask", "attributes": {"weave": {"kind": "llm"}},
        "started_at": TIME, "ended_at": TIME, "inputs": {"messages": ASKED}, "output": output,
    }  # fmt: skip


LANGCHAIN_SAID = {"text": "Lisbon, which", "generation_info": {"finish_reason": "length"}}
FILES: dict[str, dict[str, Any]] = {
    "messages": {"messages": [*ASKED, {**SAID, "finish_reason": "length"}]},
    "messages of anthropic": {"messages": [*ASKED, {**BLOCKS, "stop_reason": "max_tokens"}]},
    "completion": {"prompt": ASKED, "completion": [{**SAID, "finish_reason": "length"}]},
    "exchange": {
        "request": {"messages": ASKED},
        "response": {"choices": [{"index": 0, "message": SAID, "finish_reason": "length"}]},
    },
    "exchange of anthropic": {
        "request": {"messages": ASKED},
        "response": {"type": "message", **BLOCKS, "stop_reason": "max_tokens"},
    },
    "art": {"messages_and_choices": [*ASKED, {"index": 0, "message": SAID, "finish_reason": "length"}], "reward": 1},
    "langsmith, openai": langsmith({"choices": [{"message": SAID, "finish_reason": "length"}]}),
    "langsmith, anthropic": langsmith({**BLOCKS, "stop_reason": "max_tokens"}),
    "langsmith, text": langsmith({"generations": [[LANGCHAIN_SAID]]}),
    "langchain, openai": of_langchain(finish_reason="length"),
    "langchain, anthropic": of_langchain(stop_reason="max_tokens"),
    "langchain, gemini": of_langchain(finish_reason="MAX_TOKENS"),
    "langchain, bedrock": of_langchain(stopReason="max_tokens"),
    "langchain, ollama": of_langchain(done_reason="length"),
    "langchain, responses": of_langchain(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    "phoenix": phoenix(**{"llm.finish_reason": "length"}),
    "phoenix, openai's response": phoenix(**{"output.value": json.dumps({"choices": [{"finish_reason": "length"}]})}),
    "phoenix, anthropic's": phoenix(**{"output.value": json.dumps({**BLOCKS, "stop_reason": "max_tokens"})}),
    "phoenix, gemini's": phoenix(**{"output.value": json.dumps({"candidates": [{"finishReason": "MAX_TOKENS"}]})}),
    "phoenix, langchain's": phoenix(**{"output.value": json.dumps({"generations": [[LANGCHAIN_SAID]]})}),
    "phoenix, langchain's of anthropic": phoenix(
        **{"output.value": json.dumps(of_langchain(stop_reason="max_tokens")["outputs"])}
    ),
    "braintrust, openai": braintrust([{"index": 0, "message": SAID, "finish_reason": "length"}]),
    "braintrust, anthropic": braintrust({**BLOCKS, "stop_reason": "max_tokens"}),
    "weave, openai": weave({"choices": [{"index": 0, "message": SAID, "finish_reason": "length"}]}),
    "weave, anthropic": weave({"type": "message", **BLOCKS, "stop_reason": "max_tokens"}),
}


def ends(trajectory: Trajectory) -> list[tuple[str, str | None]]:
    return [(one.message.text, one.end) for placed in trajectory.calls for one in placed.call.choices]


@pytest.mark.parametrize("name", FILES)
def test_an_answer_that_was_cut_short_comes_in_as_one(name: str) -> None:
    _, [run] = read(lines(FILES[name]))
    assert ends(run) == [("Lisbon, which", "length")]
    [conversation] = conversations(run)
    assert conversation.unended == conversation.targets


@pytest.mark.parametrize("reason", ["stop", "length", None])
def test_what_broke_off_and_how_an_answer_ended_outlive_a_file_of_atif(reason: str | None, tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    run = Run("r")
    output = json.dumps([{**message("assistant", "Lisbon, which"), "finish_reason": reason}])
    cut = None if reason else "error"
    run.chat(
        "a", [message("user", "Where to?")], message("assistant", "Lisbon, which"), at=1, OUTPUT_MESSAGES=output,
        INTERRUPTED=cut,
    )  # fmt: skip
    with Store.open(data, create=True) as store:
        store.append([*run.end(), Reward(id="w", trajectory_id="r", value=1.0)])
        [before] = store.trajectories()
    write_dataset(data, tmp_path / "x.jsonl", "atif")
    _, [after] = read((tmp_path / "x.jsonl").read_bytes())
    assert ends(after) == ends(before) == [("Lisbon, which", reason)]
    assert [(one.unended, unsupported(one)) for one in conversations(after)] == [
        (one.unended, unsupported(one)) for one in conversations(before)
    ]
