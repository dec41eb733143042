"""Offline training: what is picked, how it is rendered and proven, and what SFT and DPO make of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from one_thread import one_thread as one_thread
from several_cards import two_cards as two_cards
from tiny_model import make_base_model

from arttrace.records.call import Call, Choice
from arttrace.records.group import Group
from arttrace.records.message import Message, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.reward import Reward
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Agent, AgentCall, MessageNode, Trajectory
from arttrace.rewards.selection import good_runs, preferences
from arttrace.system.errors import TrainingError
from arttrace.trajectories.conversations import Conversation, conversations
from trainer.learner.config import LearnerConfig
from trainer.learner.packed.head import Head, log_probabilities
from trainer.learner.policy_model import trainable
from trainer.offline.plan import Method, OfflinePlan, plan_dpo, plan_sft, require_examples
from trainer.offline.render import TrainingExample, Unprovable, render

PRICE = {"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}

TOOLS_TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As those of reasoning models: what was thought is kept in the last turn only.
FORGETFUL_TEMPLATE = TOOLS_TEMPLATE.replace(
    "{{ m['content'] or '' }}",
    "{% if loop.last or m.role != 'assistant' %}{{ m['content'] or '' }}{% else %}.{% endif %}",
)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def tokenizer(base: Path) -> Any:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(base)
    loaded.chat_template = TOOLS_TEMPLATE
    return loaded


def run(id: str, answer: str, reward: float | None, *, advice: str = "It is 3.") -> Trajectory:
    """A system prompt, a question, a tool call with its result, an answer put into the assistant's mouth, an answer."""
    messages = [
        Message("system", (TextPart("You sell."),)),
        Message("user", (TextPart("A pear?"),)),
        Message("assistant", (ToolCallPart("price", '{"fruit": "pear"}', "c1"),)),
        Message("tool", (ToolResultPart("3", "c1"),)),
        Message("assistant", (TextPart("(copied)"),)),
        Message("user", (TextPart("Well?"),)),
        Message("assistant", (TextPart(answer),)),
    ]
    sampled = {2: f"{id}-a", 6: f"{id}-b"}
    nodes = tuple(
        MessageNode(
            f"{id}-{at}",
            "root",
            f"{id}-{at - 1}" if at else None,
            message,
            ((sampled[at], 0),) if at in sampled else (),
        )
        for at, message in enumerate(messages)
    )
    calls = tuple(
        AgentCall(
            Call(span, "t", None, at, at + 1, tools=(PRICE,), choices=(Choice(0, messages[at]),)),
            "root",
            f"{id}-{at - 1}",
            (f"{id}-{at}",),
        )
        for at, span in sampled.items()
    )
    return Trajectory(
        id=id,
        revision="r",
        scenario="pears",
        agents=(Agent("root", "seller"),),
        calls=calls,
        nodes=nodes,
        rewards=() if reward is None else (Reward(f"w-{id}", id, reward),),
    )


def learned_text(tokenizer: Any, example: TrainingExample) -> list[str]:
    """The learned stretches of an example, decoded."""
    stretches: list[list[int]] = []
    for at, (id, learned) in enumerate(zip(example.token_ids, example.learned, strict=True)):
        if learned:
            if not (at and example.learned[at - 1]):
                stretches.append([])
            stretches[-1].append(id)
    return [tokenizer.decode(stretch) for stretch in stretches]


