"""The reasoning of an answer is learned where the chat template prints it; where it does not, that is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated_agent import JsonMessage, Run, message
from tiny_model import make_base_model

from arttrace.formats.content_ids import ContentIds
from arttrace.formats.conversations import Conversations
from arttrace.records.group import Group
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories
from trainer.offline.plan import OfflinePlan, plan_batches, plan_dpo, plan_sft
from trainer.step.left_out import left_out_lines

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SILENT = TEMPLATE.replace("<think>{{ m.reasoning_content }}</think>", "")
OF_THE_LAST_TURN = TEMPLATE.replace("{% if m.reasoning_content %}", "{% if m.reasoning_content and loop.last %}")
DROPPED = "reasoning that the chat template drops"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def tokenizer(base: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(base)


def answer(text: str, *thoughts: str) -> JsonMessage:
    thought = [{"type": "reasoning", "content": one} for one in thoughts]
    return {"role": "assistant", "parts": [*thought, {"type": "text", "content": text}]}


def run(*said: JsonMessage, id: str = "run", reward: float = 1.0) -> Trajectory:
    made = Run(id, scenario="s")
    history = [message("user", "Where to?")]
    for number, one in enumerate(said):
        made.chat(str(number), list(history), one, at=10 * number)
        history += [one, message("user", "Go on.")]
    [trajectory] = build_trajectories(made.end(), [Reward(f"w-{id}", id, reward)])
    return trajectory


def learned(tokenizer: Any, plan: OfflinePlan) -> str:
    return "".join(
        tokenizer.decode([token])
        for example in plan.sft
        for token, own in zip(example.token_ids, example.learned, strict=True)
        if own
    )


@pytest.mark.parametrize(
    ("template", "said", "dropped"),
    [
        (TEMPLATE, [answer("Lisbon", "By the sea.")], 0),
        (OF_THE_LAST_TURN, [answer("Lisbon", "By the sea."), answer("Porto", "Or north.")], 0),
        (TEMPLATE, [answer("Lisbon", "  By the", " sea.\n")], 0),
        (SILENT, [answer("Lisbon")], 0),
        (SILENT, [answer("Lisbon", " \n")], 0),
        (SILENT, [answer("Lisbon", "By the sea.")], 1),
        (SILENT, [answer("Lisbon", "By the sea."), answer("Porto"), answer("Faro", "South.")], 2),
        (SILENT, [answer("Lisbon, by the sea", "by the sea")], 1),
        (TEMPLATE, [answer("Lisbon, by the sea", "by the sea")], 0),
    ],
)
def test_reasoning_is_learned_or_counted(tokenizer: Any, template: str, said: list[JsonMessage], dropped: int) -> None:
    tokenizer.chat_template = template
    made = run(*said)
    by_groups = plan_sft([Group("s", (made,))], tokenizer, min_reward=0.0)
    by_batches = plan_batches([([made], 1e-3), ([made], 1e-3)], tokenizer)
    for plan in (by_groups, by_batches):
        assert plan.reasoning_dropped == dropped
        assert plan.left_out == ({DROPPED: dropped} if dropped else {})
        assert plan.conversations_left_out == {}
        assert "Lisbon" in learned(tokenizer, plan)
        assert ("<think>" in learned(tokenizer, plan)) == (template != SILENT)


SEA = "By the sea."


@pytest.mark.parametrize(
    "said",
    [
        {"content": "Lisbon", "reasoning_content": SEA},
        {"content": "Lisbon", "reasoning": SEA},
        {"content": "Lisbon", "reasoning_content": None, "reasoning": {"content": SEA}},
        {"content": "Lisbon", "thinking": SEA},
        {"content": "Lisbon", "reasoning_details": [{"type": "reasoning.text", "text": SEA, "signature": None}]},
        {"content": "Lisbon", "reasoning_details": [{"type": "reasoning.summary", "summary": SEA}, {"data": "x"}]},
        {"content": "Lisbon", "reasoning": SEA, "reasoning_details": [{"type": "reasoning.text", "text": SEA}]},
        {"content": "Lisbon", "thinking_blocks": [{"type": "thinking", "thinking": SEA, "signature": "x"}]},
        {"content": [{"type": "thinking", "thinking": SEA, "signature": "x"}, {"type": "text", "text": "Lisbon"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": SEA}]}, "Lisbon"]},
        {"content": [{"type": "reasoning", "text": SEA}, {"type": "text", "text": "Lisbon"}], "reasoning": SEA},
        {"content": [{"type": "reasoning", "reasoning": SEA}, {"type": "text", "text": "Lisbon"}]},
        {"content": [{"type": "reasoning", "summary": [{"text": SEA}]}, {"type": "text", "text": "Lisbon"}]},
    ],
    ids=lambda said: "-".join([*said, type(said["content"]).__name__]),
)
@pytest.mark.parametrize("template", [TEMPLATE, SILENT], ids=["printed", "silent"])
def test_it_is_learned_whatever_messages_call_it(tokenizer: Any, template: str, said: JsonMessage) -> None:
    tokenizer.chat_template = template
    messages = [{"role": "user", "content": "Where to?"}, {"role": "assistant", **said}]
    records = Conversations("file", ContentIds()).records({"messages": messages})
    [made] = build_trajectories([one for one in records if isinstance(one, SpanRow)])
    plan = plan_batches([([made], 1e-3)], tokenizer)
    assert (plan.conversations_left_out, plan.reasoning_dropped) == ({}, template == SILENT)
    assert learned(tokenizer, plan).count(f"<think>{SEA}</think>") == (template == TEMPLATE)


def test_a_preference_counts_it_on_both_sides(tokenizer: Any) -> None:
    tokenizer.chat_template = SILENT
    pair = run(answer("Lisbon", "Sea."), id="a"), run(answer("Paris", "River."), id="b", reward=0.0)
    plan = plan_dpo([Group("s", pair)], tokenizer)
    assert (len(plan.dpo), plan.reasoning_dropped) == (1, 2)


def test_it_is_said_of_how_many_answers() -> None:
    assert list(left_out_lines({}, reasoning_dropped=1)) == [f"left out: {DROPPED}, of 1 answer"]
    assert list(left_out_lines({}, reasoning_dropped=3)) == [f"left out: {DROPPED}, of 3 answers"]
    assert list(left_out_lines({})) == []
