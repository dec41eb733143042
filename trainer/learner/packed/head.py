"""The output head at chosen positions only, a chunk at a time: logits over a vocabulary are what fills a memory."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

CHUNK = 256
"""Positions whose logits exist at the same time; they are computed again in the backward pass."""


def log_probabilities(
    head: torch.nn.Module, hidden: torch.Tensor, token_ids: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each token and entropy of its distribution, both (K,), in at least float32.

    `hidden` (K, H) are the last hidden states before each token of `token_ids` (K,), `temperatures` (K,) what its
    logits are divided by; the entropy has no gradient.
    """
    parts = [
        checkpoint(_chunk, head, states, ids, heat, use_reentrant=False)
        if torch.is_grad_enabled() and states.requires_grad
        else _chunk(head, states, ids, heat)
        for states, ids, heat in zip(
            hidden.split(CHUNK), token_ids.split(CHUNK), temperatures.split(CHUNK), strict=True
        )
    ]
    logps, entropies = zip(*parts, strict=True)
    return torch.cat(logps), torch.cat(entropies)


def _chunk(
    head: torch.nn.Module, hidden: torch.Tensor, token_ids: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if bool((temperatures != 1).any()):
        logits = logits / temperatures.unsqueeze(-1).to(logits.dtype)
    total = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        entropy = total - (torch.exp(logits - total.unsqueeze(-1)) * logits).sum(-1)
    return chosen - total, entropy