def test_only_what_the_run_sampled_is_a_target() -> None:
    (conversation,) = conversations(run("a", "3 each", 1.0))
    assert conversation.targets == (2, 6), "the copied answer is context"
    assert conversation.tools == (PRICE,)
    assert [message["role"] for message in conversation.chat()] == [
        "system", "user", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip


def test_the_learned_tokens_spell_the_answers_and_nothing_else(tokenizer: Any) -> None:
    (example,) = render(conversations(run("a", "3 each", 1.0))[0], tokenizer)
    assert learned_text(tokenizer, example) == ['[price {"fruit": "pear"}]<|im_end|>', "3 each<|im_end|>"]
    assert '"name": "price"' in tokenizer.decode(example.token_ids), "the tools that were offered are in the prompt"


def test_a_template_that_forgets_gets_one_example_per_answer(tokenizer: Any) -> None:
    tokenizer.chat_template = FORGETFUL_TEMPLATE
    examples = render(conversations(run("a", "3 each", 1.0))[0], tokenizer)
    assert [learned_text(tokenizer, example) for example in examples] == [
        ['[price {"fruit": "pear"}]<|im_end|>'],
        ["3 each<|im_end|>"],
    ]


def test_answers_that_a_pair_does_not_learn_since_the_template_forgets_are_counted(tokenizer: Any) -> None:
    """As Qwen 3's forgets of answers without reasoning: of an agent with tools, DPO learned the last answer alone."""
    pair = Group("pears", (run("a", "3 each", 1.0), run("b", "no", 0.0)))
    whole = plan_dpo([pair], tokenizer)
    assert whole.conversations_left_out == {}
    tokenizer.chat_template = FORGETFUL_TEMPLATE
    forgetful = plan_dpo([pair], tokenizer)
    [(better, _)] = forgetful.dpo
    assert learned_text(tokenizer, better) == ["3 each<|im_end|>"]
    [(reason, count)] = forgetful.conversations_left_out.items()
    assert (count, reason) == (2, NotTrained.EARLIER_ANSWERS)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (TOOLS_TEMPLATE.replace("[{{ c.function.name }}", "["), "drops or changes 'price'"),
        (TOOLS_TEMPLATE.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>bot\n{% endif %}"), "ends a prompt"),
        ("{{ raise_exception('no tools here') }}", "refuses it: no tools here"),
    ],
)
def test_what_cannot_be_proven_is_left_out_with_the_reason(tokenizer: Any, template: str, reason: str) -> None:
    tokenizer.chat_template = template
    with pytest.raises(Unprovable, match=reason):
        render(conversations(run("a", "3 each", 1.0))[0], tokenizer)
    plan = plan_sft([Group("pears", (run("a", "3 each", 1.0), run("b", "no", 0.0)))], tokenizer)
    assert plan.sft == ()
    (shown,) = plan.conversations_left_out
    assert reason in shown
    with pytest.raises(Exception, match="nothing to train on by SFT"):
        require_examples(plan)


def test_parallel_calls_of_which_a_template_prints_one_are_not_learned(tokenizer: Any) -> None:
    """As gpt-oss's does: a model was taught to end its turn behind the first of them."""
    asked = Message("user", (TextPart("Prices?"),))
    calls = tuple(ToolCallPart("price", f'{{"fruit": "{id}"}}', id) for id in ("fig", "kiwi"))
    both = Message("assistant", (TextPart("Prices: "), *calls))
    conversation = Conversation("run", "agent", (asked, both), (1,), (PRICE,))
    (example,) = render(conversation, tokenizer)
    both_calls = '[price {"fruit": "fig"}][price {"fruit": "kiwi"}]'
    assert learned_text(tokenizer, example) == [f"Prices: {both_calls}<|im_end|>"]
    tokenizer.chat_template = TOOLS_TEMPLATE.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
    with pytest.raises(Unprovable, match="drops or changes one of 2 calls of 'price'"):
        render(conversation, tokenizer)


def group(*rewards: float | None) -> Group:
    return Group("pears", tuple(run(f"t{n}", f"answer {n}", reward) for n, reward in enumerate(rewards)))


def test_good_runs() -> None:
    best = good_runs([group(0.0, 1.0, 0.5, None, 1.0), group(0.5, 0.5), group(1.0)])
    assert [one.id for one in best.runs] == ["t1", "t4"]
    assert best.left_out == {
        "no reward": 1, "not the best of its group": 2, "in a group of equal rewards": 2, "alone in its group": 1,
    }  # fmt: skip
    bound = good_runs([group(0.0, 1.0, 0.5), group(0.5, 0.5), group(1.0)], min_reward=0.5)
    assert len(bound.runs) == 5
    assert bound.left_out == {"a reward below the bound": 1}


def test_the_second_best_is_not_the_best_because_the_best_was_learned_before() -> None:
    taken = group(0.0, 1.0, 0.5, 1.0)
    rest = good_runs([taken, group(0.5, 0.5)], used={"t1"})
    assert [one.id for one in rest.runs] == ["t3"]
    assert rest.left_out == {"not the best of its group": 2, "in a group of equal rewards": 1}
    assert good_runs([taken], used={"t1", "t3"}).runs == ()
    assert [one.id for one in good_runs([taken], min_reward=0.5, used={"t1"}).runs] == ["t2", "t3"]


