"""Every family of models in the documentation's table: trained a step by both engines, which agree; others are refused
by name before their weights are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
import torch
from tiny_model import VOCABULARY, make_base_model

from arttrace.records.sequence import TokenSequence
from arttrace.system.errors import TrainingError
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.interface import Sample
from trainer.learner.policy_model import fitted_to_machine
from trainer.offline.plan import OfflinePlan
from trainer.offline.render import TrainingExample
from trainer.offline.step import load_tokenizer
from trainer.offline.train import OfflineLearner

DOCS = Path(__file__).parents[3] / "docs" / "train" / "models.md"
FAMILIES = ("gemma2", "gemma3_text", "gpt_oss", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe")


def sample(number: int, advantage: float) -> Sample:
    """A run of 8 tokens of prompt and 24 sampled ones; all runs share their first 6."""
    generator = torch.Generator().manual_seed(number)
    ids = [1, 5, 9, 13, 17, 21, *torch.randint(3, VOCABULARY, (26,), generator=generator).tolist()]
    trained = [0] * 8 + [1] * 24
    one = TokenSequence(
        trajectory_id=f"t{number}",
        revision="r",
        agent_id="root",
        token_ids=tuple(ids),
        trained=tuple(trained),
        logprobs=tuple(-5.0 if flag else None for flag in trained),
        versions=tuple(0 if flag else -1 for flag in trained),
        policy_versions=("p@9",),
        call_ids=("c",),
    )
    return Sample((one,), advantage)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_engines_train_it_alike(family: str, tmp_path: Path) -> None:
    base_model = make_base_model(tmp_path, family=family)
    found: dict[str, Any] = {}
    for engine in ("packed", "trl"):
        learner = make_learner(
            base_model,
            LearnerConfig(engine=engine, lora_rank=8, max_logprob_difference=1e6),  # type: ignore[arg-type]
        )
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, parameter in sorted(learner.model.named_parameters()):
                if "lora_B" in name:
                    parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
        found[engine] = learner.step([sample(1, 0.5), sample(2, -0.5)])
        assert found[engine].trained_tokens == 48
    assert found["packed"].grad_norm > 1e-3
    for number in ("loss", "grad_norm", "entropy", "ratio_mean"):
        ours, theirs = (getattr(found[engine], number) for engine in ("packed", "trl"))
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5), number
    assert found["packed"].forwarded_tokens < found["trl"].forwarded_tokens, "what begins alike is computed once"


@pytest.mark.parametrize(
    ("family", "trained_by"),
    [("gemma2", "packed"), ("gemma2", "trl"), ("gemma2", "sft"), ("granite", "trl"), ("granite", "sft")],
)
def test_what_a_model_does_to_its_scores_and_logits_is_computed(family: str, trained_by: str, tmp_path: Path) -> None:
    """Gemma 2 bounds its attention's scores, Granite divides its logits: as in the model's own forward pass."""
    from transformers import AutoModelForCausalLM

    base_model = make_base_model(tmp_path, family=family)
    (sequence,) = sample(1, 0.5).sequences
    ids = torch.tensor(sequence.token_ids)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(base_model, attn_implementation="eager")(ids[None]).logits[0, :-1]
    whole = [None, *torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0].tolist()]
    captured = [logp if flag else None for logp, flag in zip(whole, sequence.trained, strict=True)]
    if trained_by == "sft":
        example = TrainingExample(sequence.token_ids, tuple(map(bool, sequence.trained)))
        offline = OfflineLearner(base_model, LearnerConfig(lora_rank=8))
        loss = offline.train(OfflinePlan("sft", sft=(example,)), load_tokenizer(base_model)).loss
        assert loss == pytest.approx(-fmean(filter(None, captured)), abs=1e-4)
        return
    learner = make_learner(base_model, LearnerConfig(engine=trained_by, lora_rank=8))  # type: ignore[arg-type]
    step = learner.step([Sample((msgspec.structs.replace(sequence, logprobs=tuple(captured)),), 0.5)])
    assert step.logprob_difference_max < 1e-4


@pytest.mark.parametrize("engine", ["packed", "trl"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_that_was_trained_with_dropout_is_trained_without(
    engine: str, checkpointing: bool, tmp_path: Path
) -> None:
    """Its attention, its residuals and its embeddings drop a part; the same weights without that give the numbers."""
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    found = []
    for rate in (0.0, 0.5):
        torch.manual_seed(0)
        config = Starcoder2Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=128, initializer_range=0.2,
            attention_dropout=rate, residual_dropout=rate, embedding_dropout=rate,
        )  # fmt: skip
        Starcoder2ForCausalLM(config).save_pretrained(tmp_path / str(rate))
        learner = make_learner(
            tmp_path / str(rate),
            LearnerConfig(engine=engine, gradient_checkpointing=checkpointing, max_logprob_difference=1e6),  # type: ignore[arg-type]
        )
        found.append(learner.step([sample(1, 0.5), sample(2, -0.5)]))
    plain, dropping = found
    assert (dropping.loss, dropping.grad_norm) == (plain.loss, plain.grad_norm)
    assert plain.grad_norm > 1e-3


@pytest.mark.parametrize("targets", [None, ("q_proj", "o_proj")])
def test_of_a_model_that_sees_images_the_text_part_alone_is_trained(targets: Any, tmp_path: Path) -> None:
    """Gemma 3 from 4B on. An engine leaves out what a LoRA has for the part that sees."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32,
        "num_attention_heads": 2, "num_key_value_heads": 1, "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8, "query_pre_attn_scalar": 32, "initializer_range": 0.2,
    }  # fmt: skip
    sees = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = Gemma3Config(text_config=text, vision_config={**sees, "image_size": 28, "patch_size": 14})
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    found = {}
    for engine in ("packed", "trl"):
        settings = LearnerConfig(engine=engine, lora_rank=8, lora_targets=targets, max_logprob_difference=1e6)  # type: ignore[arg-type]
        learner = make_learner(tmp_path, settings)
        adapted = {name for name, one in learner.model.named_parameters() if one.requires_grad}
        assert len(adapted) == 2 * 2 * (len(targets) if targets else 7)
        assert all(".language_model.layers." in name for name in adapted)
        found[engine] = learner.step([sample(1, 0.5), sample(2, -0.5)])
    assert found["packed"].grad_norm == pytest.approx(found["trl"].grad_norm, rel=1e-4)
    assert found["packed"].grad_norm > 1e-3


