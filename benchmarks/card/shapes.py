"""Models of real shapes with random weights, and what a training step on one has to compute."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

DENSE_BFLOAT16 = {"H200": 989e12, "H100": 989e12, "H20": 148e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Floating-point operations per second of dense matrix products in bfloat16, by a part of the card's name."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3: dense, or a mixture of `experts`, of which a token takes `chosen`; then `inner` is each expert's."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    tied: bool = True
    experts: int = 0
    chosen: int = 1

    def attention_weights(self) -> list[tuple[int, int]]:
        """Rows and columns of each linear module of a layer's attention."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        return [(self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden)]

    def expert_weights(self) -> list[tuple[int, int]]:
        """The same of its feed-forward part, or of one expert."""
        return [(self.hidden, self.inner), (self.hidden, self.inner), (self.inner, self.hidden)]

    def layer_weights(self) -> list[tuple[int, int]]:
        """The same of all that a token passes in a layer."""
        router = [(self.hidden, self.experts)] if self.experts else []
        return [*self.attention_weights(), *router, *self.expert_weights() * self.chosen]

    def adapted_weights(self) -> list[tuple[int, int]]:
        """The same of those that have a LoRA."""
        return self.attention_weights() if self.experts else self.layer_weights()

    def numbers(self) -> int:
        """How many the model has, norms aside."""
        experts = max(self.experts, 1) * sum(rows * columns for rows, columns in self.expert_weights())
        attention = sum(rows * columns for rows, columns in self.attention_weights())
        layer = attention + experts + self.hidden * self.experts
        return self.layers * layer + (1 if self.tied else 2) * self.vocabulary * self.hidden

    def step_operations(self, *, tokens: int, pairs: int, predictions: int, rank: int) -> float:
        """Operations of one forward and backward pass that no implementation can leave out: what is computed again is
        not counted.

        A token meets every frozen weight twice, forward and backward, a LoRA's three times, as its own gradient is
        wanted; a pair of a token and one that it attends to costs two products forward and five backward. A
        multiplication and an addition are two operations. `pairs` include each token itself.
        """
        frozen = sum(rows * columns for rows, columns in self.layer_weights())
        lora = sum(rank * (rows + columns) for rows, columns in self.adapted_weights())
        layer = (4 * frozen + 6 * lora) * tokens + 14 * self.heads * self.head_size * pairs
        return float(self.layers * layer + 4 * self.hidden * self.vocabulary * predictions)


TOY = Shape("toy", 64, 128, 2, 4, 2, 16, 8192)
TOY_MIXTURE = Shape("toy mixture", 64, 64, 2, 4, 2, 16, 8192, experts=4, chosen=2)
MIDDLING = Shape("middling", 512, 1536, 8, 8, 4, 64, 8192)
QWEN3_06B = Shape("Qwen3-0.6B", 1024, 3072, 28, 16, 8, 128, 151_936)
QWEN3_4B = Shape("Qwen3-4B", 2560, 9728, 36, 32, 8, 128, 151_936)
QWEN3_8B = Shape("Qwen3-8B", 4096, 12_288, 36, 32, 8, 128, 151_936, tied=False)
QWEN3_30B_A3B = Shape("Qwen3-30B-A3B", 2048, 768, 48, 32, 4, 128, 151_936, tied=False, experts=128, chosen=8)
SHAPES = {shape.name: shape for shape in (TOY, TOY_MIXTURE, QWEN3_06B, QWEN3_4B, QWEN3_8B, QWEN3_30B_A3B)}


def make_model(shape: Shape, directory: Path, device: str) -> Path:
    """Random weights of that shape in Hugging Face form, in bfloat16; made on the device, where that takes seconds. Of
    a mixture of experts its configuration alone: `drawing_weights` has the rest."""
    import torch

    if (directory / "config.json").exists():
        return directory
    half = directory.with_name(f".{directory.name}.{os.getpid()}")
    config = _config(shape)
    model = None if shape.experts else _drawn(config, device, torch.bfloat16)
    (model or config).save_pretrained(half)
    try:
        half.rename(directory)
    except OSError:  # another process made it meanwhile
        if not (directory / "config.json").exists():
            raise
        shutil.rmtree(half)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()
    return directory


def _config(shape: Shape) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3MoeConfig

    common = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_size,
        "max_position_embeddings": 1 << 17,
        "tie_word_embeddings": shape.tied,
        "dtype": torch.bfloat16,
    }
    if not shape.experts:
        return Qwen3Config(intermediate_size=shape.inner, **common)
    return Qwen3MoeConfig(
        moe_intermediate_size=shape.inner,
        num_experts=shape.experts,
        num_experts_per_tok=shape.chosen,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        **common,
    )


def _drawn(config: Any, device: str, dtype: Any) -> Any:
    """The same numbers in every precision."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(dtype)


@contextmanager
def drawing_weights(shape: Shape, device: str) -> Iterator[None]:
    """Inside the block transformers draws a mixture's weights where it would read them: 57 GiB would take a disk, and
    minutes."""
    from transformers import AutoConfig, AutoModelForCausalLM

    def drawn(directory: str, *, dtype: Any, **_: Any) -> Any:
        return _drawn(AutoConfig.from_pretrained(directory), device, dtype)

    with patch.object(AutoModelForCausalLM, "from_pretrained", drawn) if shape.experts else nullcontext():
        yield


def why_not_fitting(shape: Shape, device: str) -> str:
    """ "" where the card has room for the model's weights in bfloat16 and a step on them."""
    import torch

    needed = shape.numbers() * torch.bfloat16.itemsize
    if device != "cuda" or 1.2 * needed < (there := torch.cuda.get_device_properties(0).total_memory):
        return ""
    return f"not run: {shape.name} has {needed / 2**30:.0f} GiB of weights, the card {there / 2**30:.0f} GiB of memory"


def add_tokenizer(base_model: Path, scratch: Path, vocabulary: int) -> None:
    """A token per byte and a chat template, and names for the model's other tokens: vLLM refuses ids that its tokenizer
    does not know."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
    from tiny_model import make_base_model

    folder = make_base_model(scratch / "tokenizer")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    known = tokenizer["model"]["vocab"]
    known |= {f"<|{token}|>": token for token in range(len(known), vocabulary)}
    (base_model / "tokenizer.json").write_text(json.dumps(tokenizer))
    for file in (*folder.glob("tokenizer_config.json"), *folder.glob("*.jinja")):
        shutil.copy(file, base_model)


def dense_rate(device: str) -> tuple[float, str]:
    """Operations per second that utilisation is taken of, and where the figure is from."""
    import time

    import torch

    if device == "cuda":
        name = torch.cuda.get_device_name()
        for part, rate in DENSE_BFLOAT16.items():
            if part in name:
                return rate, f"the data sheet's {rate / 1e12:.0f} TFLOP/s for {part}"
    size = 8192 if device == "cuda" else 512
    one = torch.randn(size, size, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        float((one @ one).sum())
        best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best, f"a measured matrix product, {best / 1e12:.3g} TFLOP/s"
