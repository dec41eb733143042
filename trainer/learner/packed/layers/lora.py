"""A linear module with a LoRA, whose two products are added by the matrix multiplication itself.

PEFT writes the LoRA's product, scales it in a second pass over memory and adds it in a third, and autograd adds the two
gradients of the input in a fourth, at every linear module of every layer. On a GPU such passes, not arithmetic, are
most of a layer's time. `addmm` computes the same sum while it multiplies, and rounds it once.

The large product comes last and keeps nothing that was not kept before it, so that a layer that is computed again for
its backward pass ends before it computes the product of its last module, which nobody wants a second time.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch


class _IntoLowRank(torch.autograd.Function):  # type: ignore[misc]
    """`x` (N, in) as it is, and x A' for `down` A (rank, in). The gradient of `x` is added to the one that comes from
    behind while it is multiplied."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, down)
        return x.view_as(x), x @ down.t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_gradient, low = gradients
        x, down = ctx.saved_tensors
        return x_gradient.addmm_(low, down) if ctx.needs_input_grad[0] else None, low.t() @ x


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
    passed, low = _IntoLowRank.apply(flat, down)
    out = torch.addmm(
        low.new_empty(len(up)) if base.bias is None else base.bias,
        low,
        up.t(),
        beta=0 if base.bias is None else 1,
        alpha=module.scaling[name],
    )
    # An input without a gradient passed through would be given one, by a product for nothing.
    out = out.addmm_(passed if flat.requires_grad else flat, base.weight.t())
    # As a plain linear module returns it: no view, of which compiled parts would be compiled once more.
    shaped: torch.Tensor = torch.ops.aten._unsafe_view(out, (*x.shape[:-1], len(up)))
    return shaped
