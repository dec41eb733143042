"""Files for OpenAI's fine-tuning hold what the types of OpenAI's own library hold, strictly and nothing beside it.

The library types the messages and the tools; what the fine-tuning API adds (`weight`, the two outputs of a preference)
is restated from its reference: FineTuneChatRequestInput and FineTunePreferenceRequestInput.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NotRequired

import pytest
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)
from pydantic import ConfigDict, TypeAdapter, ValidationError
from simulated_agent import JsonMessage, Run, message, result
from stored_runs import store_runs, write_dataset
from typing_extensions import TypedDict

from arttrace.formats.datasets.chat import pair_row
from arttrace.formats.datasets.forms import Form, Unsuitable
from arttrace.records.message import Message, ReasoningPart, TextPart
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories.conversations import Conversation


class _Weighted(ChatCompletionAssistantMessageParam):
    weight: NotRequired[Literal[0, 1]]


_Message = (
    ChatCompletionSystemMessageParam
    | ChatCompletionDeveloperMessageParam
    | ChatCompletionUserMessageParam
    | _Weighted
    | ChatCompletionToolMessageParam
)


class _Chat(TypedDict):
    messages: list[_Message]
    tools: NotRequired[list[ChatCompletionFunctionToolParam]]


class _Input(TypedDict):
    messages: list[ChatCompletionMessageParam]
    tools: NotRequired[list[ChatCompletionFunctionToolParam]]


class _Preference(TypedDict):
    input: _Input
    preferred_output: list[ChatCompletionAssistantMessageParam]
    non_preferred_output: list[ChatCompletionAssistantMessageParam]


_STRICT = ConfigDict(strict=True, extra="forbid")
_READS = {
    "openai-sft": TypeAdapter(list[_Chat], config=_STRICT),
    "openai-dpo": TypeAdapter(list[_Preference], config=_STRICT),
}


def read(form: str, path: Path) -> list[dict[str, Any]]:
    """The rows, when they are what the library's types say."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert _whole(_READS[form].validate_python(rows)) == rows
    return rows


def _whole(value: Any) -> Any:
    """Some lists are checked only as they are read."""
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return value if isinstance(value, str) or not isinstance(value, Iterable) else [_whole(item) for item in value]


def runs_of_every_kind() -> list[Record]:
    """A few-shot example with a better and a worse answer; two tools at once, text beside a call, an image; tools
    called without ids, which answer with objects."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    shots = [message("user", "1+1"), message("assistant", "2"), message("user", "2+2")]
    records: list[Record] = []
    for number, (answer, reward) in enumerate((("4", 1.0), ("5", 0.0))):
        run = Run(f"shots-{number}", scenario="sum")
        run.chat("m", shots, message("assistant", answer), at=10)
        records += [*run.end(), Reward(f"r-{number}", f"shots-{number}", reward)]
    run = Run("tools")
    asked = [
        message("developer", "Look twice."),
        {"role": "user", "parts": [{"type": "text", "content": "what is it?"}, {"type": "other", "value": image}]},
    ]
    call = message("assistant", "Let me see.", calls=(("c1", "look", '{"at": 1}'), ("c2", "look", '{"at": 2}')))
    run.chat("m1", asked, call, at=10)
    later = [*asked, call, result("c1", "a cat"), result("c2", "a dog")]
    run.chat("m2", later, message("assistant", "A cat and a dog."), at=20)
    records += run.end(at=50)
    run = Run("gemini")
    names = ("look", "smell")
    parts = [{"type": "tool_call", "id": None, "name": name, "arguments": "{}"} for name in names]
    asked = [message("user", "what is it?"), {"role": "assistant", "parts": parts}]
    results: list[JsonMessage] = [
        {
            "role": "tool",
            "name": name,
            "parts": [{"type": "tool_call_response", "id": None, "response": {"result": name}}],
        }
        for name in reversed(names)
    ]
    run.chat("m1", asked[:1], asked[1], at=10)
    run.chat("m2", [*asked, *results], message("assistant", "A cat."), at=20)
    return [*records, *run.end(at=50)]


@pytest.mark.parametrize("form", ["openai-sft", "openai-dpo"])
def test_openais_types_take_every_row(tmp_path: Path, form: str) -> None:
    data = DataDir(tmp_path / ".arttrace")
    store_runs(data, groups=3)
    with Store.open(data) as store:
        store.append(runs_of_every_kind())
    write_dataset(data, tmp_path / "rows.jsonl", form)
    rows = read(form, tmp_path / "rows.jsonl")
    assert len(rows) == {"openai-sft": 16, "openai-dpo": 4}[form]
    text = json.dumps(rows)
    assert '"tools": [{"type": "function"' in text
    if form == "openai-sft":
        assert '"weight": 0' in text
        assert '"image_url": {"url"' in text
        assert '"role": "developer"' in text
        assert text.count('"tool_call_id": "c2"') == 1
        (asked, *results) = next(row["messages"] for row in rows if '"smell"' in json.dumps(row))[1:-1]
        assert [(call["function"]["name"], call["id"]) for call in asked["tool_calls"]] == [
            ("look", "call_0"), ("smell", "call_1"),
        ]  # fmt: skip
        assert [(one["tool_call_id"], one["content"]) for one in results] == [
            ("call_1", '{"result": "smell"}'), ("call_0", '{"result": "look"}'),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("openai-sft", {"messages": [{"role": "assistant", "content": "a", "weight": 2}]}),
        ("openai-sft", {"messages": [{"role": "tool", "content": "without the call that it answers"}]}),
        ("openai-sft", {"messages": [{"role": "user", "content": "a", "reasoning_content": "b"}]}),
        ("openai-sft", {"messages": [], "functions": []}),
        ("openai-dpo", {"input": {"messages": []}, "preferred_output": []}),
        ("openai-dpo", {"input": {"messages": []}, "preferred_output": [], "non_preferred_output": [{"role": "user"}]}),
    ],
)
def test_what_they_do_not_take(form: str, row: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValidationError):
        read(form, tmp_path / "rows.jsonl")


def test_a_preference_for_an_answer_with_reasoning_is_left_out() -> None:
    asked = Message("user", (TextPart("?"),))
    better, worse = (
        Conversation("t", "a", (asked, Message("assistant", (*thought, TextPart(said)))), (1,))
        for thought, said in (((ReasoningPart("hm"),), "yes"), ((), "no"))
    )
    with pytest.raises(Unsuitable, match="reasoning"):
        pair_row(Form.OPENAI_DPO, better, worse)