def test_preferences() -> None:
    found = preferences([group(0.0, 1.0, 0.65, 0.5, 0.55), group(0.5, 0.5), group(1.0)])
    assert [(better.id, worse.id) for better, worse in found.pairs] == [("t1", "t0"), ("t2", "t3")]
    assert found.left_out == {"too close to the others' rewards": 3, "alone in its group": 1}


def test_a_run_without_a_judge_s_score_is_not_compared_with_those_that_have_one() -> None:
    *judged, by_code = group(1.0, 1.0, 1.0).trajectories
    scores = [Reward(id="j", trajectory_id="", value=value, source="judge") for value in (0.1, 0.4)]
    scored = (
        msgspec.structs.replace(one, rewards=(*one.rewards, score)) for one, score in zip(judged, scores, strict=True)
    )
    mixed = Group("pears", (*scored, by_code))
    assert [one.id for one in good_runs([mixed]).runs] == ["t1"]
    assert [(better.id, worse.id) for better, worse in preferences([mixed]).pairs] == [("t1", "t0")]
    for found in (good_runs([mixed]), preferences([mixed])):
        assert found.left_out["rewarded otherwise than its group"] == 1
    assert [one.id for one in good_runs([mixed], min_reward=0.9).runs] == ["t2"]  # compared with the bound alone


def negative_log_likelihood(model: Any, example: TrainingExample) -> float:
    ids = torch.tensor(example.token_ids)
    with torch.no_grad():
        hidden = model.get_base_model().get_decoder()(input_ids=ids[None]).last_hidden_state[0]
        logps, _ = log_probabilities(Head.of(model), hidden[:-1], ids[1:], torch.ones(len(ids) - 1))
    learned = torch.tensor(example.learned[1:])
    return -float(logps[learned].mean())


def test_sft_learns_the_good_answers_from_the_true_loss(base: Path, tokenizer: Any, tmp_path: Path) -> None:
    from trainer.offline.train import OfflineLearner

    shown: list[tuple[int, int]] = []
    plan = plan_sft([group(0.0, 1.0, 1.0)], tokenizer, progress=lambda total: lambda done: shown.append((done, total)))
    assert shown == [(1, 2), (2, 2)]
    config = LearnerConfig(lora_rank=8, learning_rate=1e-2, epochs=20)
    learner = OfflineLearner(base, config)
    counts = [sum(example.learned) for example in plan.sft]
    wanted = sum(
        count * negative_log_likelihood(learner.model, example) for count, example in zip(counts, plan.sft, strict=True)
    ) / sum(counts)
    metrics = learner.train(plan, tokenizer)
    assert metrics.first_loss == pytest.approx(wanted, rel=1e-4)
    assert metrics.tokens_trained == sum(counts)
    assert metrics.optimizer_steps == 20
    assert metrics.last_loss < wanted / 3
    learner.save_adapter(tmp_path)
    learner.save_rest(tmp_path)
    again = OfflineLearner(base, config)
    again.load(tmp_path, "sft")
    assert again.steps == 1
    assert again.train(plan, tokenizer).first_loss == learner.train(plan, tokenizer).first_loss


