"""The base model: rows and their masks, and a build on few demonstrations that is repeatable, atomic and loadable."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from arttrace.system.errors import TrainingError
from trainer.demo.model import build as base_model
from trainer.demo.model.build import build_base_model, prepare
from trainer.demo.model.demonstrations import Demonstration
from trainer.demo.scenarios import draw
from trainer.demo.teacher import Teacher

PARAMETER = {"type": "object", "properties": {"item": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": PARAMETER}}]


def simple(count):
    """Calls whose reply is the word that was asked for."""
    words = ("fig", "plum", "bean", "onion")
    return [
        Demonstration([{"role": "user", "content": w}], TOOLS, {"role": "assistant", "content": w}) for w in words
    ] * count


async def demonstrate(agent, world, runs):
    agent.play(Teacher(1).reply)
    for scenario in draw(world, runs, "1", held_out=False):
        await agent.module.answer(scenario.question, scenario.day)
    return list(agent.calls)


async def test_calls_that_continue_one_another_share_a_row(agent, world):
    calls = await demonstrate(agent, world, 40)
    tokenizer, rows = prepare(calls)
    assert len(calls) == 240
    assert len(rows) == 120, "planner and two checkers, two calls each"
    replied = sorted(
        tokenizer.decode([id for id, reply in zip(row.ids, row.replies, strict=True) if reply]) for row in rows
    )
    assert sum(text.count("<|im_end|>") for text in replied) == 240
    assert max(len(row.ids) for row in rows) < 110
    assert tokenizer.unk_token_id not in {id for row in rows for id in row.ids}


async def test_only_the_choice_of_a_service_is_left_to_chance(agent, world):
    tokenizer, rows = prepare(await demonstrate(agent, world, 400))
    uncertain = {
        tokenizer.decode([id])
        for row in rows
        for id, reply, odds in zip(row.ids, row.replies, row.odds, strict=True)
        if reply and len(odds) > 1
    }
    assert uncertain == {"live_price", "list_price"}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_left_to_chance_is_learned_with_its_odds(seed, tmp_path, monkeypatch):
    """One outcome at a time, the last ones of a training would count for more than the first."""
    monkeypatch.setattr(base_model, "_CHECK_EVERY", 10)
    monkeypatch.setattr(base_model, "_ANNEAL_STEPS", 60)
    words, share = ("fig", "plum", "bean"), {"fig": 0.3, "plum": 0.5, "bean": 0.9}
    calls = [
        Demonstration([{"role": "user", "content": word}], TOOLS, {"role": "assistant", "content": reply})
        for word in words
        for reply in ["yes"] * round(30 * share[word]) + ["no"] * round(30 * (1 - share[word]))
    ]
    built = build_base_model(calls, seed, tmp_path / "base")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(built.path), AutoTokenizer.from_pretrained(built.path)
    for word in words:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": word}], tools=TOOLS, add_generation_prompt=True, return_tensors="pt"
        )["input_ids"]
        with torch.no_grad():
            learned = torch.softmax(model(prompt).logits[0, -1], -1)[tokenizer.convert_tokens_to_ids("yes")]
        assert float(learned) == pytest.approx(share[word], abs=0.03)


async def test_rows_do_not_depend_on_the_order_of_demonstrations(agent, world):
    calls = await demonstrate(agent, world, 20)
    shuffled = random.Random(1).sample(calls, len(calls))
    assert prepare(calls)[1] == prepare(shuffled)[1]


def test_a_built_model_loads_and_says_what_it_was_taught(tmp_path, monkeypatch):
    for number, value in {"_ANNEAL_STEPS": 20, "_CHECK_EVERY": 10, "_BATCH_ROWS": 4}.items():
        monkeypatch.setattr(base_model, number, value)
    lines = []
    built = build_base_model(simple(8), 1, tmp_path / "base", progress=lines.append)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(built.path), AutoTokenizer.from_pretrained(built.path)
    assert built.parameters == sum(weight.numel() for weight in model.parameters())
    assert lines[-1].startswith(f"step {built.steps}: 100.00%")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "plum"}], tools=TOOLS, add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    said = model.generate(prompt, max_new_tokens=3, do_sample=False)[0, prompt.shape[1] :]
    assert tokenizer.decode(said) == "plum<|im_end|>"
    again = build_base_model(simple(8)[::-1], 1, tmp_path / "again")
    weights = AutoModelForCausalLM.from_pretrained(again.path).state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "base"]


def test_a_form_that_is_not_learned_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(base_model, "_MAX_STEPS", 25)
    monkeypatch.setattr(base_model, "_LEARNING_RATE", 0.0)
    with pytest.raises(TrainingError, match="25 steps"):
        build_base_model(simple(8), 1, tmp_path / "base")
    assert not list(tmp_path.iterdir())


def test_no_demonstrations_are_reported(tmp_path):
    with pytest.raises(TrainingError, match="no demonstrations"):
        build_base_model([], 1, tmp_path / "base")
