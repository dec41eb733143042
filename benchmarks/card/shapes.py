"""Models of real shapes with random weights, and what a training step on one has to compute."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

DENSE_BFLOAT16 = {"H200": 989e12, "H100": 989e12, "H20": 148e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Floating-point operations per second of dense matrix products in bfloat16, by a part of the card's name."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A dense Qwen3."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    tied: bool = True

    def layer_weights(self) -> list[tuple[int, int]]:
        """Rows and columns of each linear module of a layer."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        attention = [(self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden)]
        return [*attention, (self.hidden, self.inner), (self.hidden, self.inner), (self.inner, self.hidden)]

    def step_operations(self, *, tokens: int, pairs: int, predictions: int, rank: int) -> float:
        """Operations of one forward and backward pass that no implementation can leave out: what is computed again is
        not counted.

        A token meets every frozen weight twice, forward and backward, a LoRA's three times, as its own gradient is
        wanted; a pair of a token and one that it attends to costs two products forward and five backward. A
        multiplication and an addition are two operations. `pairs` include each token itself.
        """
        frozen = sum(rows * columns for rows, columns in self.layer_weights())
        lora = sum(rank * (rows + columns) for rows, columns in self.layer_weights())
        layer = (4 * frozen + 6 * lora) * tokens + 14 * self.heads * self.head_size * pairs
        return float(self.layers * layer + 4 * self.hidden * self.vocabulary * predictions)


TOY = Shape("toy", 64, 128, 2, 4, 2, 16, 8192)
MIDDLING = Shape("middling", 512, 1536, 8, 8, 4, 64, 8192)
QWEN3_06B = Shape("Qwen3-0.6B", 1024, 3072, 28, 16, 8, 128, 151_936)
QWEN3_4B = Shape("Qwen3-4B", 2560, 9728, 36, 32, 8, 128, 151_936)
QWEN3_8B = Shape("Qwen3-8B", 4096, 12_288, 36, 32, 8, 128, 151_936, tied=False)
SHAPES = {shape.name: shape for shape in (TOY, QWEN3_06B, QWEN3_4B, QWEN3_8B)}


def make_model(shape: Shape, directory: Path, device: str) -> Path:
    """Random weights of that shape in Hugging Face form, in bfloat16; made on the device, where that takes seconds."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if (directory / "config.json").exists():
        return directory
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_size,
        max_position_embeddings=1 << 17,
        tie_word_embeddings=shape.tied,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(usual)
    half = directory.with_name(f".{directory.name}.{os.getpid()}")
    model.save_pretrained(half)
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