def test_the_documentation_names_these_families_and_no_others() -> None:
    table = DOCS.read_text().partition("## Which models")[2].partition("##")[0]
    assert sorted(re.findall(r"^\| [^|]*\| `([a-z0-9_]+)`", table, re.MULTILINE)) == sorted(FAMILIES)


@pytest.mark.parametrize(
    ("shape", "engine", "said"),
    [
        ({"model_type": "mamba2"}, "packed", "the family mamba2"),
        ({"model_type": "new", "layer_types": ["full_attention", "linear_attention"]}, "packed", "linear_attention"),
        (
            {"model_type": "llama4_text", "layer_types": ["full_attention", "chunked_attention"]},
            "packed",
            "family llama4_text: its layers .chunked_attention. attend neither to all earlier tokens nor to",
        ),
        (
            {"model_type": "llama4", "text_config": {"attention_chunk_size": 8192}},
            "packed",
            "chunked_attention. attend",
        ),
        ({"model_type": "llama4_text"}, "packed", "chunked_attention. attend"),
        (
            {"model_type": "new", "layer_types": ["linear_attention", "new_attention"]},
            "packed",
            r"its layers \(linear_attention\) carry a state from token to token.* \(new_attention\) attend neither",
        ),
        (
            {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"]},
            "packed",
            "kind Mistral3ForConditionalGeneration cannot be trained: transformers has no causal language model of it",
        ),
        ({"model_type": "t5", "is_encoder_decoder": True}, "trl", "family t5 .* no causal language model"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "packed", "family bert .BertForMaskedLM."),
    ],
)
def test_what_cannot_be_trained_is_named_before_it_is_read(
    shape: dict[str, Any], engine: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(shape))
    with pytest.raises(TrainingError, match=said) as raised:  # there are no weights to read
        make_learner(tmp_path, LearnerConfig(engine=engine))  # type: ignore[arg-type]
    assert raised.value.hint


def test_a_family_with_states_is_left_to_the_other_engine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_next"}))
    assert fitted_to_machine(LearnerConfig(engine="trl"), tmp_path).engine == "trl"
