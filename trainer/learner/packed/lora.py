"""A linear module with a LoRA, whose two products are added by the matrix multiplication itself.

PEFT writes the LoRA's product, scales it in a second pass over memory and adds it in a third, and autograd adds the two
gradients of the input in a fourth, at every linear module of every layer. On a GPU such passes, not arithmetic, are
most of a layer's time. `addmm` computes the same sum while it multiplies, and rounds it once.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch.nn.functional import linear


class _AdaptedLinear(torch.autograd.Function):  # type: ignore[misc]
    """x W' + bias + scale (x A') B' for `x` (N, in), `weight` W (out, in), `bias` (out,), `down` A (rank, in) and
    `up` B (out, rank), all of one dtype; gradients for `x`, `down` and `up`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        low = x @ down.t()
        ctx.save_for_backward(x, weight, down, up, low)
        ctx.scale = scale
        return linear(x, weight, bias).addmm_(low, up.t(), alpha=scale)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (out,) = gradients
        x, weight, down, up, low = ctx.saved_tensors
        low_gradient = (out @ up) * ctx.scale
        x_gradient = (out @ weight).addmm_(low_gradient, down) if ctx.needs_input_grad[0] else None
        return x_gradient, None, None, low_gradient.t() @ x, (out.t() @ low) * ctx.scale, None


def add_within_products(model: Any) -> None:
    """Let the PEFT model's linear modules compute so. Those of another kind (quantised ones, a library's own forward)
    stay as they are, and all do while adapters are off or several are on."""
    from peft.tuners.lora.layer import Linear

    for module in model.modules():
        if type(module) is Linear and type(module.base_layer) is torch.nn.Linear and "forward" not in vars(module):
            module.forward = MethodType(_forward, module)


def _forward(module: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    base, active = module.base_layer, module.active_adapters
    plain = len(active) == 1 and active[0] in module.lora_A and active[0] not in module.lora_variant
    if args or kwargs or not plain or module.disable_adapters or module.merged or base.weight.requires_grad:
        return type(module).forward(module, x, *args, **kwargs)
    (name,) = active
    dtype = base.weight.dtype
    out = _AdaptedLinear.apply(
        x.reshape(-1, x.shape[-1]).to(dtype),
        base.weight,
        base.bias,
        module.lora_A[name].weight.to(dtype),
        module.lora_B[name].weight.to(dtype),
        module.scaling[name],
    )
    return out.view(*x.shape[:-1], -1)
