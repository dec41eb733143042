"""RMS norms by PyTorch's own function, which CUDA computes in one kernel forward and one backward.

transformers writes a norm as six operations in float32, and autograd goes back through each: of what a layer of a Qwen3
sends through memory beside matrix products they are a third. The numbers stay transformers' own, rounded where it
rounds, which is where serving engines do: a norm nearer to the truth would be further from their log-probabilities.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch.nn import functional

from trainer.learner.packed.layers.same_code import same_code


def norm_in_one_kernel(model: Any) -> None:
    """Let the model's RMS norms compute so: those whose code is one of the three that transformers has for most models.
    Others (compiled ones, a library's own) stay as they are."""
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    forms = ((LlamaRMSNorm, _rounded_before), (GptOssRMSNorm, _rounded_after), (GemmaRMSNorm, _weighted_by_one_more))
    for module in model.modules():
        if "forward" in vars(module) or module._compiled_call_impl is not None:
            continue
        for known, forward in forms:
            if _same_methods(type(module), known):
                module.forward = MethodType(forward, module)


def _same_methods(kind: type, known: type) -> bool:
    names = [name for name in ("forward", "_norm") if hasattr(known, name)]
    return all(same_code(getattr(kind, name, None), getattr(known, name)) for name in names)


def _rounded_before(module: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """As in Llama, Mistral, Qwen: rounded to the input's precision, then weighted."""
    weighted: torch.Tensor = module.weight * _normed(hidden_states, None, module.variance_epsilon)
    return weighted


def _rounded_after(module: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """As in gpt-oss and OLMo 2: weighted in float32, then rounded."""
    if module.weight.dtype != hidden_states.dtype:  # of which PyTorch has no kernel
        return type(module).forward(module, hidden_states)
    return _normed(hidden_states, module.weight, module.variance_epsilon)


def _weighted_by_one_more(module: Any, x: torch.Tensor) -> torch.Tensor:
    """As in Gemma: weights say how far from one, which 16 bits cannot hold as one number."""
    return _normed(x.float(), 1.0 + module.weight.float(), module.eps).type_as(x)


def _normed(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    # Autocast on CUDA would cast the input to float32 first, and the output would stay so.
    with torch.autocast(x.device.type, enabled=False):
        return functional.rms_norm(x, x.shape[-1:], weight, epsilon)
