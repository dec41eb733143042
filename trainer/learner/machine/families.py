"""Which families of models a learner can train, decided from a model's `config.json` before its weights are read. Pure.

A prefix forest shares what begins alike between rows. That needs layers whose only memory of earlier tokens is
attention: a layer that carries a state from token to token has one for each branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arttrace.system.errors import TrainingError
from trainer.learner.config import LearnerConfig

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
STATEFUL = frozenset(
    {
        *("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe"),
        *("mamba", "mamba2", "minimax", "nemotron_h", "qwen3_next", "recurrent_gemma", "rwkv", "xlstm", "zamba"),
        *("zamba2",),
    }
)
"""Model types with layers that carry a state: state-space, recurrent, convolution or linear attention."""
_STATEFUL_LAYERS = frozenset({"conv", "hybrid", "hybrid_sliding", "linear_attention", "mamba", "recurrent"})
_CHUNKED = ("llama4", "llama4_text")
NO_DECODERS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def refuse_family(config: LearnerConfig, shape: Mapping[str, Any]) -> None:
    """Raises TrainingError, with the family's name, for a model that the engine cannot train."""
    family = str(shape.get("model_type") or "this model")
    architectures = [str(name) for name in shape.get("architectures") or ()]
    if shape.get("is_encoder_decoder") or any(name.endswith(NO_DECODERS) for name in architectures):
        raise TrainingError(
            f"A model of the family {family} ({', '.join(architectures) or 'an encoder and a decoder'}) cannot be "
            "trained: it is no causal language model.",
            "Use one that is, as Qwen, Llama, Mistral, Gemma and gpt-oss are.",
        )
    if config.engine == "packed" and (why := _why_not_packed(family, _layer_kinds(family, shape) - ATTENTION_LAYERS)):
        raise TrainingError(
            f"The packed engine cannot train a model of the family {family}: its layers {' and others '.join(why)}.",
            "Train with --engine trl.",
        )


def not_causal(shape: Mapping[str, Any]) -> TrainingError:
    """What is said of a model that transformers does not load as a causal language model."""
    names = ", ".join(map(str, shape.get("architectures") or [shape.get("model_type")]))
    return TrainingError(
        f"A model of the kind {names} cannot be trained: transformers has no causal language model of it.",
        "Use one that reads text alone; of one that sees or hears, the language model saved as a model of its own.",
    )


def _layer_kinds(family: str, shape: Mapping[str, Any]) -> frozenset[str]:
    """The kinds of its layers, as far as `config.json` says them: Llama 4's need not name them."""
    if named := shape.get("layer_types"):
        return frozenset(map(str, named))
    return frozenset({"chunked_attention"} if family in _CHUNKED or shape.get("attention_chunk_size") else ())


def _why_not_packed(family: str, other: frozenset[str]) -> list[str]:
    stateful = ", ".join(sorted(other & _STATEFUL_LAYERS)) or ("state-space or recurrent ones" * (family in STATEFUL))
    attending = ", ".join(sorted(other - _STATEFUL_LAYERS))
    why = []
    if stateful:
        why.append(f"({stateful}) carry a state from token to token, which rows that begin alike cannot share")
    if attending:
        why.append(
            f"({attending}) attend neither to all earlier tokens nor to a window of them, which is all that it computes"
        )
    return why
