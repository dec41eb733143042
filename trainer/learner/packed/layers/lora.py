"""A linear module with a LoRA, whose product is added to the module's own while it is multiplied.

PEFT writes the LoRA's product, scales it in a second pass over memory and adds it in a third, and autograd adds the two
gradients of the input in a fourth, at every linear module of every layer. On a GPU such passes, not arithmetic, are
most of a layer's time. `addmm_` computes the same sum while it multiplies.

In 16 bits it is rounded as vLLM rounds it: the scaling goes into the LoRA's second matrix, and the base model's product
is rounded before the LoRA's is added, so that what is below half of its last place is lost to both. Rounded once, the
sum would be nearer to the truth, and further from what is served.

All that the backward pass needs is kept before the large product, so that a layer that is computed again for its
backward pass ends before it computes the product of its last module, which nobody wants a second time.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch


class _Prepared(torch.autograd.Function):  # type: ignore[misc]
    """For `x` (N, in), `down` A (rank, in), `up` B (out, rank) and the frozen `weight` W (out, in): x A', and a place
    (N, out) that takes no memory and stands for x W' + x A' B' on the way back."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        low = x @ down.t()
        ctx.save_for_backward(x, low, down, up, weight)
        ctx.mark_non_differentiable(low)
        return low, x.new_empty(()).expand(len(x), len(up))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _, gradient = gradients
        x, low, down, up, weight = ctx.saved_tensors
        of_low = gradient @ up
        of_x = (gradient @ weight).addmm_(of_low, down) if ctx.needs_input_grad[0] else None
        return of_x, of_low.t() @ x, gradient.t() @ low, None


class _Sum(torch.autograd.Function):  # type: ignore[misc]
    """x W' + bias, and x A' B' added to it; its gradient is the place's, whose shape it takes: PyTorch 2.11, which
    compiles the forward pass by itself, gives no gradient to what nothing there depends on."""

    @staticmethod
    def forward(
        _ctx: Any,
        place: torch.Tensor,
        x: torch.Tensor,
        low: torch.Tensor,
        up: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        out = torch.nn.functional.linear(x, weight, bias).addmm_(low, up.t())
        shaped: torch.Tensor = torch.ops.aten._unsafe_view(out, place.shape)
        return shaped

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradients[0], None, None, None, None, None


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
    flat = x.reshape(-1, x.shape[-1]).to(dtype)
    down, up = (part[name].weight.to(dtype) for part in (module.lora_A, module.lora_B))
    up = up * module.scaling[name]
    low, place = _Prepared.apply(flat, down, up, base.weight)
    out = _Sum.apply(place, flat.detach(), low, up.detach(), base.weight, base.bias)
    # As a plain linear module returns it: no view, of which compiled parts would be compiled once more.
    shaped: torch.Tensor = torch.ops.aten._unsafe_view(out, (*x.shape[:-1], len(up)))
    return shaped
