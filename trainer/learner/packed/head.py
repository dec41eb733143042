"""The output head at chosen positions only, in parts: logits over a vocabulary are what fills a memory.

On CUDA TRL's kernel streams over the vocabulary and keeps no logits at all; elsewhere logits exist for a chunk of
positions at a time and are computed again in the backward pass. Both give the same numbers and gradients.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

CHUNK = 256
"""Positions whose logits exist at the same time, without the kernel."""
_VOCABULARY_CHUNK = 32_768
"""Columns of the head that the kernel multiplies at a time: TRL's own number."""


@dataclass(frozen=True, slots=True)
class Head:
    """An output head and what its model does to the logits: `softcap` c makes them c tanh(z / c). `kernel` is TRL's
    `ChunkedLogProbFunction` or one like it, None for chunks."""

    module: torch.nn.Module
    softcap: float | None = None
    kernel: Any = None

    @classmethod
    def of(cls, causal: Any) -> Head:
        """The head of a causal LM, with the kernel where its device has one."""
        config, module = causal.config.get_text_config(), causal.get_output_embeddings()
        kernel = None
        if type(module) is torch.nn.Linear and not module.weight.requires_grad:
            on_cuda = module.weight.device.type == "cuda" and module.weight.dtype != torch.float64
            kernel = cuda_kernel() if on_cuda else None
        return cls(module, getattr(config, "final_logit_softcapping", None), kernel)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As the model gives them, in at least float32."""
        logits = self.module(hidden)
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def gives(self, logits: torch.Tensor, hidden: torch.Tensor) -> bool:
        """Whether these are the logits that its model makes of the hidden states."""
        loose = logits.dtype in (torch.bfloat16, torch.float16) or hidden.dtype in (torch.bfloat16, torch.float16)
        atol, rtol = (2e-2, 2e-2) if loose else (1e-4, 1e-3)
        headed = self.logits(hidden)
        return bool(torch.allclose(logits.to(headed), headed, atol=atol, rtol=rtol))


@functools.lru_cache
def cuda_kernel() -> Any:
    """TRL's kernel; None where TRL or Triton is missing."""
    try:
        from trainer.output.quiet import import_trl

        import_trl()  # its backward pass loads the rest of TRL
        from trl.kernels import ChunkedLogProbFunction
    except ImportError:
        return None
    return ChunkedLogProbFunction


def log_probabilities(
    head: Head, hidden: torch.Tensor, token_ids: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each token and entropy of its distribution, both (K,), in at least float32.

    `hidden` (K, H) are the last hidden states before each token of `token_ids` (K,), `temperatures` (K,) what its
    logits are divided by; the entropy has no gradient.
    """
    if head.kernel is not None:
        return _by_kernel(head, hidden, token_ids, temperatures)
    heated = bool((temperatures != 1).any())  # asked once, as a card has done all its work before it answers
    parts = [
        checkpoint(_chunk, head, states, ids, heat, use_reentrant=False, preserve_rng_state=False)
        if torch.is_grad_enabled() and states.requires_grad
        else _chunk(head, states, ids, heat)
        for states, ids, heat in zip(
            hidden.split(CHUNK),
            token_ids.split(CHUNK),
            temperatures.split(CHUNK) if heated else repeat(None, -(-len(hidden) // CHUNK) or 1),
            strict=True,
        )
    ]
    logps, entropies = zip(*parts, strict=True)
    return torch.cat(logps), torch.cat(entropies)


def _by_kernel(
    head: Head, hidden: torch.Tensor, token_ids: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel knows one temperature: once for each that there is, nearly always one."""
    weight, asked = head.module.weight, ("log_probs", "entropy")
    hidden = hidden.to(weight.dtype)
    logps = torch.zeros(token_ids.shape, dtype=torch.float32, device=hidden.device)
    entropies = torch.zeros_like(logps)
    for temperature in temperatures.unique().tolist():
        own = (temperatures == temperature).nonzero().squeeze(1)
        found = head.kernel.apply(
            hidden[own],
            weight,
            head.module.bias,
            token_ids[own],
            temperature,
            _VOCABULARY_CHUNK,
            head.softcap,
            1.0,
            asked,
        )
        logps = logps.index_put((own,), found[0].float())
        entropies[own] = found[1].detach().float()
    return logps, entropies


def _chunk(
    head: Head, hidden: torch.Tensor, token_ids: torch.Tensor, temperatures: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head.logits(hidden)
    if temperatures is not None:
        logits = logits / temperatures.unsqueeze(-1).to(logits.dtype)
    return of_logits(logits, token_ids)


def of_logits(logits: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the tokens, and entropies without gradients, both (N,), from logits (N, V)."""
    total = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        # In one place: three tensors as large as the logits take more memory, and more time, than one.
        entropy = total - (logits - total.unsqueeze(-1)).exp_().mul_(logits).sum(-1)
    return chosen - total, entropy
