"""The chunked output head that TRL's trainers call, in plain PyTorch: its own needs Triton and a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

Fields = tuple[torch.Tensor, ...]


class TorchHead:
    """Stands in for `trl.kernels.ChunkedLogProbFunction`: the same arguments, results and gradients."""

    @staticmethod
    def apply(
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        temperature: float,
        chunk: int,
        softcap: float | None,
        scale: float,
        outputs: tuple[str, ...],
    ) -> tuple[torch.Tensor | None, ...]:
        """Log-probability of each label, entropy, log of the sum of squared probabilities, mean logit, and whether the
        label is the likeliest, each (N,), None where `outputs` does not ask for it. `hidden` (N, H), `labels` (N,)."""

        def compute(states: torch.Tensor, ids: torch.Tensor) -> Fields:
            logits = torch.nn.functional.linear(states, weight, bias).float() * scale
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            logits = logits / temperature
            logps = torch.log_softmax(logits, dim=-1)
            with torch.no_grad():
                rest = (
                    -(logps.exp() * logps).sum(-1),
                    torch.logsumexp(2 * logps, dim=-1),
                    logits.mean(-1),
                    logits.argmax(-1) == ids,
                )
            return (logps.gather(-1, ids.unsqueeze(-1)).squeeze(-1), *rest)

        # The LoRA's own gradients come through `hidden`; at least one part, so that no label at all gives a zero.
        parts = [
            checkpoint(compute, states, ids, use_reentrant=False)
            for states, ids in zip(hidden.split(chunk), labels.split(chunk), strict=True)
        ]
        joined: list[Any] = [torch.cat(field) for field in zip(*parts, strict=True)]
        names = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
        return tuple(
            value if name == "log_probs" or name in outputs else None for name, value in zip(names, joined, strict=True)
        )


def use_on_cpus() -> None:
    """Put it where TRL looks for its own: for tensors on a CPU, and for all where Triton is missing."""
    from trl.trainer import utils

    theirs = utils._ChunkedLogProbFunction

    def apply(hidden: torch.Tensor, *rest: Any) -> tuple[torch.Tensor | None, ...]:
        found: tuple[torch.Tensor | None, ...]
        found = (TorchHead if hidden.device.type == "cpu" else theirs).apply(hidden, *rest)
        return found

    utils._ChunkedLogProbFunction = TorchHead if theirs is None else SimpleNamespace(apply=apply)
