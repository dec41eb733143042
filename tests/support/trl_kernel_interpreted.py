"""Log-probabilities, entropies and gradients by TRL's kernel, as Triton's interpreter computes it on a CPU, against
those of the chunks: as JSON, the largest difference. TRITON_INTERPRET=1 in the environment."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter

from trainer.learner.packed import head as heads
from trainer.learner.packed.head import Head, log_probabilities


def main() -> None:
    whole = interpreter._implicit_cvt

    def converted(given: Any) -> Any:
        """A compiled kernel takes a float as a number of Triton's, the interpreter as Python's."""
        if not isinstance(given, float):
            return whole(given)
        return tl.tensor(interpreter.TensorHandle(np.array([given], dtype=np.float32), tl.float32), tl.float32)

    interpreter._implicit_cvt = converted
    heads._VOCABULARY_CHUNK = 32
    kernel = heads.cuda_kernel()
    assert kernel is not None
    torch.manual_seed(0)
    apart = 0.0
    for softcap in (None, 3.0):
        for temperatures in ((1.0,), (0.5, 1.0, 1.5)):
            module = torch.nn.Linear(8, 50, bias=softcap is None).requires_grad_(False)
            hidden, ids, weights = torch.randn(20, 8, requires_grad=True), torch.randint(50, (20,)), torch.randn(20)
            heat = torch.tensor([temperatures[number % len(temperatures)] for number in range(20)])
            found = []
            for one in (kernel, None):
                logps, entropies = log_probabilities(Head(module, softcap, one), hidden, ids, heat)
                found.append((logps, entropies, *torch.autograd.grad((logps * weights).sum(), hidden)))
            apart = max(
                [apart, *(float((one - other).detach().abs().max()) for one, other in zip(*found, strict=True))]
            )
    print(json.dumps(apart))


if __name__ == "__main__":
    main()
