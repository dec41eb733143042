"""What the serving engine must know about a model, read from its directory's config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.errors import ServingError
from trainer.learner.machine.fitting import experts

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Name, vocabulary size (tokens), longest context (tokens) and bytes of KV cache per token in float32; the model
    type of transformers, how many experts a layer has (0: a dense model), the precision it is stored in, and the token
    with which its tokenizer ends an answer, where its files say so."""

    name: str
    vocab_size: int
    max_positions: int
    kv_bytes_per_token: int
    has_chat_template: bool
    family: str = ""
    experts: int = 0
    dtype: str = ""
    end_token: int | None = None


def read_model(directory: Path) -> ModelShape:
    """The shape of the model in a directory of the Hugging Face layout. Raises ServingError when it is none."""
    hint = "--base-model takes a directory with config.json, weights and tokenizer, as save_pretrained writes it."
    if not directory.is_dir():
        raise ServingError(f"there is no model directory {directory}", hint)
    require_utf8(directory)
    try:
        config: dict[str, Any] = msgspec.json.decode((directory / "config.json").read_bytes(), type=dict[str, Any])
        text = config.get("text_config") or config
        layers, heads = int(text["num_hidden_layers"]), int(text["num_attention_heads"])
        head_dim = int(text.get("head_dim") or int(text["hidden_size"]) // heads)
        shape = ModelShape(
            name=directory.resolve().name,
            vocab_size=int(text["vocab_size"]),
            max_positions=int(text.get("max_position_embeddings") or 4096),
            kv_bytes_per_token=2 * 4 * layers * int(text.get("num_key_value_heads") or heads) * head_dim,
            has_chat_template=_has_chat_template(directory),
            family=str(config.get("model_type") or ""),
            experts=experts(text),
            dtype=str(config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or ""),
            end_token=_end_token(directory),
        )
    except FileNotFoundError:
        raise ServingError(f"{directory} holds no config.json, so it is no model directory", hint) from None
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ServingError(
            f"{directory / 'config.json'} does not describe a causal language model ({error!r})"
        ) from None
    return shape


def require_utf8(directory: Path) -> None:
    """Raises ServingError where JSON cannot hold the directory's name: serving.json and manifests name it."""
    try:
        str(directory).encode()
    except UnicodeEncodeError:
        raise ServingError(
            f"the name of the directory {str(directory)!a} is not UTF-8", "Rename it, or name a link to it."
        ) from None


def kv_cache_gib(shape: ModelShape, max_model_len: int, *, sequences: int = 64) -> int:
    """Whole GiB of KV cache for `sequences` requests of full length at once, at least 1 and at most 4."""
    return min(4, max(1, math.ceil(shape.kv_bytes_per_token * max_model_len * sequences / _GIB)))


def kv_cache_blocks(shape: ModelShape, max_model_len: int, block_size: int, *, sequences: int = 256) -> int | None:
    """Blocks of `block_size` tokens for `sequences` sequences of full length, which is those that `kv_cache_gib` has
    room for and what ended before them; None where these are not fewer than fit into that."""
    blocks = sequences * math.ceil(max_model_len / block_size)
    room = kv_cache_gib(shape, max_model_len) * _GIB
    return blocks if blocks * block_size * shape.kv_bytes_per_token < room else None


@dataclass(frozen=True, slots=True)
class Probe:
    """What a version is asked to see whether it differs from another: how likely is `token` after each prompt?"""

    prompts: list[list[int]]
    token: int


def make_probe(shape: ModelShape, *, prompts: int = 8, length: int = 24) -> Probe:
    """A fixed probe spread over the whole vocabulary, so that it needs no tokenizer."""
    count = min(prompts * length, shape.vocab_size)
    spread = [index * shape.vocab_size // count for index in range(count)]
    longest = max(1, min(length, shape.max_positions - 1))
    return Probe(
        # Neighbours in a prompt are far apart in the vocabulary, and no two prompts begin alike.
        prompts=[[spread[(start + step * prompts) % count] for step in range(longest)] for start in range(prompts)],
        token=spread[count // 2],
    )


def _end_token(directory: Path) -> int | None:
    """The id of the tokenizer's `eos_token`, as a fast tokenizer's files give it."""
    settings = (_document(directory / name) for name in ("tokenizer_config.json", "special_tokens_map.json"))
    token = next(filter(None, (one.get("eos_token") for one in settings)), None)
    text = token.get("content") if isinstance(token, dict) else token
    tokenizer = _document(directory / "tokenizer.json")
    added = (one for one in json_objects(tokenizer.get("added_tokens")) if one.get("content") == text)
    others = json_object(json_object(tokenizer.get("model")).get("vocab"))
    found = next((one.get("id") for one in added), others.get(text) if isinstance(text, str) else None)
    return found if isinstance(found, int) else None


def _document(path: Path) -> dict[str, Any]:
    try:
        return json_object(msgspec.json.decode(path.read_bytes()))
    except (OSError, *UNREADABLE):
        return {}


def _has_chat_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").exists() or (directory / "chat_template.json").exists():
        return True
    settings = directory / "tokenizer_config.json"
    return settings.exists() and b'"chat_template"' in settings.read_bytes()