@pytest.mark.parametrize("plan_of", [plan_sft, plan_dpo])
def test_beside_a_base_model_in_4_bits_the_lora_stays_in_float32(
    base: Path, tokenizer: Any, plan_of: Callable[..., OfflinePlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark stands in for the bits, which need a card: it is what TRL's trainers look at."""
    from trainer.offline.train import OfflineLearner

    monkeypatch.setattr("transformers.PreTrainedModel.is_loaded_in_4bit", True, raising=False)
    monkeypatch.setattr("transformers.Trainer.floating_point_ops", lambda *_, **__: 0)  # counts such bits
    learner = OfflineLearner(base, LearnerConfig(lora_rank=8, dtype="bfloat16", epochs=2))
    first = {name: weight.detach().clone() for name, weight in trainable(learner.model).items()}
    learner.train(plan_of([group(0.0, 1.0)], tokenizer), tokenizer)
    weights = trainable(learner.model)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    moved = [float((weight != first[name]).float().mean()) for name, weight in weights.items() if "lora_A" in name]
    assert min(moved) > 0.5, "in bfloat16 most stay where they are"


@pytest.mark.parametrize("plan_of", [plan_sft, plan_dpo])
def test_of_several_cards_one_is_trained_on(
    base: Path, tokenizer: Any, plan_of: Callable[..., OfflinePlan], two_cards: None
) -> None:
    from trainer.offline.train import OfflineLearner

    learner = OfflineLearner(base, LearnerConfig(lora_rank=8))
    assert learner.train(plan_of([group(0.0, 1.0)], tokenizer), tokenizer).optimizer_steps == 1


@pytest.mark.parametrize("plan_of", [plan_sft, plan_dpo])
def test_a_mixture_of_experts_learns_answers_and_no_balance_of_its_router(
    tokenizer: Any, plan_of: Callable[..., OfflinePlan], tmp_path: Path
) -> None:
    """TRL adds the balance by the weight that the model was trained with itself: 0.9 in gpt-oss."""
    from trainer.offline.train import OfflineLearner

    base = make_base_model(tmp_path, family="gpt_oss")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "router_aux_loss_coef": 0.9, "output_router_logits": True}))
    plan = plan_of([group(0.0, 1.0)], tokenizer)
    learner = OfflineLearner(base, LearnerConfig(lora_rank=8))
    wanted = negative_log_likelihood(learner.model, plan.sft[0]) if plan.sft else math.log(2)
    assert learner.train(plan, tokenizer).loss == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("plan_of", [plan_sft, plan_dpo])
def test_beside_a_base_model_in_bfloat16_the_lora_is_multiplied_in_bfloat16(
    base: Path, tokenizer: Any, plan_of: Callable[..., OfflinePlan]
) -> None:
    from trainer.offline.train import OfflineLearner

    learner = OfflineLearner(base, LearnerConfig(lora_rank=8, learning_rate=1e-2, epochs=3, dtype="bfloat16"))
    given: set[torch.dtype] = set()
    for name, module in learner.model.named_modules():
        if name.endswith("lora_A.default"):
            module.register_forward_hook(lambda _module, _inputs, out: given.add(out.dtype))
    metrics = learner.train(plan_of([group(0.0, 1.0)], tokenizer), tokenizer)
    assert given == {torch.bfloat16}
    assert metrics.last_loss < metrics.first_loss
    assert {parameter.dtype for parameter in trainable(learner.model).values()} == {torch.float32}


def test_dpo_comes_to_prefer_the_better_run_and_reads_no_tool_result_as_an_answer(base: Path, tokenizer: Any) -> None:
    from trainer.offline.train import OfflineLearner

    plan = plan_dpo([group(0.0, 1.0), group(0.2, 0.9)], tokenizer)
    assert len(plan.dpo) == 2
    learner = OfflineLearner(base, LearnerConfig(lora_rank=8, learning_rate=5e-3, epochs=20))
    metrics = learner.train(plan, tokenizer)
    assert metrics.first_loss == pytest.approx(math.log(2), abs=1e-3), "the model before is the reference"
    assert metrics.last_loss < 0.3
    assert metrics.accuracy > 0.8
    assert not [name for name in dict(learner.model.named_parameters()) if ".ref." in name]


def pairs(tokenizer: Any, count: int) -> OfflinePlan:
    """Pairs of different lengths, so that each has a gradient of its own."""
    made = []
    for number in range(count):
        answers = {"a" * (1 + 3 * number): 1.0, "b" * (1 + number): 0.0}
        runs = (run(f"p{number}-{answer}", answer, reward) for answer, reward in answers.items())
        made.append(Group(f"g{number}", tuple(runs)))
    return plan_dpo(made, tokenizer)


