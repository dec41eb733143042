"""SFT and DPO learn an answer that was cut short as far as it goes, and no end mark behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated_agent import JsonMessage, Run, message
from tiny_model import make_base_model

from arttrace.records.group import Group
from arttrace.records.reward import Reward
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.conversations import conversations
from trainer.offline.plan import plan_dpo, plan_sft
from trainer.offline.render import TrainingExample, Unprovable, render

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
START = [message("user", "Where to?")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def tokenizer(base: Path) -> Any:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(base)
    loaded.chat_template = TEMPLATE
    return loaded


def run(*said: tuple[JsonMessage | str, str], id: str = "run", reward: float | None = None) -> Trajectory:
    """One run of answers, each with the reason of its end, and `Go on.` after each."""
    made = Run(id, scenario="s")
    history = list(START)
    for number, (given, reason) in enumerate(said):
        answer = message("assistant", given) if isinstance(given, str) else given
        output = json.dumps([{**answer, "finish_reason": reason}])
        made.chat(str(number), list(history), answer, at=10 * number, OUTPUT_MESSAGES=output)
        history += [answer, message("user", "Go on.")]
    rewards = [] if reward is None else [Reward(f"w-{id}", id, reward)]
    [trajectory] = build_trajectories(made.end(), rewards)
    return trajectory


def learned(tokenizer: Any, example: TrainingExample) -> str:
    """What is learned, with `|` in the place of what is not."""
    shown, before = "", False
    for token, own in zip(example.token_ids, example.learned, strict=True):
        shown += tokenizer.decode([token]) if own else "|" * before
        before = own
    return shown


def rendered(tokenizer: Any, *said: tuple[JsonMessage | str, str]) -> list[str]:
    [conversation] = conversations(run(*said))
    return [learned(tokenizer, example) for example in render(conversation, tokenizer)]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_the_end_mark_of_an_answer_that_was_cut_short_is_not_learned(tokenizer: Any, reason: str) -> None:
    assert rendered(tokenizer, ("Lisbon, which", "stop")) == ["Lisbon, which<|im_end|>"]
    assert rendered(tokenizer, ("Lisbon, which", reason)) == ["Lisbon, which"]


@pytest.mark.parametrize("word", ["e", "im", "1", "<", "Lisbon. ", " \n yes\n"])
def test_a_classifier_that_is_asked_for_one_token_stays_trainable(tokenizer: Any, word: str) -> None:
    """What is said may be part of the mark behind it."""
    assert [one.strip() for one in rendered(tokenizer, (word, "length"))] == [word.strip()]


def test_a_past_turn_that_was_cut_short_is_learned_without_the_mark_behind_it(tokenizer: Any) -> None:
    assert rendered(tokenizer, ("Lisbon, which", "length"), ("is", "length"), ("Portugal.", "stop")) == [
        "Lisbon, which|is|Portugal.<|im_end|>"
    ]


def test_a_thought_that_was_cut_short_does_not_end(tokenizer: Any) -> None:
    thought = {"role": "assistant", "parts": [{"type": "reasoning", "content": "Let me see"}]}
    assert rendered(tokenizer, ("Lisbon.", "stop"), (thought, "length")) == ["Lisbon.<|im_end|>|<think>Let me see"]
    tokenizer.chat_template = TEMPLATE.replace("<think>{{ m.reasoning_content }}</think>", "")
    assert rendered(tokenizer, ("Lisbon.", "stop"), (thought, "length")) == ["Lisbon.<|im_end|>|"], "nothing to learn"


def test_an_answer_of_which_nothing_came_teaches_nothing(tokenizer: Any) -> None:
    assert rendered(tokenizer, (" ", "length"), ("Lisbon.", "stop")) == ["Lisbon.<|im_end|>"]
    assert rendered(tokenizer, ("Lisbon.", "stop"), (" ", "length")) == ["Lisbon.<|im_end|>|"]


def test_a_template_that_does_not_say_where_the_answer_stops(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATE.replace("{{ m.content }}", "{{ m.content }}{{ m.content | length }}")
    [conversation] = conversations(run(("Lisbon, which", "length")))
    with pytest.raises(Unprovable, match=NotTrained.NO_STOP):
        render(conversation, tokenizer)


def test_sft_and_dpo_are_given_no_end_mark_behind_what_was_cut_short(tokenizer: Any) -> None:
    better = run(("Lisbon, which", "length"), id="a", reward=1.0)
    worse = run(("Paris, wh", "length"), id="b", reward=0.0)
    group = Group("s", (better, worse))
    [example] = plan_sft([group], tokenizer).sft
    assert learned(tokenizer, example) == "Lisbon, which"
    [(chosen, rejected)] = plan_dpo([group], tokenizer).dpo
    assert (learned(tokenizer, chosen), learned(tokenizer, rejected)) == ("Lisbon, which", "Paris, wh")
    for one in (example, chosen, rejected):
        assert one.learned[-1], "nothing stands behind it"
