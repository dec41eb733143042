"""What the rounds of docs/get-started.md teach reaches a question that none of them asks. No luck is in it: in place of
runs that were sampled each question has its right and wrong choice, and the model is asked for a probability.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from example_modules import load
from transformers import AutoTokenizer

from arttrace.records.sequence import TokenSequence
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import Sample
from trainer.learner.packed.engine import PackedLearner

ASKED = ("imported mango", "imported fig", "imported bean", "fresh bean", "frozen bean", "canned fig")
HELD_OUT = "imported plum"
ROUNDS = 4


class Choice:
    """A question of the quickstart's agent, and the call of one service in answer to it, as token ids."""

    def __init__(self, agent: Any, tokenizer: Any, question: str, service: str) -> None:
        messages = [{"role": "system", "content": agent.SYSTEM}, {"role": "user", "content": question}]
        made = {"name": service, "arguments": json.dumps({"item": question})}
        call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": made}]}

        def ids(messages: list[dict[str, Any]], **options: Any) -> list[int]:
            text = tokenizer.apply_chat_template(messages, tools=agent.TOOLS, tokenize=False, **options)
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])

        self.prompt = ids(messages, add_generation_prompt=True)
        whole = ids([*messages, call])
        assert whole[: len(self.prompt)] == self.prompt
        self.answer = whole[len(self.prompt) :]
        self.is_right = agent.quote(service, question).endswith("valid")
        self.name = f"{question}/{service}"

    def log_probabilities(self, learner: PackedLearner) -> list[float]:
        """Of each token of the answer, under the policy as it is now."""
        whole = torch.tensor([self.prompt + self.answer])
        with torch.no_grad():
            logits = learner.model(input_ids=whole).logits[0, len(self.prompt) - 1 : -1].log_softmax(-1)
        return [float(row[id]) for row, id in zip(logits, self.answer, strict=True)]

    def sample(self, learner: PackedLearner) -> Sample:
        """The run that made this choice, better or worse than the other one of its group."""
        before, length = len(self.prompt), len(self.answer)
        sequence = TokenSequence(
            trajectory_id=self.name,
            revision="1",
            agent_id="agent",
            token_ids=(*self.prompt, *self.answer),
            trained=(*(0,) * before, *(1,) * length),
            logprobs=(*(None,) * before, *self.log_probabilities(learner)),
            versions=(*(-1,) * before, *(0,) * length),
            policy_versions=("policy@0",),
            call_ids=(self.name,),
        )
        return Sample((sequence,), 1.0 if self.is_right else -1.0)


def test_the_rounds_teach_a_question_that_is_held_out(demo_base_model: Path) -> None:
    agent = load("quickstart/agent.py")
    tokenizer = AutoTokenizer.from_pretrained(demo_base_model)
    choices = [
        Choice(agent, tokenizer, question, service)
        for question in (*ASKED, HELD_OUT)
        for service in ("live_price", "list_price")
    ]
    *asked, held_out, wrong = choices
    assert held_out.is_right
    assert not wrong.is_right
    learner = make_learner(demo_base_model, LearnerConfig(learning_rate=5e-3, lora_rank=8))
    assert isinstance(learner, PackedLearner)

    def right() -> float:
        """How likely the right service is, of the two."""
        odds = torch.tensor([sum(one.log_probabilities(learner)) for one in (held_out, wrong)])
        return float(odds.softmax(0)[0])

    before = right()
    for _ in range(ROUNDS):
        learner.step([one.sample(learner) for one in asked])
    assert right() > before + 0.1, (before, right())