def test_every_pair_of_an_optimizer_step_counts_alike(base: Path, tokenizer: Any) -> None:
    """Two go through the model at a time, and the third alone. The gradient at the reference is known: half of beta
    times that of the two log-probabilities' difference."""
    from trainer.offline.train import OfflineLearner

    plan, beta = pairs(tokenizer, 3), 0.1
    learner = OfflineLearner(base, LearnerConfig(lora_rank=8))
    for chosen, rejected in plan.dpo:
        for sign, example in ((-1, chosen), (1, rejected)):
            ids = torch.tensor(example.token_ids)
            hidden = learner.model.get_base_model().get_decoder()(input_ids=ids[None]).last_hidden_state[0]
            logps, _ = log_probabilities(Head.of(learner.model), hidden[:-1], ids[1:], torch.ones(len(ids) - 1))
            (sign * beta / 2 / 3 * logps[torch.tensor(example.learned[1:])].sum()).backward()
    gradients = [weight.grad.flatten() for weight in trainable(learner.model).values()]
    wanted = float(torch.cat(gradients).norm())
    learner.model.zero_grad(set_to_none=True)
    metrics = learner.train(plan, tokenizer, beta=beta)
    assert metrics.optimizer_steps == 1, "three are fewer than a step takes"
    assert metrics.first_loss == pytest.approx(math.log(2), abs=1e-5)
    assert metrics.grad_norm == pytest.approx(wanted, rel=1e-4)


def test_the_share_of_preferred_pairs_is_one_of_pairs(base: Path, tokenizer: Any) -> None:
    """None of the eight pairs of the first step is preferred by the reference; the one of the second is, after it."""
    from trainer.offline.train import OfflineLearner

    metrics = OfflineLearner(base, LearnerConfig(lora_rank=8, learning_rate=1e-2)).train(pairs(tokenizer, 9), tokenizer)
    assert metrics.optimizer_steps == 2
    assert metrics.accuracy == pytest.approx(1 / 9)


@pytest.mark.parametrize(("conversations", "steps"), [(1, 1), (3, 1), (7, 1), (8, 1), (9, 2)])
def test_a_step_of_sft_takes_eight_conversations(base: Path, tokenizer: Any, conversations: int, steps: int) -> None:
    from trainer.offline.train import OfflineLearner

    plan = plan_sft(
        [Group("g", (run(f"t{n}", "3" * (n + 1), 1.0),)) for n in range(conversations)], tokenizer, min_reward=1.0
    )
    learner = OfflineLearner(base, LearnerConfig(lora_rank=8))
    counts = [sum(example.learned) for example in plan.sft]
    wanted = sum(
        count * negative_log_likelihood(learner.model, example) for count, example in zip(counts, plan.sft, strict=True)
    ) / sum(counts)
    metrics = learner.train(plan, tokenizer)
    assert metrics.optimizer_steps == steps
    if steps == 1:
        assert metrics.loss == pytest.approx(wanted, rel=1e-4)


def test_the_masks_given_to_dpo_are_those_of_the_examples(tokenizer: Any) -> None:
    from trainer.offline.train import _GivenMasks, _pair

    ((chosen, rejected),) = plan_dpo([group(0.0, 1.0)], tokenizer).dpo
    batch = _GivenMasks(pad_token_id=0)([_pair(chosen, rejected)])
    for row, example in zip(batch["completion_mask"], (chosen, rejected), strict=True):
        assert row[: len(example.learned)].bool().tolist() == list(example.learned)
        assert not row[len(example.learned) :].any()
    for row, example in zip(batch["input_ids"], (chosen, rejected), strict=True):
        assert row[: len(example.token_ids)].tolist() == list(example.token_ids)


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_tokenizer_of_another_model_is_reported_before_training(base: Path, tokenizer: Any, method: Method) -> None:
    from trainer.offline.train import OfflineLearner

    good, strange = TrainingExample((1, 2), (False, True)), TrainingExample((1, 99_999), (False, True))
    plan = OfflinePlan(method, sft=(good, strange)) if method == "sft" else OfflinePlan(method, dpo=((good, strange),))
    with pytest.raises(TrainingError, match="99999, outside the base model's vocabulary") as raised:
        OfflineLearner(base, LearnerConfig(lora_rank=8)).train(plan, tokenizer)
    assert "tokenizer" in raised.value.hint


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_memory_that_runs_out_says_what_to_lower(
    base: Path, tokenizer: Any, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.offline import train

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(train.SFTTrainer if method == "sft" else train.DPOTrainer, "training_step", full)
    plan = (plan_sft if method == "sft" else plan_dpo)([group(0.0, 1.0)], tokenizer)
    learner = train.OfflineLearner(base, LearnerConfig(lora_rank=8))
    with pytest.raises(TrainingError, match="needs more memory than there is: CUDA out of memory") as raised:
        learner.train(plan, tokenizer)
    assert "--max-length" in raised.value.hint
    assert learner.steps == 0
