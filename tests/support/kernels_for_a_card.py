"""Compile the attention kernel, forward and backward, for an H100 that is not there: as JSON, for each kind of model
the kernels with their shared memory, and how many graphs were traced. `python kernels_for_a_card.py SCRATCH`."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

from pretended_card import pretend

LOADED = pretend(Path(sys.argv[1]))  # before torch is imported

import torch  # noqa: E402

from trainer.learner.packed.kernels import flex  # noqa: E402
from trainer.learner.packed.kernels.kind import Kind  # noqa: E402
from trainer.learner.packed.layout import Layout  # noqa: E402

MODELS = {
    "Qwen3-0.6B, three lengths": (16, 8, 128, torch.bfloat16, (1000, 2500, 4001), Kind(0.1)),
    "Qwen3-4B, 64K tokens": (32, 8, 128, torch.bfloat16, (65_536,), Kind(0.1)),
    "in float32": (16, 8, 128, torch.float32, (1000,), Kind(0.1)),
    "Gemma 3, window": (8, 4, 256, torch.bfloat16, (2500,), Kind(0.1, window=512)),
    "Gemma 2, softcap": (8, 4, 256, torch.bfloat16, (1000,), Kind(0.1, softcap=50.0)),
    "gpt-oss, sinks": (64, 8, 64, torch.bfloat16, (1000,), Kind(0.1, window=128, sinks=torch.zeros(64))),
}
"""Heads, heads of the keys, numbers of each, precision, lengths of forests, what attention does besides."""


def main() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    warnings.simplefilter("ignore")
    found = {}
    for name, (heads, key_heads, size, dtype, lengths, kind) in MODELS.items():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        flex.compiled.cache_clear()
        LOADED.clear()
        for tokens in lengths:
            with FakeTensorMode(allow_non_fake_inputs=True):
                places = torch.zeros(tokens, dtype=torch.int64, device="cuda")
                sinks = None if kind.sinks is None else torch.zeros(heads, dtype=dtype, device="cuda")
                given = (
                    torch.empty(1, tokens, count, size, dtype=dtype, device="cuda", requires_grad=True).transpose(1, 2)
                    for count in (heads, key_heads, key_heads)  # as transformers hands them over
                )
                layout = Layout((), places, places.clone())
                out = flex.flex_forest_attention(*given, layout, Kind(kind.scale, kind.window, kind.softcap, sinks))
                assert out.shape == (1, heads, tokens, size)
                out.sum().backward()
        kernels = [[kernel, shared] for kernel, shared in LOADED if "_tem_" in kernel]
        found[name] = {"kernels": kernels, "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
