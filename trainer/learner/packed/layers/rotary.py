"""Rotary positions in half the bytes: each half of a head is multiplied once and has the other half added to it.

transformers makes a second tensor of the halves exchanged, multiplies both and adds them, and autograd goes back
through each piece of that. A rotation's gradient is the rotation back, which needs nothing but cosine and sine. The sum
is rounded once less.
"""

from __future__ import annotations

from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from trainer.learner.packed.layers.same_code import same_code

_ROTARY, _HALF = "apply_rotary_pos_emb", "rotate_half"


class _Rotated(torch.autograd.Function):  # type: ignore[misc]
    """`heads` (..., 2 D), halves a and b, rotated by `cosine` and `sine` (..., 2 D), halves for a's place and for b's:
    a cos - b sin, and b cos + a sin. Gradients for `heads` alone."""

    @staticmethod
    def forward(ctx: Any, heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosine, sine)
        of_a, of_b = sine.chunk(2, -1)
        return _turned(heads, cosine, (of_a, of_b), -1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cosine, sine = ctx.saved_tensors
        of_a, of_b = sine.chunk(2, -1)
        return _turned(gradients[0], cosine, (of_b, of_a), 1), None, None


def _turned(
    heads: torch.Tensor, cosine: torch.Tensor, sines: tuple[torch.Tensor, torch.Tensor], sign: int
) -> torch.Tensor:
    """Halves a and b: a cosine + `sign` b sines[0], and b cosine - `sign` a sines[1]."""
    out = heads * cosine
    (first, second), (a, b) = out.chunk(2, -1), heads.chunk(2, -1)
    first.addcmul_(b, sines[0], value=sign)
    second.addcmul_(a, sines[1], value=-sign)
    return out


def rotate_by_halves(model: Any) -> None:
    """Let the model's attention rotate queries and keys so: where it does as Llama does, by the same code. Others
    (partly or otherwise rotated heads, what is compiled, a library's own) stay as they are.

    Models look the rotation up among the names of their module. Those of other learners do too, so each kind of
    attention gets a forward of its own that finds this one there, and the module is left as it is.
    """
    from transformers.models.llama import modeling_llama as llama

    forwards: dict[type, FunctionType | None] = {}
    for module in model.modules():
        kind = type(module)
        if kind not in forwards:
            forwards[kind] = _with_own_rotation(getattr(kind, "forward", None), llama)
        forward = forwards[kind]
        if forward is not None and "forward" not in vars(module) and module._compiled_call_impl is None:
            module.forward = MethodType(forward, module)


def _with_own_rotation(forward: Any, llama: Any) -> FunctionType | None:
    """The same function, which looks up `_rotated`, within the decorators that are around it; None where it does not
    look up Llama's rotation."""
    if type(forward) is not FunctionType:
        return None
    if (inner := getattr(forward, "__wrapped__", None)) is not None:
        rotating, cells = _with_own_rotation(inner, llama), forward.__closure__ or ()
        cells = tuple(CellType(rotating) if cell.cell_contents is inner else cell for cell in cells)
        return None if rotating is None else _copied(forward, forward.__globals__, cells)
    if _ROTARY not in forward.__code__.co_names:
        return None
    names = forward.__globals__
    rotary = names.get(_ROTARY)
    if not same_code(rotary, llama.apply_rotary_pos_emb) or not same_code(names.get(_HALF), llama.rotate_half):
        return None
    if getattr(rotary, "__globals__", None) is not names:  # which might exchange halves in another way
        return None
    return _copied(forward, {**names, _ROTARY: _rotated}, forward.__closure__)


def _copied(function: FunctionType, names: dict[str, Any], cells: tuple[CellType, ...] | None) -> FunctionType:
    """The function with these globals and this closure."""
    found = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def _rotated(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys, with the arguments of Llama's function."""
    cosine, sine = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    rotated = []
    for heads in (q, k):
        dtype = torch.promote_types(heads.dtype, cos.dtype)
        rotated.append(_Rotated.apply(heads.to(dtype), cosine.to(dtype), sine.to(dtype)))
    queries, keys = rotated
    return queries, keys
